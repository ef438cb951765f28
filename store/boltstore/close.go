package boltstore

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
)

// Close ends the store. From its first call on Begin is refused; what was asked before is done. While claims are held
// it returns an error with their number and leaves the file locked, since the lock is what proves to the next process
// that the runs of this one are over: their Finish still works, and Close can be called again. It frees the file once
// no claim is held, or leaves the database of [New] to the application; then every other method returns
// [store.ErrUnusable], and Close returns nil.
//
// On a store that is latched after a failed write no claim can be ended any more. There a claim counts as held until
// Finish was called for it.
func (s *Store) Close() error {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.isClosed {
		return nil
	}
	s.queue.mu.Lock()
	s.closing.Store(true)
	s.queue.mu.Unlock()
	failpoint("close.refusing")
	_ = s.perform(context.Background(), &op{kind: opBarrier}) // every Begin that was not refused is settled
	s.mu.RLock()
	held := s.held()
	s.mu.RUnlock()
	if held > 0 {
		return fmt.Errorf("boltstore: close: %d claims are held; the file stays locked until their runs have ended "+
			"and Close is called again, or the process ends", held)
	}
	latched := s.fault.Load() != nil
	_ = s.fail(errClosed)
	close(s.stop)
	<-s.stopped
	s.isClosed = true
	if !latched || !s.borrowed {
		defer vacate(s.db)
	}
	if err := s.release(latched); err != nil {
		return fmt.Errorf("boltstore: close: %w", err)
	}
	return nil
}

// release gives the file back, with its free list in it, so that the next Open need not look for it. A borrowed database
// is left as it is.
func (s *Store) release(latched bool) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	failpoint("close.stopped")
	if s.borrowed {
		return nil
	}
	var err error
	if !latched {
		s.db.NoFreelistSync = false
		err = s.update(func(tx *bbolt.Tx) error { return writeTime(tx.Bucket(rootBucket), s.clock.now()) })
	}
	failpoint("close.written")
	return errors.Join(err, s.db.Close())
}
