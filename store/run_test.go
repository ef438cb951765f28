package store_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func TestFromContext(t *testing.T) {
	t.Run("run_is_in_the_context", func(t *testing.T) {
		r, _ := newRun()
		got, ok := store.FromContext(store.NewContext(t.Context(), r))
		require.True(t, ok)
		require.Same(t, r, got)
	})
	t.Run("no_run_outside_of_a_guarded_call", func(t *testing.T) {
		_, ok := store.FromContext(t.Context())
		require.False(t, ok)
	})
	t.Run("inner_run_hides_the_outer", func(t *testing.T) {
		outer, _ := newRun()
		inner, _ := newRun()
		got, _ := store.FromContext(store.NewContext(store.NewContext(t.Context(), outer), inner))
		require.Same(t, inner, got)
	})
}

func TestCommit(t *testing.T) {
	t.Run("put_gives_what_is_to_be_written", func(t *testing.T) {
		r, s := newRun()
		require.NoError(t, r.Commit(s, func(p put) error {
			gotID, gotToken, e, err := p("declined", errors.New("no funds"))
			require.NoError(t, err)
			require.Equal(t, id, gotID)
			require.Equal(t, token, gotToken)
			require.Equal(t, "declined: no funds", string(e.Outcome))
			return nil
		}))
		requireCommitted(t, r, "declined: no funds")
	})
	t.Run("nothing_is_committed_without_a_transaction", func(t *testing.T) {
		r, _ := newRun()
		requireNothing(t, r)
	})
	t.Run("refuses_another_store", func(t *testing.T) {
		r, s := newRun()
		_ = requireRefused(t, r, new(storetest.Memory))
		_ = requireRefused(t, r, nil)
		requireOpen(t, r, s)
	})
	t.Run("accepts_a_store_that_the_runs_store_wraps", func(t *testing.T) {
		inner := new(storetest.Memory)
		middle := &wrapper{inner}
		outer := &wrapper{middle}
		for _, s := range []store.Store{outer, middle, inner} {
			requireOpen(t, store.NewRun(outer, id, token, encode), s)
		}
		_ = requireRefused(t, store.NewRun(inner, id, token, encode), outer)
		_ = requireRefused(t, store.NewRun(&opaque{inner}, id, token, encode), inner)
	})
	t.Run("refuses_a_second_transaction_at_the_same_time", func(t *testing.T) {
		r, s := newRun()
		require.NoError(t, r.Commit(s, func(p put) error {
			_ = requireRefused(t, r, s)
			err := commits("first")(p)
			_ = requireRefused(t, r, s)
			return err
		}))
		requireCommitted(t, r, "first")
	})
	t.Run("one_of_many_at_once_is_called", func(t *testing.T) {
		r, s := newRun()
		var all sync.WaitGroup
		errs := make([]error, 32)
		for i := range errs {
			all.Go(func() { errs[i] = r.Commit(s, commits(fmt.Sprint(i))) })
		}
		all.Wait()
		var committed []int
		for i, err := range errs {
			if err == nil {
				committed = append(committed, i)
			}
		}
		require.Len(t, committed, 1)
		requireCommitted(t, r, fmt.Sprint(committed[0]))
	})
	t.Run("another_is_allowed_after_a_rollback", func(t *testing.T) {
		r, s := newRun()
		require.ErrorIs(t, r.Commit(s, fails(errClosed)), errClosed)
		require.ErrorIs(t, r.Commit(s, fails(store.ErrLost)), store.ErrLost)
		require.ErrorIs(t, r.Commit(s, func(put) error { return errClosed }), errClosed)
		requireOpen(t, r, s)
	})
	t.Run("rolled_back_outcome_is_not_kept", func(t *testing.T) {
		r, s := newRun()
		require.ErrorIs(t, r.Commit(s, fails(errClosed)), errClosed)
		requireNothing(t, r)
	})
	t.Run("refuses_another_after_the_commit", func(t *testing.T) {
		r, s := newRun()
		require.NoError(t, r.Commit(s, commits("first")))
		require.NotErrorIs(t, requireRefused(t, r, s), store.ErrUnusable)
		requireCommitted(t, r, "first")
	})
	t.Run("refuses_another_after_an_unknown_end", func(t *testing.T) {
		r, s := newRun()
		latched := fmt.Errorf("bolt: sync: %w", store.ErrUnusable)
		require.ErrorIs(t, r.Commit(s, fails(latched)), store.ErrUnusable)
		requireUnknown(t, r, s)
	})
	t.Run("refuses_after_the_handler_has_returned", func(t *testing.T) {
		r, s := newRun()
		requireNothing(t, r)
		_ = requireRefused(t, r, s)
		requireNothing(t, r)
	})
	t.Run("transaction_without_an_outcome_is_an_error", func(t *testing.T) {
		r, s := newRun()
		require.Error(t, r.Commit(s, func(put) error { return nil }))
		requireOpen(t, r, s)
	})
	t.Run("response_that_cannot_be_encoded_rolls_back", func(t *testing.T) {
		r, s := newRun()
		require.ErrorContains(t, r.Commit(s, func(p put) error {
			_, _, _, err := p(42, nil)
			return err
		}), "cannot be encoded")
		requireOpen(t, r, s)
	})
	t.Run("last_put_counts", func(t *testing.T) {
		r, s := newRun()
		require.NoError(t, r.Commit(s, func(p put) error { // a closure that runs more than once puts more than once
			return errors.Join(commits("first")(p), commits("second")(p))
		}))
		requireCommitted(t, r, "second")
	})
}

func TestCommitPanics(t *testing.T) {
	t.Run("panic_before_put_is_rolled_back", func(t *testing.T) {
		r, s := newRun()
		require.PanicsWithValue(t, "oops", func() { _ = r.Commit(s, func(put) error { panic("oops") }) })
		requireOpen(t, r, s)
	})
	t.Run("panic_in_put_is_rolled_back", func(t *testing.T) {
		s := new(storetest.Memory)
		r := store.NewRun(s, id, token, func(any, error) (store.End, error) { panic("oops") })
		require.PanicsWithValue(t, "oops", func() { _ = r.Commit(s, commits("outcome")) })
		requireNothing(t, r)
	})
	t.Run("panic_after_put_is_unknown", func(t *testing.T) {
		r, s := newRun()
		require.PanicsWithValue(t, "oops", func() {
			_ = r.Commit(s, func(p put) error {
				require.NoError(t, commits("outcome")(p))
				panic("oops")
			})
		})
		requireUnknown(t, r, s)
	})
	t.Run("exit_before_put_is_rolled_back", func(t *testing.T) {
		r, s := newRun()
		exits(func() {
			_ = r.Commit(s, func(put) error {
				runtime.Goexit()
				return nil
			})
		})
		requireOpen(t, r, s)
	})
	t.Run("exit_after_put_is_unknown", func(t *testing.T) {
		r, s := newRun()
		exits(func() {
			_ = r.Commit(s, func(p put) error {
				_ = commits("outcome")(p)
				runtime.Goexit()
				return nil
			})
		})
		requireUnknown(t, r, s)
	})
	t.Run("panic_after_a_put_that_failed_is_rolled_back", func(t *testing.T) {
		r, s := newRun()
		require.PanicsWithValue(t, "oops", func() {
			_ = r.Commit(s, func(p put) error {
				_, _, _, err := p(42, nil)
				require.Error(t, err)
				panic("oops")
			})
		})
		requireOpen(t, r, s)
	})
}

func TestEnded(t *testing.T) {
	t.Run("waits_for_a_commit_under_way", func(t *testing.T) {
		for _, end := range []error{nil, errClosed, store.ErrUnusable} {
			synctest.Test(t, func(t *testing.T) {
				r, s := newRun()
				goOn := make(chan struct{})
				go func() {
					_ = r.Commit(s, func(p put) error {
						<-goOn
						return fails(end)(p)
					})
				}()
				synctest.Wait()
				ended := make(chan struct{})
				var committed, unknown bool
				go func() {
					defer close(ended)
					_, committed, unknown = r.Ended()
				}()
				requirePending(t, ended)
				close(goOn)
				<-ended
				require.Equal(t, end == nil, committed)
				require.Equal(t, errors.Is(end, store.ErrUnusable), unknown)
			})
		}
	})
	t.Run("refuses_a_commit_from_then_on", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, s := newRun()
			goOn, rolledBack, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			go func() {
				defer close(rolledBack)
				_ = r.Commit(s, func(put) error {
					<-goOn
					return errClosed
				})
			}()
			synctest.Wait()
			go func() {
				defer close(ended)
				r.Ended()
			}()
			requirePending(t, ended)
			_ = requireRefused(t, r, s)
			close(goOn)
			<-rolledBack
			_ = requireRefused(t, r, s)
			<-ended
			requireNothing(t, r)
		})
	})
	t.Run("answers_the_same_again", func(t *testing.T) {
		r, s := newRun()
		require.NoError(t, r.Commit(s, commits("outcome")))
		requireCommitted(t, r, "outcome")
		requireCommitted(t, r, "outcome")
	})
}

func requireNothing(t *testing.T, r *store.Run) {
	t.Helper()
	e, committed, unknown := r.Ended()
	require.Zero(t, e)
	require.False(t, committed)
	require.False(t, unknown)
}

// requirePending requires that nothing in the bubble can go on, and that ended is open.
func requirePending(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	synctest.Wait()
	select {
	case <-ended:
		require.FailNow(t, "Ended did not wait")
	default:
	}
}
