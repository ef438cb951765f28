package boltstore_test

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

func newVolatile() store.Claim {
	c := newClaim()
	c.Volatile = true
	return c
}

func TestVolatileClaim(t *testing.T) {
	ctx := context.Background()

	t.Run("costs_no_commit_and_vanishes_in_a_crash", func(t *testing.T) {
		s, path := newStore(t)
		was := s.Stats()
		c := newVolatile()
		r := claim(t, s, c)
		require.Equal(t, 1, r.Attempt)
		require.Equal(t, r.Started, r.First)
		require.Equal(t, r.Fingerprint, get(t, s, c.ID).Fingerprint)
		require.Equal(t, was.Commits, s.Stats().Commits)
		require.Equal(t, 1, s.Stats().Running)
		for _, volatile := range []bool{true, false} {
			d := again(c)
			d.Volatile = volatile
			r, err := s.Begin(ctx, d)
			require.NoError(t, err)
			require.True(t, r.HeldBy(c.Token))
		}
		claim(t, s, c) // sent again
		listed := 0
		for r, err := range s.List(ctx, store.Query{State: store.Running}) {
			require.NoError(t, err)
			require.Equal(t, c.ID, r.ID)
			listed++
		}
		require.Equal(t, 1, listed)
		require.Equal(t, store.Absent, get(t, open(t, copyFile(t, path)), c.ID).State)
		require.ErrorContains(t, s.Close(), "1 claims are held")
		finish(t, s, c, done("x"))
		require.NoError(t, s.Close())
		require.Equal(t, "x", string(get(t, open(t, path), c.ID).Outcome))
	})

	t.Run("after_a_release_leaves_the_release_behind_in_a_crash", func(t *testing.T) {
		s, path := newStore(t)
		c := newClaim()
		claim(t, s, c)
		finish(t, s, c, store.End{State: store.Released, Outcome: []byte("busy"), Retention: time.Hour})
		first := get(t, s, c.ID).First
		commits := s.Stats().Commits
		c = again(c)
		c.Volatile = true
		r := claim(t, s, c)
		require.Equal(t, first, r.First)
		require.Equal(t, commits, s.Stats().Commits)
		after := get(t, open(t, copyFile(t, path)), c.ID)
		require.Equal(t, store.Released, after.State)
		require.Equal(t, "busy", string(after.Outcome))
		finish(t, s, c, done("x"))
		after = get(t, open(t, copyFile(t, path)), c.ID)
		require.Equal(t, "x", string(after.Outcome))
	})

	t.Run("that_takes_over_an_abandoned_one_is_durable", func(t *testing.T) {
		s, path := newStore(t)
		c := newClaim()
		claim(t, s, c)
		finish(t, s, c, store.End{State: store.Abandoned})
		c = again(c)
		c.Volatile, c.TakeoverBelow = true, 2
		require.Equal(t, 2, claim(t, s, c).Attempt)
		r := get(t, open(t, copyFile(t, path)), c.ID)
		require.Equal(t, store.Abandoned, r.State)
		require.Equal(t, 2, r.Attempt)
	})

	t.Run("that_ends_abandoned_is_written", func(t *testing.T) {
		s, path := newStore(t)
		c, other := newVolatile(), newClaim()
		claim(t, s, c)
		claim(t, s, other)
		finish(t, s, c, store.End{State: store.Abandoned})
		s = open(t, copyFile(t, path))
		require.Equal(t, store.Abandoned, get(t, s, c.ID).State)
		require.Equal(t, store.Abandoned, get(t, s, other.ID).State)
		require.NoError(t, s.Resolve(ctx, c.ID, c.Token, again(c).Token, done("resolved")))
		require.Equal(t, "resolved", string(get(t, s, c.ID).Outcome))
	})

	t.Run("stands_until_the_commit_of_its_end_is_durable", func(t *testing.T) {
		s, _ := newStore(t)
		c := newVolatile()
		claim(t, s, c)
		visible, end := make(chan struct{}), make(chan struct{})
		finished := make(chan error, 1)
		call, _ := guard(s, c)
		go func() {
			_, err := boltstore.Transact(call, s, func(tx *bbolt.Tx) (string, error) {
				tx.OnCommit(func() { close(visible); <-end })
				return "x", nil
			})
			finished <- err
		}()
		<-visible // bbolt shows the outcome
		for _, volatile := range []bool{true, false} {
			require.True(t, get(t, s, c.ID).HeldBy(c.Token))
			d := again(c)
			d.Volatile = volatile
			r, err := s.Begin(ctx, d)
			require.NoError(t, err)
			require.True(t, r.HeldBy(c.Token))
		}
		claim(t, s, newVolatile()) // does not wait for the commit
		close(end)
		require.NoError(t, <-finished)
		r, err := s.Begin(ctx, again(c))
		require.NoError(t, err)
		require.Equal(t, "x", string(r.Outcome))
	})

	t.Run("stands_when_the_commit_of_its_end_fails", func(t *testing.T) {
		s, _ := newStore(t)
		c := newVolatile()
		claim(t, s, c)
		full := true
		s.OnWrite(func(writeAt func([]byte, int64) (int, error), b []byte, off int64) (int, error) {
			if full {
				return 0, noRoom(syscall.ENOSPC)
			}
			return writeAt(b, off)
		})
		require.Error(t, s.Finish(ctx, c.ID, c.Token, done("x")))
		require.True(t, get(t, s, c.ID).HeldBy(c.Token))
		full = false
		finish(t, s, c, done("x"))
		require.Equal(t, "x", string(get(t, s, c.ID).Outcome))
	})

	t.Run("waits_for_the_transaction_that_works_on_its_id", func(t *testing.T) {
		s, path := newStore(t)
		durable := newClaim()
		visible, end := holdMeta(s)
		began := make(chan store.Record, 2)
		go func() { r, _ := s.Begin(ctx, durable); began <- r }()
		<-visible
		volatile := again(durable)
		volatile.Volatile = true
		go func() { r, _ := s.Begin(ctx, volatile); began <- r }()
		s.AwaitQueued(1)
		end <- nil
		for range 2 {
			r := <-began
			require.True(t, r.HeldBy(durable.Token))
		}
		require.Equal(t, store.Abandoned, get(t, open(t, copyFile(t, path)), durable.ID).State)
	})

	t.Run("is_refused_by_a_store_that_closes", func(t *testing.T) {
		s, _ := newStore(t)
		c := newVolatile()
		claim(t, s, c)
		require.Error(t, s.Close())
		_, err := s.Begin(ctx, newVolatile())
		require.ErrorIs(t, err, store.ErrUnusable)
		finish(t, s, c, done("x"))
		require.NoError(t, s.Close())
	})

	t.Run("is_held_by_one_at_a_time", func(t *testing.T) {
		s, _ := newStore(t)
		ids := make([]store.Claim, 20)
		for i := range ids {
			ids[i] = newVolatile()
		}
		var mu sync.Mutex
		held, runs := map[store.ID]bool{}, map[store.ID]int{}
		var wg sync.WaitGroup
		for g := range 16 {
			wg.Go(func() {
				for i := range 60 {
					c := again(ids[(g+i)%len(ids)])
					c.Volatile = (g+i)%3 > 0
					r, err := s.Begin(ctx, c)
					if err != nil || !r.HeldBy(c.Token) {
						continue
					}
					mu.Lock()
					twice := held[c.ID] || runs[c.ID] < 0
					held[c.ID] = true
					runs[c.ID]++
					n := runs[c.ID]
					held[c.ID] = true
					mu.Unlock()
					if twice {
						t.Errorf("two hold one claim, or one came after the outcome")
					}
					call, _ := guard(s, c)
					mu.Lock()
					held[c.ID] = false
					if n == 3 {
						runs[c.ID] = -1000 // no run may come after the outcome
					}
					mu.Unlock()
					if n == 3 {
						_, err = boltstore.Transact(call, s, write("x"))
					} else {
						err = s.Finish(ctx, c.ID, c.Token, store.End{State: store.Released, Retention: time.Hour})
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.Len(t, lines(t, s), len(ids))
		require.Zero(t, s.Stats().Running)
	})
}
