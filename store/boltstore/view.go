package boltstore

import (
	"errors"
	"runtime/debug"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

// View reads the file in a read-only transaction, for what the application keeps beside the records. It returns fn's
// error, and nil only if what fn has read is durable: bbolt shows a commit to readers a moment before that, so View
// may wait for the commit under way. On a store that is latched or closed the error is [store.ErrUnusable].
//
// fn must not begin or await a write of this store: a write that needs the file to grow waits for fn.
func (s *Store) View(fn func(tx *bbolt.Tx) error) error {
	if err := s.view1(fn); err != nil {
		return err
	}
	return nil
}

func (s *Store) view1(fn func(tx *bbolt.Tx) error) error {
	if err := s.refusal(false); err != nil {
		return err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	err := s.db.View(fn)
	if errors.Is(err, bbolterrors.ErrDatabaseNotOpen) {
		return errClosed
	}
	return err
}
