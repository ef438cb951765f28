package store_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

var (
	id        = store.ID{1, 2, 3}
	token     = store.Token{4, 5, 6}
	errClosed = errors.New("the closure failed")
)

// wrapper is a store around another.
type wrapper struct{ store.Store }

func (w wrapper) Unwrap() store.Store { return w.Store }

// opaque is one that does not tell what it wraps.
type opaque struct{ store.Store }

// newRun makes a run on a fresh store whose outcomes are the responses, which must be strings.
func newRun() (*store.Run, store.Store) {
	s := new(storetest.Memory)
	return store.NewRun(s, id, token, encode), s
}

func encode(response any, err error) (store.End, error) {
	text, ok := response.(string)
	if !ok {
		return store.End{}, errors.New("response cannot be encoded")
	}
	if err != nil {
		text += ": " + err.Error()
	}
	return store.End{State: store.Done, Outcome: []byte(text)}, nil
}

type put = func(response any, err error) (store.ID, store.Token, store.End, error)

// commits is a transaction that commits text.
func commits(text string) func(put) error {
	return func(p put) error {
		_, _, _, err := p(text, nil)
		return err
	}
}

// fails is one that puts its outcome and then ends with err.
func fails(err error) func(put) error {
	return func(p put) error {
		if _, _, _, refused := p("outcome", nil); refused != nil {
			return refused
		}
		return err
	}
}

// requireRefused requires that Commit on s does not call its transaction.
func requireRefused(t *testing.T, r *store.Run, s store.Store) error {
	t.Helper()
	called := false
	err := r.Commit(s, func(put) error {
		called = true
		return nil
	})
	require.Error(t, err)
	require.False(t, called, "the transaction was called")
	return err
}

func requireOpen(t *testing.T, r *store.Run, s store.Store) {
	t.Helper()
	require.NoError(t, r.Commit(s, commits("again")))
	requireCommitted(t, r, "again")
}

func requireCommitted(t *testing.T, r *store.Run, outcome string) {
	t.Helper()
	e, committed, unknown := r.Ended()
	require.True(t, committed)
	require.False(t, unknown)
	require.Equal(t, store.End{State: store.Done, Outcome: []byte(outcome)}, e)
}

func requireUnknown(t *testing.T, r *store.Run, s store.Store) {
	t.Helper()
	require.ErrorIs(t, requireRefused(t, r, s), store.ErrUnusable)
	_, committed, unknown := r.Ended()
	require.False(t, committed)
	require.True(t, unknown)
}

// exits calls do in a goroutine that do may end, and waits for it.
func exits(do func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		do()
	}()
	<-ended
}
