package boltstore_test

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("BOLTSTORE_TEST_CHILD"); role != "" {
		child(role)
		return
	}
	before := runtime.NumGoroutine()
	code := m.Run()
	after := runtime.NumGoroutine()
	for range 100 {
		if after = runtime.NumGoroutine(); after <= before {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	fuzzing := flag.Lookup("test.fuzz").Value.String() != "" // which listens to signals for ever
	if code == 0 && after > before && !fuzzing {
		fmt.Fprintf(os.Stderr, "%d goroutines before the tests, %d after\n", before, after)
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		code = 1
	}
	os.Exit(code)
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		path := filepath.Join(t.TempDir(), "store.db")
		return storetest.Subject{
			Store: open(t, path),
			Reopen: func() store.Store {
				path = copyFile(t, path)
				return open(t, path)
			},
		}
	})
}

// open opens a store that is ended, whatever claims it holds, with the test.
func open(t testing.TB, path string) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(path)
	require.NoError(t, err)
	t.Cleanup(s.Crash)
	return s
}

// newStore opens a store on a new file.
func newStore(t testing.TB) (*boltstore.Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store.db")
	return open(t, path), path
}

// copyFile copies the file of a store that does nothing at the moment, as a crash would leave it.
func copyFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	to := filepath.Join(t.TempDir(), "copy.db")
	require.NoError(t, os.WriteFile(to, b, 0o600))
	return to
}

func newClaim() store.Claim {
	c := store.Claim{Owner: [8]byte{1, 2, 3}, Method: "/shop.Payments/Charge", Fingerprint: []byte("fp1\x00print")}
	_, _ = rand.Read(c.ID[:])
	_, _ = rand.Read(c.Token[:])
	return c
}

// again is a claim of the same ID by another call.
func again(c store.Claim) store.Claim {
	_, _ = rand.Read(c.Token[:])
	return c
}

func done(outcome string) store.End {
	return store.End{State: store.Done, Outcome: []byte(outcome), Retention: 24 * time.Hour}
}

func claim(t testing.TB, s store.Store, c store.Claim) store.Record {
	t.Helper()
	r, err := s.Begin(context.Background(), c)
	require.NoError(t, err)
	require.True(t, r.HeldBy(c.Token))
	return r
}

func finish(t testing.TB, s store.Store, c store.Claim, e store.End) {
	t.Helper()
	require.NoError(t, s.Finish(context.Background(), c.ID, c.Token, e))
}

func get(t testing.TB, s store.Store, id store.ID) store.Record {
	t.Helper()
	r, err := s.Get(context.Background(), id)
	require.NoError(t, err)
	return r
}
