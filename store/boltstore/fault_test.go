package boltstore_test

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// noRoom is what the system says when a write finds no room.
func noRoom(errno syscall.Errno) error {
	return &fs.PathError{Op: "write", Path: "store.db", Err: errno}
}

func TestCommitFailure(t *testing.T) {
	ctx := context.Background()

	t.Run("failed_write_latches_the_store_until_reopened", func(t *testing.T) {
		s, path := newStore(t)
		kept, running, c := newClaim(), newClaim(), newClaim()
		claim(t, s, kept)
		finish(t, s, kept, done("kept"))
		claim(t, s, running)
		waited := make(chan error, 1)
		go func() { waited <- s.Wait(ctx, running.ID, running.Token) }()

		s.OnWrite(func(func([]byte, int64) (int, error), []byte, int64) (int, error) { return 0, syscall.EIO })
		_, err := s.Begin(ctx, c)
		require.ErrorIs(t, err, store.ErrUnusable)
		require.ErrorIs(t, err, syscall.EIO)

		require.ErrorIs(t, <-waited, store.ErrUnusable)
		_, err = s.Begin(ctx, again(kept))
		require.ErrorIs(t, err, store.ErrUnusable, "a replay is refused too")
		_, err = s.Get(ctx, kept.ID)
		require.ErrorIs(t, err, store.ErrUnusable)
		for _, err := range s.List(ctx, store.Query{}) {
			if !errors.Is(err, store.ErrUnusable) {
				require.NoError(t, err)
			}
		}
		require.ErrorContains(t, s.Close(), "1 claims are held")
		require.ErrorIs(t, s.Finish(ctx, running.ID, running.Token, done("")), store.ErrUnusable)
		require.NoError(t, s.Close(), "its run has ended")

		s = open(t, path)
		require.Equal(t, store.Absent, get(t, s, c.ID).State)
		require.Equal(t, store.Done, get(t, s, kept.ID).State)
		require.Equal(t, store.Abandoned, get(t, s, running.ID).State)
	})

	t.Run("commit_that_can_be_read_but_failed_latches_the_store", func(t *testing.T) {
		s, path := newStore(t)
		c := newClaim()
		s.OnWrite(func(writeAt func([]byte, int64) (int, error), b []byte, off int64) (int, error) {
			n, err := writeAt(b, off)
			if off <= 8<<10 { // a meta page
				return n, noRoom(syscall.ENOSPC)
			}
			return n, err
		})
		_, err := s.Begin(ctx, c)
		require.ErrorIs(t, err, store.ErrUnusable)
		require.NotErrorIs(t, err, store.ErrFull)
		_, err = s.Get(ctx, c.ID)
		require.ErrorIs(t, err, store.ErrUnusable)
		require.NoError(t, s.Close(), "no claim is held")
		require.Equal(t, store.Abandoned, get(t, open(t, path), c.ID).State, "here it had been written")
	})

	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		t.Run("no_room_refuses_claims_and_nothing_else/"+errno.Error(), func(t *testing.T) {
			s, path := newStore(t)
			kept, running, c := newClaim(), newClaim(), newClaim()
			claim(t, s, kept)
			finish(t, s, kept, done("kept"))
			claim(t, s, running)
			full := true
			s.OnWrite(func(writeAt func([]byte, int64) (int, error), b []byte, off int64) (int, error) {
				if full {
					return 0, noRoom(errno)
				}
				return writeAt(b, off)
			})
			_, err := s.Begin(ctx, c)
			require.ErrorIs(t, err, store.ErrFull)
			err = s.Finish(ctx, running.ID, running.Token, done("late"))
			require.Error(t, err)
			require.NotErrorIs(t, err, store.ErrFull)
			require.NotErrorIs(t, err, store.ErrUnusable)
			r, err := s.Begin(ctx, again(kept))
			require.NoError(t, err)
			require.Equal(t, "kept", string(r.Outcome))
			require.Equal(t, store.Absent, get(t, s, c.ID).State)

			full = false
			claim(t, s, c)
			finish(t, s, running, done("late"))
			finish(t, s, c, done("c"))
			require.NoError(t, s.Close())
			edit(t, path, func(tx *bbolt.Tx) error {
				last, _ := tx.Bucket([]byte("oncerpc")).Bucket([]byte("running")).Cursor().Last()
				require.Equal(t, []byte{0, 0, 0, 1}, last, "the slot of the claim that was refused is used again")
				return nil
			})
			s = open(t, path)
			require.Equal(t, "late", string(get(t, s, running.ID).Outcome))
			require.Equal(t, "c", string(get(t, s, c.ID).Outcome))
		})
	}

	t.Run("runs_end_in_a_second_commit_when_claims_find_no_room", func(t *testing.T) {
		s, _ := newStore(t)
		running, c := newClaim(), newClaim()
		claim(t, s, running)
		entered, leave := make(chan struct{}), make(chan struct{})
		writes := 0
		s.OnWrite(func(writeAt func([]byte, int64) (int, error), b []byte, off int64) (int, error) {
			writes++
			switch writes {
			case 1: // the commit of a first claim: holds up what follows
				close(entered)
				<-leave
			case 2, 3, 4, 5, 6, 7, 8, 9:
				if off <= 8<<10 {
					writes = 100
				}
			case 101:
				return 0, noRoom(syscall.ENOSPC)
			}
			return writeAt(b, off)
		})
		errs := make(chan error, 3)
		go func() { _, err := s.Begin(ctx, newClaim()); errs <- err }()
		<-entered
		began := make(chan error, 1)
		go func() { _, err := s.Begin(ctx, c); began <- err }()
		go func() { errs <- s.Finish(ctx, running.ID, running.Token, done("done")) }()
		s.AwaitQueued(2)
		close(leave)
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		require.ErrorIs(t, <-began, store.ErrFull)
		require.Equal(t, store.Done, get(t, s, running.ID).State)
		require.Equal(t, store.Absent, get(t, s, c.ID).State)
		require.EqualValues(t, 3, s.Stats().Commits)
	})
}

func TestCommits(t *testing.T) {
	ctx := context.Background()

	t.Run("callers_at_the_same_time_share_commits", func(t *testing.T) {
		s, _ := newStore(t)
		const callers, each = 64, 10
		errs := make(chan error, callers)
		for range callers {
			go func() {
				for range each {
					c := newClaim()
					if _, err := s.Begin(ctx, c); err != nil {
						errs <- err
						return
					}
					if err := s.Finish(ctx, c.ID, c.Token, done("x")); err != nil {
						errs <- err
						return
					}
				}
				errs <- nil
			}()
		}
		for range callers {
			require.NoError(t, <-errs)
		}
		st := s.Stats()
		require.EqualValues(t, 2*callers*each, st.Operations)
		require.Less(t, st.Commits, st.Operations/4)
		require.Equal(t, callers*each, st.Done)
	})

	t.Run("duplicates_and_lost_tokens_need_none", func(t *testing.T) {
		s, _ := newStore(t)
		held, ended, released := newClaim(), newClaim(), newClaim()
		claim(t, s, held)
		claim(t, s, ended)
		finish(t, s, ended, done("x"))
		claim(t, s, released)
		finish(t, s, released, store.End{State: store.Released, Retention: time.Hour})
		commits := s.Stats().Commits
		for range 10 {
			_, err := s.Begin(ctx, again(held))
			require.NoError(t, err)
			_, err = s.Begin(ctx, again(ended))
			require.NoError(t, err)
			other := again(released)
			other.Fingerprint = []byte("other")
			r, err := s.Begin(ctx, other)
			require.NoError(t, err)
			require.Equal(t, store.Released, r.State)
			finish(t, s, ended, done("y"))
			require.ErrorIs(t, s.Finish(ctx, held.ID, again(held).Token, done("z")), store.ErrLost)
			require.ErrorIs(t, s.Resolve(ctx, held.ID, held.Token, again(held).Token, done("z")), store.ErrLost)
			get(t, s, held.ID)
			get(t, s, ended.ID)
			get(t, s, newClaim().ID)
		}
		require.Equal(t, commits, s.Stats().Commits)
	})

	t.Run("ten_thousand_callers_are_all_answered", func(t *testing.T) {
		s, path := newStore(t)
		const callers, ids = 10_000, 1000
		claims := make([]store.Claim, ids)
		for i := range claims {
			claims[i] = newClaim()
		}
		won := make(chan bool, callers)
		for i := range callers {
			go func() {
				c := again(claims[i%ids])
				r, err := s.Begin(ctx, c)
				if err != nil || !r.HeldBy(c.Token) {
					won <- false
					return
				}
				won <- s.Finish(ctx, c.ID, c.Token, done("x")) == nil
			}()
		}
		n := 0
		for range callers {
			if <-won {
				n++
			}
		}
		require.Equal(t, ids, n, "one run for each ID")
		require.NoError(t, s.Close())
		s = open(t, path)
		for _, c := range claims {
			require.Equal(t, store.Done, get(t, s, c.ID).State)
		}
	})
}

func TestClose(t *testing.T) {
	ctx := context.Background()
	s, path := newStore(t)
	c := newClaim()
	claim(t, s, c)
	require.ErrorContains(t, s.Close(), "1 claims are held")
	_, err := s.Begin(ctx, newClaim())
	require.ErrorIs(t, err, store.ErrUnusable)
	_, err = s.Begin(ctx, again(c))
	require.ErrorIs(t, err, store.ErrUnusable)
	require.Equal(t, store.Running, get(t, s, c.ID).State)
	_, err = boltstore.Open(path)
	require.ErrorContains(t, err, "in use")
	waited := make(chan error, 1)
	go func() { waited <- s.Wait(ctx, c.ID, c.Token) }()
	finish(t, s, c, done("x"))
	require.NoError(t, <-waited)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.Get(ctx, c.ID)
	require.ErrorIs(t, err, store.ErrUnusable)
	require.ErrorIs(t, s.Finish(ctx, c.ID, c.Token, done("x")), store.ErrUnusable)
	require.ErrorIs(t, s.Wait(ctx, c.ID, c.Token), store.ErrUnusable)
	require.Equal(t, "x", string(get(t, open(t, path), c.ID).Outcome))
}
