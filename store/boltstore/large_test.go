//go:build linux && (amd64 || arm64)

package boltstore_test

import (
	"flag"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store/boltstore"
)

var large = flag.Bool("large", false, "open a file of a million records")

// TestLargeFile tells what opening a large file takes, with and without the file in the page cache.
func TestLargeFile(t *testing.T) {
	if !*large {
		t.Skip("runs with -large")
	}
	const records, callers = 1_000_000, 256
	s, path := newStore(t)
	started := time.Now()
	for range records / 100_000 {
		fillWith(t, s, callers, 100_000, done(string(make([]byte, 150))))
	}
	t.Logf("written in %v, %d bytes in the file", time.Since(started), fileSize(t, path))
	crashed := copyFile(t, path)
	require.NoError(t, s.Close())
	for _, state := range []struct{ name, path string }{{"closed", path}, {"crashed", crashed}} {
		for _, cold := range []bool{true, false} {
			if cold {
				dropFromCache(t, state.path)
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			started := time.Now()
			s, err := boltstore.Open(state.path)
			require.NoError(t, err)
			took := time.Since(started)
			runtime.GC()
			runtime.ReadMemStats(&after)
			require.Equal(t, records, s.Stats().Done)
			t.Logf("%s, cold %t: opened in %v, %.1f bytes of heap a record", state.name, cold, took,
				float64(after.HeapAlloc-before.HeapAlloc)/records)
			s.Crash()
		}
	}
}

func dropFromCache(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.NoError(t, f.Sync())
	const dontNeed = 4
	_, _, errno := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0)
	require.Zero(t, errno)
}
