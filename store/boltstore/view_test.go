package boltstore_test

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// holdMeta stops commits when they have written the page that makes them visible: visible gets a value then, and the
// commit goes on when end gives one, an error or nil. Nobody can begin to read the file meanwhile.
func holdMeta(s *boltstore.Store) (visible chan struct{}, end chan error) {
	visible, end = make(chan struct{}, 1), make(chan error)
	s.OnWrite(func(writeAt func([]byte, int64) (int, error), b []byte, off int64) (int, error) {
		n, err := writeAt(b, off)
		if off <= 8<<10 {
			visible <- struct{}{}
			err = <-end
		}
		return n, err
	})
	return visible, end
}

func TestView(t *testing.T) {
	t.Run("returns_what_its_function_returns", func(t *testing.T) {
		s, _ := newStore(t)
		boom := errors.New("boom")
		require.Equal(t, boom, s.View(func(*bbolt.Tx) error { return boom }))
		require.PanicsWithValue(t, boom, func() { _ = s.View(func(*bbolt.Tx) error { panic(boom) }) })
		require.Error(t, s.View(func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("oncerpc")) }))
		requireUsable(t, s, boltstore.Transact[string])
	})

	t.Run("makes_a_copy_that_opens", func(t *testing.T) {
		s, _ := newStore(t)
		_, err := boltstore.Transact(t.Context(), s, write("a"))
		require.NoError(t, err)
		copied := filepath.Join(t.TempDir(), "copy.db")
		require.NoError(t, s.View(func(tx *bbolt.Tx) error { return tx.CopyFile(copied, 0o600) }))
		c, err := boltstore.Open(copied)
		require.NoError(t, err)
		require.Equal(t, lines(t, s), lines(t, c))
		require.NoError(t, c.Close())
	})

	t.Run("reads_within_a_closure_what_was_before", func(t *testing.T) {
		s, _ := newStore(t)
		_, err := boltstore.Transact(t.Context(), s, func(tx *bbolt.Tx) (string, error) {
			require.Empty(t, lines(t, s))
			return write("a")(tx)
		})
		require.NoError(t, err)
		require.Equal(t, []string{"a"}, lines(t, s))
	})

	t.Run("waits_until_the_commit_that_it_read_has_ended", func(t *testing.T) {
		s, _ := newStore(t)
		visible, end := make(chan struct{}), make(chan struct{})
		written, viewed, seen := make(chan error, 1), make(chan error, 1), make(chan bool, 1)
		go func() {
			_, err := boltstore.Transact(t.Context(), s, func(tx *bbolt.Tx) (string, error) {
				tx.OnCommit(func() { close(visible); <-end })
				return write("a")(tx)
			})
			written <- err
		}()
		<-visible
		go func() {
			viewed <- s.View(func(tx *bbolt.Tx) error {
				seen <- tx.Bucket(ledger) != nil
				return nil
			})
		}()
		require.True(t, <-seen)
		require.Empty(t, viewed)
		close(end)
		require.NoError(t, <-written)
		require.NoError(t, <-viewed)
	})

	t.Run("refuses_what_it_read_when_the_commit_fails", func(t *testing.T) {
		s, _ := newStore(t)
		stopped, end := holdMeta(s)
		written, viewed := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := boltstore.Transact(t.Context(), s, write("a"))
			written <- err
		}()
		<-stopped
		began := make(chan struct{})
		go func() {
			close(began)
			viewed <- s.View(func(*bbolt.Tx) error { return nil })
		}()
		<-began
		end <- syscall.EIO // the page is written nevertheless
		require.ErrorIs(t, <-written, store.ErrUnusable)
		require.ErrorIs(t, <-viewed, store.ErrUnusable)
	})
}
