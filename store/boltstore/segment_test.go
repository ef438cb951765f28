package boltstore_test

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// fill ends n new claims, a few at a time, and returns them.
func fill(t *testing.T, s *boltstore.Store, n int, e store.End) []store.Claim {
	t.Helper()
	return fillWith(t, s, 16, n, e)
}

// fillWith is fill with a number of callers at a time.
func fillWith(t *testing.T, s *boltstore.Store, callers, n int, e store.End) []store.Claim {
	t.Helper()
	claims := make([]store.Claim, n)
	errs := make(chan error, callers)
	for i := range claims {
		claims[i] = newClaim()
	}
	for w := range callers {
		go func() {
			for i := w; i < n; i += callers {
				if _, err := s.Begin(context.Background(), claims[i]); err != nil {
					errs <- err
					return
				}
				if err := s.Finish(context.Background(), claims[i].ID, claims[i].Token, e); err != nil {
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
	return claims
}

func TestSegments(t *testing.T) {
	defer boltstore.SmallSegments(50)()

	t.Run("index_is_built_again_as_it_was", func(t *testing.T) {
		s, path := newStore(t)
		claims := fill(t, s, 1020, done("x"))
		fill(t, s, 70, store.End{State: store.Done, Ambiguous: true, Retention: time.Minute})
		released := fill(t, s, 130, store.End{State: store.Released, Retention: 24 * time.Hour})
		for _, c := range released[:60] { // leaves holes in sealed segments and in the open one
			c = again(c)
			claim(t, s, c)
			finish(t, s, c, done("second"))
		}
		want := s.Indexed()
		require.Len(t, want, 1020+70+130)
		require.Equal(t, want, open(t, copyFile(t, path)).Indexed(), "after a crash")
		require.NoError(t, s.Close())
		s = open(t, path)
		require.Equal(t, want, s.Indexed(), "after Close")
		for _, c := range claims {
			require.Equal(t, "x", string(get(t, s, c.ID).Outcome))
		}
		for _, c := range released[:60] {
			require.Equal(t, "second", string(get(t, s, c.ID).Outcome))
		}
		require.Equal(t, store.Absent, get(t, s, newClaim().ID).State)
	})

	t.Run("index_of_a_segment_that_is_damaged_is_made_of_its_records", func(t *testing.T) {
		s, path := newStore(t)
		fill(t, s, 120, done("x"))
		want := s.Indexed()
		require.NoError(t, s.Close())
		edit(t, path, func(tx *bbolt.Tx) error {
			segments := tx.Bucket([]byte("oncerpc")).Bucket([]byte("segments"))
			name, _ := segments.Cursor().First()
			return segments.Bucket(name).Put([]byte{0xff}, []byte("no index"))
		})
		require.Equal(t, want, open(t, path).Indexed())
	})

	t.Run("expired_segments_are_dropped_when_idle_and_their_pages_used_again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, path := newStore(t)
			long := fill(t, s, 60, done("long"))
			var size int64
			for round := range 5 {
				short := fill(t, s, 320, store.End{State: store.Done, Outcome: make([]byte, 3000), Retention: time.Hour})
				require.GreaterOrEqual(t, s.Stats().Segments, 8)
				time.Sleep(time.Hour)
				require.Equal(t, store.Absent, get(t, s, short[0].ID).State)
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, 60, s.Stats().Done)
				require.Equal(t, 2, s.Stats().Segments)
				require.Len(t, s.Indexed(), 60)
				info, err := os.Stat(path)
				require.NoError(t, err)
				if round == 1 {
					size = info.Size()
				}
				if round > 1 {
					require.Less(t, info.Size(), size+size/2, "a round writes about as much as the file holds")
				}
			}
			require.Equal(t, "long", string(get(t, s, long[0].ID).Outcome))
			require.NoError(t, s.Close())
			checkFile(t, path)
			s = open(t, path)
			require.Equal(t, 60, s.Stats().Done)
			require.Equal(t, "long", string(get(t, s, long[59].ID).Outcome))
		})
	})

	t.Run("expired_segments_are_dropped_inside_ordinary_commits_one_at_a_time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, path := newStore(t)
			fill(t, s, 200, store.End{State: store.Done, Retention: time.Hour})
			require.NoError(t, s.Close())
			time.Sleep(2 * time.Hour)
			s = open(t, path)
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Zero(t, s.Stats().Done)
			require.Zero(t, s.Stats().Segments)
			require.EqualValues(t, 4, s.Stats().Commits)
		})
	})

	t.Run("segment_stands_until_the_last_of_its_records_has_expired", func(t *testing.T) {
		for _, retentions := range [][]time.Duration{ // of one stream
			{70 * time.Second, 100 * time.Second, 125 * time.Second},
			{125 * time.Second, 100 * time.Second, 70 * time.Second},
			{100 * time.Second, 125 * time.Second, 70 * time.Second},
		} {
			for _, reopened := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					s, path := newStore(t)
					begun := time.Now()
					var claims []store.Claim
					for _, d := range retentions {
						claims = append(claims, fill(t, s, 1, store.End{State: store.Done, Outcome: []byte("outcome"), Retention: d})...)
					}
					if reopened {
						s.Crash()
						s = open(t, path)
					}
					require.Equal(t, 1, s.Stats().Segments)
					for _, at := range []time.Duration{75 * time.Second, 110 * time.Second, 124 * time.Second} {
						time.Sleep(time.Until(begun.Add(at)))
						synctest.Wait()
						for i, d := range retentions {
							want := "outcome"
							if d < at {
								want = ""
							}
							require.Equal(t, want, string(get(t, s, claims[i].ID).Outcome), "%v kept for %v, after %v", retentions, d, at)
						}
					}
					time.Sleep(5 * time.Second)
					synctest.Wait()
					require.Zero(t, s.Stats().Segments)
				})
			}
		}
	})

	t.Run("predecessor_of_an_expired_outcome_does_not_come_back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, path := newStore(t)
			c := newClaim()
			claim(t, s, c)
			finish(t, s, c, store.End{State: store.Released, Retention: 100 * time.Hour})
			c = again(c)
			claim(t, s, c)
			finish(t, s, c, store.End{State: store.Done, Retention: time.Hour})
			time.Sleep(time.Hour)
			require.Equal(t, store.Absent, get(t, s, c.ID).State)
			require.NoError(t, s.Close())
			s = open(t, path)
			require.Equal(t, store.Absent, get(t, s, c.ID).State)
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Equal(t, store.Absent, get(t, s, c.ID).State)
			require.Zero(t, s.Stats().Done)
		})
	})

	t.Run("slots_are_used_again_lowest_first", func(t *testing.T) {
		s, path := newStore(t)
		for range 10 {
			a, b := newClaim(), newClaim()
			claim(t, s, a)
			claim(t, s, b)
			finish(t, s, a, done("a"))
			finish(t, s, b, done("b"))
		}
		require.NoError(t, s.Close())
		edit(t, path, func(tx *bbolt.Tx) error {
			n := 0
			return tx.Bucket([]byte("oncerpc")).Bucket([]byte("running")).ForEach(func(k, v []byte) error {
				require.Equal(t, []byte{0, 0, 0, byte(n)}, k)
				require.Equal(t, []byte{0}, v)
				n++
				require.LessOrEqual(t, n, 2)
				return nil
			})
		})
	})

	t.Run("list_yields_all_while_records_move", func(t *testing.T) {
		s, _ := newStore(t)
		claims := fill(t, s, 500, store.End{State: store.Released, Retention: time.Hour})
		seen := map[store.ID]int{}
		for r, err := range s.List(context.Background(), store.Query{}) {
			require.NoError(t, err)
			seen[r.ID]++
			if len(seen) == 50 {
				for _, c := range claims[:200] {
					c = again(c)
					claim(t, s, c)
					finish(t, s, c, done("moved"))
				}
			}
		}
		require.Len(t, seen, 500)
		for id, n := range seen {
			require.Equal(t, 1, n, id)
		}
	})
}

// edit changes a file that no store has open.
func edit(t *testing.T, path string, fn func(*bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	require.NoError(t, err)
	require.NoError(t, db.Update(fn))
	require.NoError(t, db.Close())
}

func TestClock(t *testing.T) {
	t.Run("record_is_absent_at_the_instant_it_expires", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, _ := newStore(t)
			c := newClaim()
			claim(t, s, c)
			finish(t, s, c, store.End{State: store.Done, Retention: time.Hour})
			time.Sleep(time.Hour - time.Nanosecond)
			require.Equal(t, store.Done, get(t, s, c.ID).State)
			time.Sleep(time.Nanosecond)
			require.Equal(t, store.Absent, get(t, s, c.ID).State)
		})
	})

	t.Run("it_does_not_go_back_behind_the_last_commit", func(t *testing.T) {
		s, path := newStore(t)
		require.NoError(t, s.Close())
		ahead := time.Now().Add(1000 * time.Hour)
		edit(t, path, func(tx *bbolt.Tx) error { return boltstore.WriteTime(tx.Bucket([]byte("oncerpc")), ahead) })
		require.False(t, get(t, open(t, path), store.ID{1}).Now.Before(ahead))
	})
}
