package boltstore

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
)

// Transact runs fn in one write transaction of the store's file: what fn writes, and within a guarded call the call's
// outcome, are committed together or not at all.
//
// fn runs once, in the caller's goroutine. If it returns an error, panics or exits, what it wrote is rolled back, and
// the error, panic or exit goes on here. An error made by [Commit] is the exception: it commits. Committing or rolling
// back tx itself panics.
//
// In a guarded call, which Transact finds in ctx, what fn returned is the call's outcome from the commit on, whatever
// the handler returns or sets afterwards; a nil T is the empty message. Transact refuses, without running fn, a store
// other than the one that guards the call, a second transaction after a commit, two at once, and one after the handler
// has returned. It rolls back and returns [store.ErrLost] if another run has taken the call's claim, and an error if
// the response is of the wrong type or cannot be marshalled. After any rollback it may be called again. Outside of a
// guarded call it is a plain transaction.
//
// The end of ctx keeps fn from being started. Once it runs it commits, however long it takes, if the claim stands.
//
// The error is [store.ErrUnusable] if the store cannot be used, or if the commit failed so that nobody knows whether it
// will be there when the file is opened again. A commit that finds no room in the file is rolled back.
//
// Transact alone decides what a commit leaves; what a crash before it leaves is the method's policy: with in_transaction
// the call is run again, without it the claim is durable and retries get OUTCOME_UNKNOWN, although nothing happened.
//
// Nothing that needs this store may happen in fn, see the package documentation.
func Transact[T any](ctx context.Context, s *Store, fn func(tx *bbolt.Tx) (T, error)) (T, error) {
	return transact(ctx, fn, s.alone)
}

// Commit is returned by the closure of a transaction that is to be committed with err as the outcome, as after "write
// down the attempt that was declined". [Transact] then returns err itself. Commit(nil) is nil.
func Commit(err error) error {
	if err == nil {
		return nil
	}
	return &commitError{err}
}

type commitError struct{ err error }

func (e *commitError) Error() string { return e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

// closure is what runs in a transaction, and what became of it.
type closure struct {
	ctx  context.Context
	fn   func(tx *bbolt.Tx) (response any, err error)
	put  func(response any, err error) (store.ID, store.Token, store.End, error) // nil outside of a guarded call
	err  error                                                                   // what fn returned, if it failed
	out  error                                                                   // the outcome, if it is an error
	late func()                                                                  // not nil: how a commit handler ended
}

// errClosure takes the place of a closure's error while that is on its way: nothing can be read into it.
var errClosure = errors.New("the closure failed")

// transact has perform run and commit fn.
func transact[T any](ctx context.Context, fn func(*bbolt.Tx) (T, error), perform func(*closure) error) (T, error) {
	var response, none T
	c := &closure{ctx: ctx, fn: func(tx *bbolt.Tx) (any, error) {
		var err error
		response, err = fn(tx)
		return response, err
	}}
	err := perform(c)
	if c.late != nil {
		c.late()
	}
	switch {
	case err == errClosure: //nolint:errorlint // ours alone
		return none, c.err
	case err != nil:
		return none, fmt.Errorf("boltstore: transact: %w", err)
	case c.out != nil:
		return none, c.out
	}
	return response, nil
}

// guarded calls tx, within the guarded call under way if there is one.
func (c *closure) guarded(s *Store, tx func() error) error {
	r, ok := store.FromContext(c.ctx)
	if !ok {
		return tx()
	}
	return r.Commit(s, func(put func(any, error) (store.ID, store.Token, store.End, error)) error {
		c.put = put
		return tx()
	})
}

// run runs the closure in tx. The operation records the outcome, and is nil outside of a guarded call.
func (c *closure) run(tx *bbolt.Tx) (*op, error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	c.err, c.out = nil, nil
	response, err := c.fn(tx)
	var commit *commitError
	switch {
	case errors.As(err, &commit):
		response, c.out = nil, commit.err
	case err != nil:
		c.err = err
		return nil, errClosure
	}
	if c.put == nil {
		return nil, nil
	}
	id, token, end, err := c.put(response, c.out)
	if err == nil {
		err = validate(end)
	}
	if err != nil {
		return nil, err
	}
	return &op{kind: opCommit, id: id, token: token, end: end}, nil
}

// alone runs one closure and commits.
func (s *Store) alone(c *closure) error {
	return c.guarded(s, func() error {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if err := s.writing.enter(c.ctx); err != nil {
			return err
		}
		defer s.writing.Unlock()
		if err := s.refusal(false); err != nil {
			return err
		}
		started := time.Now()
		t, err := s.transaction()
		if err != nil {
			return err
		}
		defer t.rollback() // also when the closure panics or exits
		o, err := c.run(t.tx)
		if err != nil {
			return err
		}
		var ops []*op
		if o != nil {
			ops = append(ops, o)
		}
		err = s.commitWith(t, ops, started)
		c.late = t.late
		return err
	})
}

// commitWith commits a transaction in which closures have run, with the operations that record their outcomes and those
// that wait for the committer. The latter are taken only here, and they are settled whatever happens. An error that is
// not ErrUnusable: it is rolled back. The caller holds s.writing.
func (s *Store) commitWith(t *transaction, own []*op, started time.Time) error {
	var fx *effects
	var along *batch
	var ready bool
	id := t.tx.ID()
	err := t.commit(func() (err error) {
		if fx, err = s.effects(t.tx); err != nil {
			return err
		}
		if err := fx.doAll(own); err != nil {
			return err
		}
		for _, o := range own {
			if o.err != nil {
				return o.err
			}
		}
		if along = s.take(); along != nil {
			if err := fx.doAll(along.ops); err != nil {
				return err
			}
		}
		fx.wrote = true // by the closures, who knows
		if err := fx.complete(true); err != nil {
			return err
		}
		ready = true
		return nil
	})
	took, cause := time.Since(started), err
	switch {
	case err == nil:
		s.publish(fx, took)
		s.operations.Add(uint64(len(own)))
		if along != nil {
			s.settle(along, nil)
		}
		return nil
	case ready || t.panicked: // a panic of bbolt's may have left it locked
		err = s.failed(fx, id, err, took)
	case fx != nil:
		fx.discard()
	}
	if along != nil {
		// Without what the closures have written they may succeed. A store that is latched refuses them.
		s.settle(along, s.again(along))
	}
	if errors.Is(err, store.ErrFull) {
		return fmt.Errorf("no room: %w", cause) // ErrFull is an answer to Begin alone
	}
	return err
}

// again does the operations of a batch that was taken along by a transaction that was rolled back.
func (s *Store) again(b *batch) error {
	if err := s.refusal(false); err != nil {
		return err
	}
	return s.write(func() []*op { return b.ops })
}
