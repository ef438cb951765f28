package boltstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

var ledger = []byte("ledger")

// write is a closure that adds a line to the ledger.
func write(line string) func(tx *bbolt.Tx) (string, error) {
	return func(tx *bbolt.Tx) (string, error) {
		b, err := tx.CreateBucketIfNotExists(ledger)
		if err != nil {
			return "", err
		}
		n, err := b.NextSequence()
		if err != nil {
			return "", err
		}
		return line, b.Put(binary.BigEndian.AppendUint64(nil, n), []byte(line))
	}
}

// lines are those of the ledger.
func lines(t testing.TB, s *boltstore.Store) []string {
	t.Helper()
	all := []string{}
	require.NoError(t, s.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(ledger)
		if b == nil {
			return nil
		}
		return b.ForEach(func(_, v []byte) error {
			all = append(all, string(v))
			return nil
		})
	}))
	return all
}

// guard is the context of the run that holds a claim. Responses are strings.
func guard(s store.Store, c store.Claim) (context.Context, *store.Run) {
	r := store.NewRun(s, c.ID, c.Token, func(response any, err error) (store.End, error) {
		if err != nil {
			return done("error: " + err.Error()), nil
		}
		text, ok := response.(string)
		if !ok {
			return store.End{}, errors.New("the response is no string")
		}
		return done(text), nil
	})
	return store.NewContext(context.Background(), r), r
}

// begun is the context of a run whose claim is held.
func begun(t testing.TB, s *boltstore.Store) (context.Context, store.Claim) {
	t.Helper()
	c := newClaim()
	claim(t, s, c)
	ctx, _ := guard(s, c)
	return ctx, c
}

// transactions are the two ways to run a closure.
var transactions = map[string]func(context.Context, *boltstore.Store, func(*bbolt.Tx) (string, error)) (string, error){
	"Transact":           boltstore.Transact[string],
	"TransactRepeatable": boltstore.TransactRepeatable[string],
}

// eachWay runs a test for both.
func eachWay(t *testing.T, name string, f func(t *testing.T, transact func(context.Context, *boltstore.Store, func(*bbolt.Tx) (string, error)) (string, error))) {
	t.Helper()
	for way, transact := range transactions {
		t.Run(name+"/"+way, func(t *testing.T) { f(t, transact) })
	}
}

type transactFunc = func(context.Context, *boltstore.Store, func(*bbolt.Tx) (string, error)) (string, error)

// requireUsable requires that nothing is locked, latched, or left over.
func requireUsable(t testing.TB, s *boltstore.Store, transact transactFunc) {
	t.Helper()
	before := lines(t, s)
	ctx, c := begun(t, s)
	response, err := transact(ctx, s, write("afterwards"))
	require.NoError(t, err)
	require.Equal(t, "afterwards", response)
	require.Equal(t, append(before, "afterwards"), lines(t, s))
	require.Equal(t, "afterwards", string(get(t, s, c.ID).Outcome))
}

func TestTransact(t *testing.T) {
	eachWay(t, "write_and_outcome_are_committed_together", func(t *testing.T, transact transactFunc) {
		s, path := newStore(t)
		ctx, c := begun(t, s)
		commits := s.Stats().Commits
		response, err := transact(ctx, s, write("charged"))
		require.NoError(t, err)
		require.Equal(t, "charged", response)
		require.Equal(t, commits+1, s.Stats().Commits)
		s = open(t, copyFile(t, path))
		require.Equal(t, []string{"charged"}, lines(t, s))
		r := get(t, s, c.ID)
		require.Equal(t, store.Done, r.State)
		require.Equal(t, "charged", string(r.Outcome))
	})

	eachWay(t, "outside_of_a_guarded_call_it_is_a_plain_transaction", func(t *testing.T, transact transactFunc) {
		s, path := newStore(t)
		response, err := transact(context.Background(), s, write("a"))
		require.NoError(t, err)
		require.Equal(t, "a", response)
		boom := errors.New("boom")
		_, err = transact(context.Background(), s, func(tx *bbolt.Tx) (string, error) {
			_, _ = write("b")(tx)
			return "b", boom
		})
		require.Equal(t, boom, err)
		_, err = transact(context.Background(), s, func(tx *bbolt.Tx) (string, error) {
			_, _ = write("c")(tx)
			return "c", boltstore.Commit(boom)
		})
		require.Equal(t, boom, err)
		require.Equal(t, []string{"a", "c"}, lines(t, open(t, copyFile(t, path))))
	})

	eachWay(t, "commit_of_an_error_commits_the_writes_with_it", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		ctx, c := begun(t, s)
		declined := errors.New("declined")
		response, err := transact(ctx, s, func(tx *bbolt.Tx) (string, error) {
			_, err := write("attempt")(tx)
			return "ignored", errors.Join(err, boltstore.Commit(declined))
		})
		require.Equal(t, declined, err)
		require.Empty(t, response)
		require.Equal(t, []string{"attempt"}, lines(t, s))
		require.Equal(t, "error: declined", string(get(t, s, c.ID).Outcome))

		ctx, c = begun(t, s)
		_, err = transact(ctx, s, func(tx *bbolt.Tx) (string, error) { return "fine", boltstore.Commit(nil) })
		require.NoError(t, err)
		require.Equal(t, "fine", string(get(t, s, c.ID).Outcome))
	})

	for name, fail := range map[string]error{
		"error":                     errors.New("boom"),
		"error_that_is_unusable":    store.ErrUnusable, // of another store, say
		"error_that_is_lost":        store.ErrLost,
		"error_that_ends_a_context": context.Canceled,
	} {
		eachWay(t, "closure_that_returns_an_"+name+"_is_rolled_back", func(t *testing.T, transact transactFunc) {
			s, _ := newStore(t)
			ctx, c := begun(t, s)
			_, err := transact(ctx, s, func(tx *bbolt.Tx) (string, error) {
				_, _ = write("charged")(tx)
				return "charged", fail
			})
			require.Equal(t, fail, err)
			require.Empty(t, lines(t, s))
			require.True(t, get(t, s, c.ID).HeldBy(c.Token))
			_, err = transact(ctx, s, write("again"))
			require.NoError(t, err, "after a rollback another transaction is allowed")
			require.Equal(t, []string{"again"}, lines(t, s))
		})
	}

	for name, closure := range map[string]func(*bbolt.Tx){
		"panics":             func(*bbolt.Tx) { panic("boom") },
		"commits":            func(tx *bbolt.Tx) { _ = tx.Commit() },
		"rolls_back":         func(tx *bbolt.Tx) { _ = tx.Rollback() },
		"dereferences_a_nil": func(tx *bbolt.Tx) { _ = tx.Bucket([]byte("none")).Put(nil, nil) },
		"panics_with_nil":    func(*bbolt.Tx) { panic(nil) },
	} {
		eachWay(t, "closure_that_"+name+"_is_rolled_back_and_panics_here", func(t *testing.T, transact transactFunc) {
			s, _ := newStore(t)
			ctx, c := begun(t, s)
			require.Panics(t, func() {
				_, _ = transact(ctx, s, func(tx *bbolt.Tx) (string, error) {
					_, _ = write("charged")(tx)
					closure(tx)
					return "charged", nil
				})
			})
			require.Empty(t, lines(t, s))
			require.True(t, get(t, s, c.ID).HeldBy(c.Token))
			requireUsable(t, s, transact)
		})
	}

	eachWay(t, "panic_keeps_its_value", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		boom := errors.New("boom")
		require.PanicsWithValue(t, boom, func() {
			_, _ = transact(context.Background(), s, func(*bbolt.Tx) (string, error) { panic(boom) })
		})
	})

	eachWay(t, "closure_that_exits_is_rolled_back_and_exits_here", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		ctx, c := begun(t, s)
		returned := false
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = transact(ctx, s, func(tx *bbolt.Tx) (string, error) {
				_, _ = write("charged")(tx)
				runtime.Goexit()
				return "charged", nil
			})
			returned = true
		})
		wg.Wait()
		require.False(t, returned)
		require.Empty(t, lines(t, s))
		require.True(t, get(t, s, c.ID).HeldBy(c.Token))
		requireUsable(t, s, transact)
	})

	eachWay(t, "finished_transaction_is_of_no_use", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		var kept *bbolt.Tx
		_, err := transact(context.Background(), s, func(tx *bbolt.Tx) (string, error) {
			kept = tx
			return write("a")(tx)
		})
		require.NoError(t, err)
		_, err = kept.CreateBucket([]byte("late"))
		require.Error(t, err)
		require.Error(t, kept.Commit())
		require.Error(t, kept.Rollback())
		requireUsable(t, s, transact)
	})

	eachWay(t, "response_that_cannot_be_kept_is_rolled_back", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		ctx, c := begun(t, s)
		_, err := boltstore.Transact(ctx, s, func(tx *bbolt.Tx) (int, error) {
			_, err := write("charged")(tx)
			return 7, err
		})
		require.EqualError(t, err, "boltstore: transact: the response is no string")
		require.Empty(t, lines(t, s))
		require.True(t, get(t, s, c.ID).HeldBy(c.Token))
		requireUsable(t, s, transact)
	})

	eachWay(t, "second_transaction_after_a_commit_is_refused", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		ctx, _ := begun(t, s)
		_, err := transact(ctx, s, write("a"))
		require.NoError(t, err)
		_, err = transact(ctx, s, write("b"))
		require.ErrorContains(t, err, "boltstore: transact: ")
		require.ErrorContains(t, err, "has committed")
		require.Equal(t, []string{"a"}, lines(t, s))
	})

	eachWay(t, "transaction_within_one_is_refused", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		ctx, _ := begun(t, s)
		_, err := transact(ctx, s, func(tx *bbolt.Tx) (string, error) {
			_, err := transact(ctx, s, write("inner"))
			require.ErrorContains(t, err, "under way")
			return write("outer")(tx)
		})
		require.NoError(t, err)
		require.Equal(t, []string{"outer"}, lines(t, s))
	})

	eachWay(t, "transaction_after_the_handler_has_returned_is_refused", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		c := newClaim()
		claim(t, s, c)
		ctx, run := guard(s, c)
		_, committed, unknown := run.Ended()
		require.False(t, committed || unknown)
		_, err := transact(ctx, s, write("late"))
		require.ErrorContains(t, err, "has returned")
		require.Empty(t, lines(t, s))
	})

	eachWay(t, "another_store_than_the_calls_is_refused", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		other, _ := newStore(t)
		ctx, c := begun(t, s)
		_, err := transact(ctx, other, write("elsewhere"))
		require.ErrorContains(t, err, "another store")
		require.Empty(t, lines(t, other))
		require.True(t, get(t, s, c.ID).HeldBy(c.Token))
	})

	for name, take := range map[string]func(*testing.T, *boltstore.Store, store.Claim){
		"released_and_claimed_by_another": func(t *testing.T, s *boltstore.Store, c store.Claim) {
			finish(t, s, c, store.End{State: store.Released, Retention: time.Hour})
			claim(t, s, again(c))
		},
		"finished_elsewhere": func(t *testing.T, s *boltstore.Store, c store.Claim) { finish(t, s, c, done("other")) },
		"abandoned": func(t *testing.T, s *boltstore.Store, c store.Claim) {
			finish(t, s, c, store.End{State: store.Abandoned})
		},
	} {
		eachWay(t, "claim_that_was_"+name+"_is_lost_and_nothing_is_written", func(t *testing.T, transact transactFunc) {
			s, _ := newStore(t)
			ctx, c := begun(t, s)
			take(t, s, c)
			was := get(t, s, c.ID)
			_, err := transact(ctx, s, write("charged"))
			require.ErrorIs(t, err, store.ErrLost)
			require.Empty(t, lines(t, s))
			now := get(t, s, c.ID)
			now.Now = was.Now
			require.Equal(t, was, now)
			requireUsable(t, s, transact)
		})
	}

	eachWay(t, "context_that_has_ended_keeps_the_closure_from_running", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		ctx, _ := begun(t, s)
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		_, err := transact(ctx, s, func(*bbolt.Tx) (string, error) { panic("runs") })
		require.ErrorIs(t, err, context.Canceled)
	})

	eachWay(t, "context_that_ends_while_another_closure_runs_is_not_waited_for", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		entered, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(left)
			_, _ = transact(context.Background(), s, func(tx *bbolt.Tx) (string, error) {
				close(entered)
				<-leave
				return write("first")(tx)
			})
		}()
		<-entered
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		_, err := transact(ctx, s, func(*bbolt.Tx) (string, error) { panic("runs") })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		close(leave)
		<-left
		require.Equal(t, []string{"first"}, lines(t, s))
		requireUsable(t, s, transact)
	})

	eachWay(t, "closure_that_outlasts_its_context_commits", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		ctx, c := begun(t, s)
		ctx, cancel := context.WithCancel(ctx)
		_, err := transact(ctx, s, func(tx *bbolt.Tx) (string, error) {
			cancel()
			return write("late")(tx)
		})
		require.NoError(t, err)
		require.Equal(t, "late", string(get(t, s, c.ID).Outcome))
	})

	eachWay(t, "closure_that_deletes_the_stores_bucket_is_rolled_back", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		ctx, _ := begun(t, s)
		_, err := transact(ctx, s, func(tx *bbolt.Tx) (string, error) { return "", tx.DeleteBucket([]byte("oncerpc")) })
		require.ErrorContains(t, err, "was deleted")
		require.NotErrorIs(t, err, store.ErrUnusable)
		requireUsable(t, s, transact)
	})

	eachWay(t, "closed_store_is_unusable", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		require.NoError(t, s.Close())
		_, err := transact(context.Background(), s, write("late"))
		require.ErrorIs(t, err, store.ErrUnusable)
		require.ErrorIs(t, s.View(func(*bbolt.Tx) error { panic("reads") }), store.ErrUnusable)
	})

	eachWay(t, "store_that_closes_lets_those_commit_that_hold_claims", func(t *testing.T, transact transactFunc) {
		s, path := newStore(t)
		ctx, c := begun(t, s)
		require.ErrorContains(t, s.Close(), "1 claims are held")
		_, err := transact(ctx, s, write("charged"))
		require.NoError(t, err)
		require.NoError(t, s.Close())
		s = open(t, path)
		require.Equal(t, []string{"charged"}, lines(t, s))
		require.Equal(t, "charged", string(get(t, s, c.ID).Outcome))
	})

	for name, end := range map[string]func(){"panics": func() { panic("boom") }, "exits": runtime.Goexit} {
		eachWay(t, "commit_handler_that_"+name+"_comes_too_late", func(t *testing.T, transact transactFunc) {
			s, _ := newStore(t)
			ctx, c := begun(t, s)
			returned := false
			var wg sync.WaitGroup
			wg.Go(func() {
				defer func() { _ = recover() }()
				_, _ = transact(ctx, s, func(tx *bbolt.Tx) (string, error) {
					tx.OnCommit(end)
					return write("charged")(tx)
				})
				returned = true
			})
			wg.Wait()
			require.False(t, returned)
			require.Equal(t, "charged", string(get(t, s, c.ID).Outcome))
			requireUsable(t, s, transact)
		})
	}
}

func TestTransactAlong(t *testing.T) {
	ctx := context.Background()

	eachWay(t, "what_waits_for_the_committer_is_taken_along", func(t *testing.T, transact transactFunc) {
		s, path := newStore(t)
		running, fresh := newClaim(), newClaim()
		claim(t, s, running)
		call, c := begun(t, s)
		commits := s.Stats().Commits
		errs := make(chan error, 2)
		_, err := transact(call, s, func(tx *bbolt.Tx) (string, error) {
			go func() { _, err := s.Begin(ctx, fresh); errs <- err }()
			go func() { errs <- s.Finish(ctx, running.ID, running.Token, done("ran")) }()
			s.AwaitQueued(2)
			return write("charged")(tx)
		})
		require.NoError(t, err)
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		require.Equal(t, commits+1, s.Stats().Commits)
		s = open(t, copyFile(t, path))
		require.Equal(t, "charged", string(get(t, s, c.ID).Outcome))
		require.Equal(t, "ran", string(get(t, s, running.ID).Outcome))
		require.Equal(t, store.Abandoned, get(t, s, fresh.ID).State)
	})

	eachWay(t, "closure_that_fails_has_taken_nothing", func(t *testing.T, transact transactFunc) {
		s, _ := newStore(t)
		fresh := newClaim()
		began := make(chan error, 1)
		boom := errors.New("boom")
		_, err := transact(ctx, s, func(tx *bbolt.Tx) (string, error) {
			go func() { _, err := s.Begin(ctx, fresh); began <- err }()
			s.AwaitQueued(1)
			return "", boom
		})
		require.Equal(t, boom, err)
		require.NoError(t, <-began)
		require.True(t, get(t, s, fresh.ID).HeldBy(fresh.Token))
	})

	eachWay(t, "without_room_the_closure_is_rolled_back_and_the_others_are_settled", func(t *testing.T, transact transactFunc) {
		s, path := newStore(t)
		running, fresh := newClaim(), newClaim()
		claim(t, s, running)
		call, c := begun(t, s)
		writes := 0
		s.OnWrite(func(writeAt func([]byte, int64) (int, error), b []byte, off int64) (int, error) {
			if writes++; writes == 1 {
				return 0, noRoom(syscall.ENOSPC) // the closure's commit; the next one fits
			}
			return writeAt(b, off)
		})
		errs := make(chan error, 2)
		_, err := transact(call, s, func(tx *bbolt.Tx) (string, error) {
			go func() { _, err := s.Begin(ctx, fresh); errs <- err }()
			go func() { errs <- s.Finish(ctx, running.ID, running.Token, done("ran")) }()
			s.AwaitQueued(2)
			return write("charged")(tx)
		})
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.NotErrorIs(t, err, store.ErrUnusable)
		require.NotErrorIs(t, err, store.ErrFull)
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		require.Empty(t, lines(t, s))
		require.True(t, get(t, s, c.ID).HeldBy(c.Token))
		require.True(t, get(t, s, fresh.ID).HeldBy(fresh.Token))
		require.Equal(t, "ran", string(get(t, s, running.ID).Outcome))
		_, err = transact(call, s, write("again"))
		require.NoError(t, err)
		s = open(t, copyFile(t, path))
		require.Equal(t, []string{"again"}, lines(t, s))
	})

	eachWay(t, "commit_whose_end_is_not_known_latches_the_store", func(t *testing.T, transact transactFunc) {
		for _, visible := range []bool{false, true} {
			s, path := newStore(t)
			running := newClaim()
			claim(t, s, running)
			call, c := begun(t, s)
			s.OnWrite(func(writeAt func([]byte, int64) (int, error), b []byte, off int64) (int, error) {
				if off > 8<<10 {
					return writeAt(b, off)
				}
				if visible {
					_, _ = writeAt(b, off)
				}
				return 0, syscall.EIO
			})
			along, waited := make(chan error, 1), make(chan error, 1)
			runs := 0
			go func() { waited <- s.Wait(ctx, c.ID, c.Token) }()
			_, err := transact(call, s, func(tx *bbolt.Tx) (string, error) {
				runs++
				go func() { along <- s.Finish(ctx, running.ID, running.Token, done("ran")) }()
				s.AwaitQueued(1)
				return write("charged")(tx)
			})
			require.ErrorIs(t, err, store.ErrUnusable)
			require.ErrorIs(t, err, syscall.EIO)
			require.ErrorIs(t, <-along, store.ErrUnusable)
			require.ErrorIs(t, <-waited, store.ErrUnusable)
			require.Equal(t, 1, runs)
			require.ErrorIs(t, s.View(func(*bbolt.Tx) error { panic("reads") }), store.ErrUnusable)
			_, err = transact(call, s, func(*bbolt.Tx) (string, error) { panic("runs again") })
			require.ErrorIs(t, err, store.ErrUnusable)
			_, err = transact(ctx, s, func(*bbolt.Tx) (string, error) { panic("runs") })
			require.ErrorIs(t, err, store.ErrUnusable)
			require.Error(t, s.Finish(ctx, c.ID, c.Token, done("")))
			require.NoError(t, s.Close())

			s = open(t, path)
			if visible {
				require.Equal(t, []string{"charged"}, lines(t, s))
				require.Equal(t, "charged", string(get(t, s, c.ID).Outcome))
				require.Equal(t, "ran", string(get(t, s, running.ID).Outcome))
			} else {
				require.Empty(t, lines(t, s))
				require.Equal(t, store.Abandoned, get(t, s, c.ID).State)
				require.Equal(t, store.Abandoned, get(t, s, running.ID).State)
			}
		}
	})
}

// callAll makes n guarded calls of 64 callers, every third closure failing, and counts the runs of each closure.
func callAll(t *testing.T, s *boltstore.Store, n int, volatile bool, transact transactFunc) (runs []atomic.Int32, claims []store.Claim) {
	t.Helper()
	ctx := context.Background()
	boom := errors.New("boom")
	runs, claims = make([]atomic.Int32, n), make([]store.Claim, n)
	var next atomic.Int32
	errs := make(chan error, 64)
	call := func(i int) error {
		c := newClaim()
		c.Volatile, claims[i] = volatile, c
		if r, err := s.Begin(ctx, c); err != nil || !r.HeldBy(c.Token) {
			return errors.Join(err, errors.New("not claimed"))
		}
		call, run := guard(s, c)
		_, err := transact(call, s, func(tx *bbolt.Tx) (string, error) {
			runs[i].Add(1)
			line := string(c.ID[:])
			if _, err := write(line)(tx); err != nil {
				return "", err
			}
			if i%3 == 2 {
				return "", boom
			}
			return line, nil
		})
		_, committed, _ := run.Ended()
		switch {
		case i%3 != 2 && (err != nil || !committed):
			return errors.Join(err, errors.New("not committed"))
		case i%3 == 2 && err != boom: //nolint:errorlint // as it is
			return errors.Join(err, errors.New("did not fail"))
		case i%3 == 2:
			return s.Finish(ctx, c.ID, c.Token, store.End{State: store.Released, Retention: time.Hour})
		}
		return nil
	}
	for range 64 {
		go func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := call(i); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range 64 {
		require.NoError(t, <-errs)
	}
	return runs, claims
}

// requireCommittedOnce requires that two of three closures were committed, once.
func requireCommittedOnce(t *testing.T, s *boltstore.Store, claims []store.Claim) {
	t.Helper()
	times := map[string]int{}
	for _, line := range lines(t, s) {
		times[line]++
	}
	for i, c := range claims {
		want, state := 1, store.Done
		if i%3 == 2 {
			want, state = 0, store.Released
		}
		require.Equal(t, want, times[string(c.ID[:])])
		require.Equal(t, state, get(t, s, c.ID).State)
	}
}

func TestCommitsOfTransactions(t *testing.T) {
	const n = 1500

	t.Run("closures_run_once_and_carry_the_claims_of_others_along", func(t *testing.T) {
		s, path := newStore(t)
		before := s.Stats().Commits
		runs, claims := callAll(t, s, n, false, boltstore.Transact[string])
		commits := s.Stats().Commits - before
		t.Logf("%d commits for %d calls", commits, n)
		require.Less(t, float64(commits), 1.2*n)
		for i := range runs {
			require.EqualValues(t, 1, runs[i].Load())
		}
		requireCommittedOnce(t, s, claims)
		requireCommittedOnce(t, open(t, copyFile(t, path)), claims)
	})

	for _, volatile := range []bool{true, false} {
		name := "repeatable_closures_share_commits"
		if !volatile {
			name += "_with_durable_claims_too"
		}
		t.Run(name, func(t *testing.T) {
			s, path := newStore(t)
			before := s.Stats().Commits
			runs, claims := callAll(t, s, n, volatile, boltstore.TransactRepeatable[string])
			commits := s.Stats().Commits - before
			var all int32
			for i := range runs {
				all += runs[i].Load()
			}
			t.Logf("%d commits and %d runs of closures for %d calls", commits, all, n)
			require.Less(t, float64(commits), 0.2*n)
			requireCommittedOnce(t, s, claims)
			requireCommittedOnce(t, open(t, copyFile(t, path)), claims)
		})
	}
}
