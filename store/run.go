package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Run is the guarded call under way: what a store with transactions needs to commit the call's outcome together with
// the business write. The interceptor puts it into the handler's context, and such a store takes it out by
// [FromContext]. Its methods may be called concurrently.
type Run struct {
	store  Store
	id     ID
	token  Token
	encode func(response any, err error) (End, error)

	mu     sync.Mutex
	idle   sync.Cond // no Commit is under way
	state  runState
	closed bool
	end    End
}

type runState uint8

const (
	runOpen       runState = iota // nothing committed
	runCommitting                 // a Commit is under way
	runCommitted                  // the outcome is end
	runUnknown                    // the outcome may have been committed
)

// NewRun makes the run of the claim that token holds on id in s. encode turns what a handler would return into the end
// that a store records; its error refuses the commit. It is called by one goroutine at a time.
func NewRun(s Store, id ID, token Token, encode func(response any, err error) (End, error)) *Run {
	r := &Run{store: s, id: id, token: token, encode: encode}
	r.idle.L = &r.mu
	return r
}

type runKey struct{}

// NewContext puts r into a handler's context.
func NewContext(ctx context.Context, r *Run) context.Context {
	return context.WithValue(ctx, runKey{}, r)
}

// FromContext returns the guarded call under way, and false outside of one.
func FromContext(ctx context.Context) (*Run, bool) {
	r, ok := ctx.Value(runKey{}).(*Run)
	return r, ok
}

// Commit brackets a transaction of the store s. tx runs the transaction; inside it, before it commits, it calls put
// with what the handler would return, and writes the end that put gives under the ID and token that put gives, if the
// claim still stands under that token. An error from put must roll the transaction back.
//
// What tx returns says what became of it: nil, it is committed, and the run's outcome is set; an error that is
// [ErrUnusable], it is not known; any other error, or a panic or exit before put has returned, it is rolled back, and
// Commit may be called again. A panic or exit after put has returned leaves it not known.
//
// Commit refuses, without calling tx, a store other than the one that holds the claim, a second transaction at the
// same time, one after the outcome was committed or may have been, and one after the handler has returned.
func (r *Run) Commit(s Store, tx func(put func(response any, err error) (ID, Token, End, error)) error) (err error) {
	if err := r.enter(s); err != nil {
		return err
	}
	var end End
	put := false
	next := runUnknown // what a panic or an exit leaves behind, once put was called
	defer func() {
		if !put && next == runUnknown {
			next = runOpen
		}
		r.leave(next, end)
	}()
	err = tx(func(response any, err error) (ID, Token, End, error) {
		e, err := r.encode(response, err)
		if err != nil {
			return ID{}, Token{}, End{}, err
		}
		end, put = e, true
		return r.id, r.token, e, nil
	})
	switch {
	case err == nil && !put:
		next = runOpen
		return errors.New("store: transaction ended without its outcome")
	case err == nil:
		next = runCommitted
	case !errors.Is(err, ErrUnusable):
		next = runOpen
	}
	return err
}

func (r *Run) enter(s Store) error {
	if !same(r.store, s) {
		return errors.New("store: the claim of this call is held by another store")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errors.New("store: the handler of this call has returned")
	}
	switch r.state {
	case runCommitting:
		return errors.New("store: another transaction of this call is under way")
	case runCommitted:
		return errors.New("store: this call has committed its outcome")
	case runUnknown:
		return fmt.Errorf("store: an earlier transaction of this call: %w", ErrUnusable)
	}
	r.state = runCommitting
	return nil
}

func (r *Run) leave(next runState, end End) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = next
	if next == runCommitted {
		r.end = end
	}
	r.idle.Broadcast()
}

// same reports whether s is r or one that r wraps.
func same(r, s Store) bool {
	for r != nil {
		if r == s {
			return true
		}
		w, ok := r.(interface{ Unwrap() Store })
		if !ok {
			return false
		}
		r = w.Unwrap()
	}
	return false
}

// Ended is called once the handler has returned. It waits for a transaction that is still under way in a goroutine of
// the handler's, and from then on Commit is refused. committed: the outcome is e, and it is recorded. unknown: a
// transaction ended so that nobody knows whether it is.
func (r *Run) Ended() (e End, committed, unknown bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for r.state == runCommitting {
		r.idle.Wait()
	}
	return r.end, r.state == runCommitted, r.state == runUnknown
}
