package boltstore

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"go.etcd.io/bbolt"
)

// transaction is a bbolt transaction for closures of others. It is begun, committed and rolled back in a goroutine of
// its own, whatever becomes of the goroutine that runs the closure: one that panics or exits unwinds with its own stack,
// while db.Update rolls back as after an error. (As after a panic it would go through the whole file.) Since db.Update
// waits, Commit and Rollback in a closure panic.
type transaction struct {
	tx   *bbolt.Tx
	last chan func() error // what remains to be done before the commit; closed: roll back
	over bool              // last was used
	done chan struct{}

	// Set before done is closed.
	err       error
	committed bool
	panicked  bool   // in the commit
	late      func() // not nil: how a commit handler of the closure ended, to be called in the caller's goroutine
}

var errRollback = errors.New("rolled back")

// transaction begins one. The caller holds s.writing, and calls commit or rollback.
func (s *Store) transaction() (*transaction, error) {
	t := &transaction{last: make(chan func() error, 1), done: make(chan struct{})}
	began := make(chan *bbolt.Tx, 1)
	go t.run(s.db, began)
	select {
	case t.tx = <-began:
		s.isDurable(int64(t.tx.ID()) - 1)
		return t, nil
	case <-t.done:
		return nil, s.latch(t.err)
	}
}

func (t *transaction) run(db *bbolt.DB, began chan<- *bbolt.Tx) {
	debug.SetPanicOnFault(true)
	defer close(t.done)
	returned := false
	defer func() {
		p := recover()
		switch {
		case t.committed && p != nil:
			t.err, t.late = nil, func() { panic(p) }
		case t.committed && !returned:
			t.err, t.late = nil, runtime.Goexit
		case p != nil:
			t.panicked = true
			t.err = fmt.Errorf("panic in a transaction: %v", p)
		}
	}()
	t.err = db.Update(func(tx *bbolt.Tx) error {
		tx.OnCommit(func() { t.committed = true })
		began <- tx
		last, ok := <-t.last
		if !ok {
			return errRollback
		}
		return last()
	})
	returned = true
}

// commit calls last in the transaction and commits.
func (t *transaction) commit(last func() error) error {
	t.over = true
	t.last <- last
	<-t.done
	return t.err
}

// rollback ends the transaction, unless it was committed.
func (t *transaction) rollback() {
	if !t.over {
		t.over = true
		close(t.last)
	}
	<-t.done
}
