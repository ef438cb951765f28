package boltstore_test

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func openDB(t testing.TB, path string, o *bbolt.Options) *bbolt.DB {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func borrowed(t testing.TB, db *bbolt.DB) *boltstore.Store {
	t.Helper()
	s, err := boltstore.New(db)
	require.NoError(t, err)
	t.Cleanup(s.Crash)
	return s
}

func TestConformanceOfNew(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		path := filepath.Join(t.TempDir(), "app.db")
		return storetest.Subject{
			Store: borrowed(t, openDB(t, path, nil)),
			Reopen: func() store.Store {
				path = copyFile(t, path)
				return borrowed(t, openDB(t, path, nil))
			},
		}
	})
}

func TestNew(t *testing.T) {
	t.Run("keeps_records_beside_the_applications_data", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "app.db")
		db := openDB(t, path, nil)
		require.NoError(t, db.Update(func(tx *bbolt.Tx) error { _, err := write("before")(tx); return err }))
		s := borrowed(t, db)
		ctx, c := begun(t, s)
		_, err := boltstore.Transact(ctx, s, write("charged"))
		require.NoError(t, err)
		require.NoError(t, db.Update(func(tx *bbolt.Tx) error { _, err := write("beside")(tx); return err }))
		require.Equal(t, []string{"before", "charged", "beside"}, lines(t, s))
		running := newClaim()
		claim(t, s, running)

		crashed := borrowed(t, openDB(t, copyFile(t, path), nil))
		require.Equal(t, []string{"before", "charged", "beside"}, lines(t, crashed))
		require.Equal(t, "charged", string(get(t, crashed, c.ID).Outcome))
		require.Equal(t, store.Abandoned, get(t, crashed, running.ID).State)

		require.ErrorContains(t, s.Close(), "1 claims are held")
		finish(t, s, running, done("x"))
		require.NoError(t, s.Close())
		require.False(t, db.NoFreelistSync)
		require.NoError(t, db.Update(func(tx *bbolt.Tx) error { _, err := write("after")(tx); return err }), "it is open")
		s = borrowed(t, db)
		require.Equal(t, "x", string(get(t, s, running.ID).Outcome))
	})

	t.Run("database_of_another_store_is_refused", func(t *testing.T) {
		db := openDB(t, filepath.Join(t.TempDir(), "app.db"), nil)
		s := borrowed(t, db)
		_, err := boltstore.New(db)
		require.ErrorContains(t, err, "used by a Store")
		require.NoError(t, s.Close())
		borrowed(t, db)

		opened, _ := newStore(t)
		_, err = boltstore.New(opened.DB())
		require.ErrorContains(t, err, "used by a Store")
	})

	t.Run("database_that_is_not_durable_or_not_to_be_written_is_refused", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "app.db")
		db := openDB(t, path, &bbolt.Options{NoSync: true})
		_, err := boltstore.New(db)
		require.ErrorContains(t, err, "NoSync")
		require.NoError(t, db.Close())
		db = openDB(t, path, &bbolt.Options{ReadOnly: true})
		_, err = boltstore.New(db)
		require.ErrorContains(t, err, "read-only")
		require.NoError(t, db.Close())
		_, err = boltstore.New(db)
		require.Error(t, err)
		db = openDB(t, path, nil)
		borrowed(t, db)
	})

	t.Run("database_whose_commit_failed_has_to_be_opened_again", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "app.db")
		db := openDB(t, path, nil)
		s := borrowed(t, db)
		s.OnWrite(func(func([]byte, int64) (int, error), []byte, int64) (int, error) { return 0, syscall.EIO })
		_, err := s.Begin(t.Context(), newClaim())
		require.ErrorIs(t, err, store.ErrUnusable)
		require.NoError(t, s.Close())
		_, err = boltstore.New(db)
		require.ErrorContains(t, err, "open the database")
		require.NoError(t, db.Close())
		borrowed(t, openDB(t, path, nil))
	})

	t.Run("database_that_may_not_grow_is_full", func(t *testing.T) {
		db := openDB(t, filepath.Join(t.TempDir(), "app.db"), &bbolt.Options{MaxSize: 1 << 20})
		s := borrowed(t, db)
		running := newClaim()
		claim(t, s, running)
		ctx, c := begun(t, s)
		_, err := boltstore.Transact(ctx, s, func(tx *bbolt.Tx) (string, error) {
			b, err := tx.CreateBucketIfNotExists(ledger)
			if err != nil {
				return "", err
			}
			return "", b.Put([]byte("a"), make([]byte, 2<<20))
		})
		require.Error(t, err)
		require.NotErrorIs(t, err, store.ErrUnusable)
		require.True(t, get(t, s, c.ID).HeldBy(c.Token))
		finish(t, s, running, store.End{State: store.Done, Retention: time.Hour})
	})
}
