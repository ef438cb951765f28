//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package boltstore

import (
	"os"
	"time"
)

// lock leaves the lock to bbolt, which takes it after the file was checked.
func lock(*os.File, time.Duration) error { return nil }

// syncFolder does nothing where a folder cannot be synced.
func syncFolder(string) error { return nil }
