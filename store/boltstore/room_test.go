package boltstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Size()
}

// openBounded opens a store whose file has a bound.
func openBounded(t *testing.T, path string, bytes int64) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(path, boltstore.WithMaxSize(bytes))
	require.NoError(t, err)
	t.Cleanup(s.Crash)
	return s
}

// fillToBound ends claims, a few at a time, until some are refused, and returns those that ended.
func fillToBound(t *testing.T, s *boltstore.Store, e store.End) (ended []store.Claim) {
	t.Helper()
	const callers, most = 8, 10_000
	all := make(chan []store.Claim, callers)
	for range callers {
		go func() {
			var mine []store.Claim
			defer func() { all <- mine }()
			for len(mine) < most {
				c := newClaim()
				_, err := s.Begin(context.Background(), c)
				if errors.Is(err, store.ErrFull) {
					return
				}
				if err == nil {
					err = s.Finish(context.Background(), c.ID, c.Token, e)
				}
				if err != nil {
					t.Error(err)
					return
				}
				mine = append(mine, c)
			}
		}()
	}
	for range callers {
		ended = append(ended, <-all...)
	}
	require.Less(t, len(ended), most, "it is never full")
	return ended
}

func TestFullFile(t *testing.T) {
	t.Parallel()
	const bound = 4 << 20
	for _, volatile := range []bool{false, true} {
		t.Run(fmt.Sprintf("running_calls_end_and_new_keys_are_refused/volatile=%t", volatile), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "store.db")
				s := openBounded(t, path, bound)
				running := make([]store.Claim, 50)
				for i := range running {
					running[i] = newClaim()
					running[i].Volatile = volatile
					claim(t, s, running[i])
				}
				end := store.End{State: store.Done, Outcome: make([]byte, 2000), Retention: time.Hour}
				ended := fillToBound(t, s, end)
				require.Greater(t, fileSize(t, path), int64(bound*3/4))
				require.Greater(t, s.Stats().Live, int64(bound*3/4))

				_, err := s.Begin(t.Context(), newClaim())
				require.ErrorIs(t, err, store.ErrFull)
				memory := newClaim()
				memory.Volatile = true
				_, err = s.Begin(t.Context(), memory)
				require.ErrorIs(t, err, store.ErrFull)
				r, err := s.Begin(t.Context(), again(ended[0]))
				require.NoError(t, err)
				require.Equal(t, store.Done, r.State, "a replay needs no room")

				var all sync.WaitGroup
				for _, c := range running {
					all.Go(func() {
						if err := s.Finish(context.Background(), c.ID, c.Token, end); err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				require.LessOrEqual(t, fileSize(t, path), int64(bound))
				s.Crash()
				checkFile(t, path)

				s = openBounded(t, path, bound)
				for _, c := range append(running, ended...) {
					r, err := s.Begin(t.Context(), again(c))
					require.NoError(t, err)
					require.Equal(t, store.Done, r.State)
					require.Len(t, r.Outcome, 2000)
				}
				require.Less(t, len(fillToBound(t, s, end)), len(ended)/4, "what was kept for the ends of the runs")

				size := fileSize(t, path)
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				require.Zero(t, s.Stats().Done)
				require.Greater(t, len(fillToBound(t, s, end)), len(ended)/2)
				require.LessOrEqual(t, fileSize(t, path), max(size, bound))
			})
		})
	}

	t.Run("transactions_of_running_calls_commit", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "store.db")
		s := openBounded(t, path, bound)
		fillToBound(t, s, done(string(make([]byte, 2000))))
		_, err := boltstore.Transact(t.Context(), s, func(tx *bbolt.Tx) (int, error) {
			b, err := tx.CreateBucketIfNotExists([]byte("orders"))
			if err != nil {
				return 0, err
			}
			return 1, b.Put([]byte("order"), []byte("paid"))
		})
		require.NoError(t, err)
	})

	t.Run("what_ends_a_run_is_not_refused_even_beyond_the_bound", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "store.db")
		s := openBounded(t, path, 1<<20)
		c := newClaim()
		claim(t, s, c)
		finish(t, s, c, done(string(make([]byte, 3<<20))))
		require.Len(t, get(t, s, c.ID).Outcome, 3<<20)
		_, err := s.Begin(t.Context(), newClaim())
		require.ErrorIs(t, err, store.ErrFull)
		require.Less(t, fileSize(t, path), int64(4<<20))
	})

	t.Run("more_claims_than_the_reserve_can_end_are_refused", func(t *testing.T) {
		s := openBounded(t, filepath.Join(t.TempDir(), "store.db"), 1<<20)
		n := 0
		for ; n < 1000; n++ {
			c := newClaim()
			c.Volatile = true
			if _, err := s.Begin(t.Context(), c); err != nil {
				require.ErrorIs(t, err, store.ErrFull)
				break
			}
		}
		require.Greater(t, n, 50)
		require.Less(t, n, 500)
		require.Equal(t, n, s.Stats().Running)
	})

	t.Run("space_that_a_reader_holds_is_no_room_until_it_leaves", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store.db")
			s := openBounded(t, path, bound)
			end := store.End{State: store.Done, Outcome: make([]byte, 2000), Retention: time.Minute}
			fillToBound(t, s, end)
			entered, leave := make(chan struct{}), make(chan struct{})
			left := make(chan error, 1)
			go func() {
				left <- s.View(func(*bbolt.Tx) error {
					close(entered)
					<-leave
					return nil
				})
			}()
			<-entered
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			_, err := s.Begin(t.Context(), newClaim())
			require.ErrorIs(t, err, store.ErrFull)
			require.LessOrEqual(t, fileSize(t, path), int64(bound))
			close(leave)
			require.NoError(t, <-left)
			claim(t, s, newClaim())
		})
	})
}

func TestBoundOfABorrowedDatabase(t *testing.T) {
	t.Run("counts_what_the_application_keeps_too", func(t *testing.T) {
		db, err := bbolt.Open(filepath.Join(t.TempDir(), "app.db"), 0o600, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		allocSize := db.AllocSize
		s, err := boltstore.New(db, boltstore.WithMaxSize(2<<20))
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		write := func(n int) {
			require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
				b, err := tx.CreateBucketIfNotExists([]byte("orders"))
				if err != nil {
					return err
				}
				return b.Put([]byte("order"), make([]byte, n))
			}))
		}
		write(2 << 20)
		_, err = s.Begin(t.Context(), newClaim())
		require.ErrorIs(t, err, store.ErrFull)
		write(1)
		c := newClaim()
		claim(t, s, c)
		finish(t, s, c, done("x"))
		require.Equal(t, allocSize, db.AllocSize)
	})

	t.Run("needs_statistics", func(t *testing.T) {
		db, err := bbolt.Open(filepath.Join(t.TempDir(), "app.db"), 0o600, &bbolt.Options{NoStatistics: true})
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		_, err = boltstore.New(db, boltstore.WithMaxSize(2<<20))
		require.ErrorContains(t, err, "NoStatistics")
		s, err := boltstore.New(db)
		require.NoError(t, err)
		c := newClaim()
		claim(t, s, c)
		finish(t, s, c, done("x"))
		require.NoError(t, s.Close())
	})
}

func TestWithMaxSizePanicsBelowItsLeast(t *testing.T) {
	require.Panics(t, func() { boltstore.WithMaxSize(1<<20 - 1) })
	require.Panics(t, func() { boltstore.WithMaxSize(-1) })
}

// TestHourOfLoad is a store with much coming and going: what it holds turns over sixty times.
func TestHourOfLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const (
			bound     = 64 << 20
			retention = time.Minute
			step      = 6 * time.Second
			perStep   = 260
			steps     = int(time.Hour / step)
			kept      = int(retention / step)
		)
		type record struct {
			claim   store.Claim
			outcome int
		}
		random := rand.New(rand.NewPCG(1, 2))
		path := filepath.Join(t.TempDir(), "store.db")
		s := openBounded(t, path, bound)
		var worst, sum float64
		var history [][]record
		var live, largest int64
		for i := range steps {
			now := make([]record, perStep)
			var all sync.WaitGroup
			for j := range now {
				now[j] = record{newClaim(), 300 + random.IntN(7700)}
				r := now[j]
				all.Go(func() {
					_, err := s.Begin(context.Background(), r.claim)
					err = errors.Join(err, s.Finish(context.Background(), r.claim.ID, r.claim.Token,
						store.End{State: store.Done, Outcome: make([]byte, r.outcome), Retention: retention}))
					if err != nil {
						t.Error(err)
					}
				})
				live += int64(r.outcome)
			}
			all.Wait()
			history = append(history, now)
			if i >= kept {
				for _, r := range history[i-kept] {
					live -= int64(r.outcome)
				}
				gone := history[i-kept][random.IntN(perStep)]
				require.Equal(t, store.Absent, get(t, s, gone.claim.ID).State, "expired")
			}
			for range 8 {
				there := history[max(i-random.IntN(kept), 0)][random.IntN(perStep)]
				require.Len(t, get(t, s, there.claim.ID).Outcome, there.outcome, "not expired")
			}
			size := fileSize(t, path)
			largest = max(largest, size)
			require.LessOrEqual(t, size, int64(bound))
			if i >= kept { // the first minute only fills it
				ratio := float64(size) / float64(live)
				worst, sum = max(worst, ratio), sum+ratio
				require.Less(t, ratio, 2.0, "step %d: a file of %d bytes for %d bytes of outcomes", i, size, live)
			}
			if i%100 == 99 {
				n := 0
				for _, err := range s.List(t.Context(), store.Query{State: store.Done}) {
					require.NoError(t, err)
					n++
				}
				require.Equal(t, kept*perStep, n, "all that have not expired, and no other")
			}
			time.Sleep(step)
		}
		st := s.Stats()
		t.Logf("%d records, %.1f MiB of outcomes live, file %.1f MiB; file ÷ outcomes: mean %.2f, worst %.2f; %d commits, %d operations, %d segments",
			steps*perStep, float64(live)/(1<<20), float64(largest)/(1<<20), sum/float64(steps-kept), worst, st.Commits, st.Operations, st.Segments)
	})
}

func TestStats(t *testing.T) {
	defer boltstore.SmallSegments(20)()
	s, path := newStore(t)
	fill(t, s, 45, done(string(make([]byte, 1000))))
	released := fill(t, s, 33, store.End{State: store.Released, Retention: time.Hour})
	for _, c := range released[:7] {
		c = again(c)
		claim(t, s, c)
		finish(t, s, c, done(""))
	}
	for i := range 4 {
		c := newClaim()
		claim(t, s, c)
		if i < 3 {
			finish(t, s, c, store.End{State: store.Abandoned})
		}
	}
	st := s.Stats()
	require.Equal(t, [4]int{1, 3, 26, 52}, [4]int{st.Running, st.Abandoned, st.Released, st.Done})
	require.Equal(t, fileSize(t, path), st.Size)
	require.Equal(t, st.Size, st.Live+st.Free)
	require.Greater(t, st.Live, int64(45*1000))
	require.EqualValues(t, 10<<30, st.MaxSize)
	require.EqualValues(t, 2*(45+33+7)+4+3, st.Operations)
	require.LessOrEqual(t, st.Commits, st.Operations)

	counted := open(t, copyFile(t, path)).Stats()
	require.Equal(t, [4]int{0, 4, 26, 52}, [4]int{counted.Running, counted.Abandoned, counted.Released, counted.Done})
	require.Equal(t, st.Segments, counted.Segments)
	s.Crash()
	require.Zero(t, s.Stats().Live)
}

func TestSegmentOfFewRecordsIsSealedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, path := newStore(t)
		for range 300 { // three an hour, kept for a day
			fill(t, s, 1, store.End{State: store.Done, Retention: 24 * time.Hour})
			time.Sleep(20 * time.Minute)
			require.LessOrEqual(t, s.Stats().Done, 72+8)
		}
		require.Less(t, s.Stats().Segments, 24)
		require.Less(t, fileSize(t, path), int64(1<<20))
	})
}
