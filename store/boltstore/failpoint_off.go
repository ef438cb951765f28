//go:build !oncerpc_failpoints

package boltstore

// failpoint marks where the crash harness ends the process, see failpoint_on.go. Here it is nothing.
func failpoint(string) {}
