package boltstore

import (
	"errors"
	"fmt"
	"sync"
	"weak"

	"go.etcd.io/bbolt"
)

// New opens a store in a database that the application has opened, keeps for its own data too, and closes: only after
// [Store.Close] has returned nil. The store uses one top-level bucket, "oncerpc", which it creates if it is not there
// and which nobody else may touch. Claims that were running when the database was last in use are abandoned, as by
// [Open].
//
// The database keeps the options it was opened with. Worth setting are FreelistType: FreelistMapType, and, if it grows
// large, NoFreelistSync. It is an error if it is read-only, has NoSync set, or is used by another Store, or by one that
// was latched, until it is closed and opened again. Unlike Open, New does not go through the pages of the file first.
//
// [WithMaxSize] bounds the whole file, which still grows by the AllocSize of the database, and needs its statistics: it
// is an error with NoStatistics. Without the option there is no bound.
//
// The application may write by db.Update beside the store, each waiting for the other, but not within a closure of
// [Transact]. It must not set NoSync later.
func New(db *bbolt.DB, opts ...Option) (*Store, error) {
	var o options
	for _, opt := range opts {
		opt.apply(&o)
	}
	s, err := borrow(db, o.maxSize)
	if err != nil {
		return nil, fmt.Errorf("boltstore: new: %w", err)
	}
	return s, nil
}

func borrow(db *bbolt.DB, maxSize int64) (*Store, error) {
	switch {
	case db.IsReadOnly():
		return nil, errors.New("the database is read-only")
	case db.NoSync:
		return nil, errors.New("the database has NoSync set: no outcome would be durable")
	}
	if err := occupy(db); err != nil {
		return nil, err
	}
	s, err := startBorrowed(db, maxSize)
	if err != nil {
		vacate(db)
		return nil, err
	}
	return s, nil
}

func startBorrowed(db *bbolt.DB, maxSize int64) (*Store, error) {
	s := newStore(db, maxSize)
	s.borrowed = true
	err := s.update(func(tx *bbolt.Tx) error {
		if tx.Bucket(rootBucket) != nil {
			return errNothing
		}
		return layout(tx)
	})
	if err != nil && !errors.Is(err, errNothing) {
		return nil, fmt.Errorf("create the bucket: %w", err)
	}
	return s, s.start()
}

// used are the databases that a Store uses, or that one has left behind latched. The pointers are weak: what is left
// behind keeps no database in memory.
var used sync.Map // weak.Pointer[bbolt.DB] → nothing

func occupy(db *bbolt.DB) error {
	if _, there := used.LoadOrStore(weak.Make(db), nil); there {
		return errors.New("the database is used by a Store, or a commit of one has failed: close that Store, " +
			"and after a failed commit close and open the database")
	}
	return nil
}

func vacate(db *bbolt.DB) { used.Delete(weak.Make(db)) }
