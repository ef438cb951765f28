package boltstore

import (
	"errors"
	"fmt"
	"runtime/debug"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

// View reads the file in a read-only transaction, for what the application keeps beside the records. It returns fn's
// error as it is. On a store that is latched or closed the error is [store.ErrUnusable].
//
// bbolt shows a commit to readers before it is durable. If fn may have read such a one, View returns only when it is,
// and store.ErrUnusable if it is not. fn must not wait for a write of this store: one that needs the file to grow waits
// for fn.
func (s *Store) View(fn func(tx *bbolt.Tx) error) error {
	if err := s.refusal(false); err != nil {
		return fmt.Errorf("boltstore: view: %w", err)
	}
	var read int64
	err := s.read(func(tx *bbolt.Tx) error {
		read = int64(tx.ID())
		return fn(tx)
	})
	if errors.Is(err, bbolterrors.ErrDatabaseNotOpen) {
		return fmt.Errorf("boltstore: view: %w", errClosed)
	}
	if read > s.durable.Load() {
		s.writing.Lock() // until the commit under way has ended
		s.isDurable(read)
		s.writing.Unlock()
	}
	if err := s.refusal(false); err != nil {
		return fmt.Errorf("boltstore: view: %w", err)
	}
	return err
}

// read is db.View. A read of a page that the system cannot read panics.
func (s *Store) read(fn func(tx *bbolt.Tx) error) error {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return s.db.View(fn)
}

// isDurable notes that a transaction is durable, as are all before it. The caller holds s.writing.
func (s *Store) isDurable(id int64) {
	if s.fault.Load() == nil && id > s.durable.Load() {
		s.durable.Store(id)
	}
}
