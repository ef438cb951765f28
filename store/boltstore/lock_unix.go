//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package boltstore

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

const lockRetry = 20 * time.Millisecond

// lock takes the lock that bbolt takes, a moment earlier, so that nobody writes while the file is checked. bbolt asks
// for it again on the same open file, which succeeds at once.
func lock(f *os.File, timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; time.Sleep(lockRetry) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return fmt.Errorf("lock: %w", err)
		case !time.Now().Before(end):
			return errLocked
		}
	}
}

// syncFolder makes a new name durable.
func syncFolder(folder string) error {
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
