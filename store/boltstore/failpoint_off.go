//go:build !oncerpc_failpoints

package boltstore

// failpoint marks where tests end the process or hold a goroutine, see failpoint_on.go. Here it is nothing.
func failpoint(string) {}
