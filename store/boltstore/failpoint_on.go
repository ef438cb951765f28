//go:build oncerpc_failpoints

package boltstore

// Failpoint is called at the points where the crash harness (interceptor/crashtest) ends the process, and tests of
// interleavings hold a goroutine, with the point's name. It is there under the build tag oncerpc_failpoints alone. It
// must be set before the first [Open].
var Failpoint func(point string)

func failpoint(point string) {
	if Failpoint != nil {
		Failpoint(point)
	}
}
