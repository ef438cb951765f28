package boltstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// childClaim is what a child process claims.
func childClaim(i byte) store.Claim {
	return store.Claim{ID: store.ID{i}, Token: store.Token{i}, Fingerprint: []byte("print"), Method: "/a.B/C"}
}

// child is what this test binary does in a process of its own.
func child(role string) {
	switch role {
	case "race":
		raceToCreate()
		return
	case "nobody":
		openAsNobody()
		return
	}
	s, err := boltstore.Open(os.Getenv("BOLTSTORE_TEST_PATH"))
	if err != nil {
		fmt.Println("open:", err)
		os.Exit(1)
	}
	switch role {
	case "hold":
		holdClaims(s)
	case "churn":
		churn(s)
	case "full":
		fillUp(s)
	}
}

func holdClaims(s *boltstore.Store) {
	ctx := context.Background()
	_, err1 := s.Begin(ctx, childClaim(1))
	_, err2 := s.Begin(ctx, childClaim(2))
	err3 := s.Finish(ctx, store.ID{2}, store.Token{2}, done("two"))
	fmt.Println("held", errors.Join(err1, err2, err3))
	select {}
}

// churn tells of every operation once it is durable.
func churn(s *boltstore.Store) {
	ctx := context.Background()
	for i := 0; ; i++ {
		c := childClaim(0)
		c.ID[1], c.ID[2] = byte(i), byte(i>>8)
		if _, err := s.Begin(ctx, c); err != nil {
			fmt.Println("begin:", err)
			os.Exit(1)
		}
		fmt.Println("begun", i)
		if err := s.Finish(ctx, c.ID, c.Token, done(fmt.Sprint(i))); err != nil {
			fmt.Println("finish:", err)
			os.Exit(1)
		}
		fmt.Println("ended", i)
	}
}

// fillUp goes on until the file may not grow, and once more when it may.
func fillUp(s *boltstore.Store) {
	ctx := context.Background()
	limit := func(n uint64) {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: syscall.RLIM_INFINITY & (1<<63 - 1)}); err != nil {
			fmt.Println("skip", err)
			os.Exit(0)
		}
	}
	limit(20 << 20)
	end := done(string(make([]byte, 256<<10)))
	held := childClaim(0)
	for i := 1; ; i++ {
		c := childClaim(0)
		c.ID[1], c.ID[2] = byte(i), byte(i>>8)
		_, err := s.Begin(ctx, c)
		if err == nil {
			held, err = c, s.Finish(ctx, c.ID, c.Token, end)
		}
		if err == nil {
			continue
		}
		fmt.Println("full", i, errors.Is(err, store.ErrUnusable), err)
		break
	}
	limit(1 << 40)
	err := s.Finish(ctx, held.ID, held.Token, end)
	_, beginErr := s.Begin(ctx, childClaim(9))
	fmt.Println("after", err, beginErr, s.Finish(ctx, store.ID{9}, store.Token{9}, end), s.Close())
}

// startChild starts a child process and returns its output.
func startChild(t *testing.T, role, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "BOLTSTORE_TEST_CHILD="+role, "BOLTSTORE_TEST_PATH="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	})
	return cmd, bufio.NewScanner(out)
}

func TestKilledProcess(t *testing.T) {
	ctx := context.Background()

	t.Run("its_claims_are_abandoned_at_once", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "store.db")
		cmd, out := startChild(t, "hold", path)
		require.True(t, out.Scan())
		require.Equal(t, "held <nil>", out.Text())

		_, err := boltstore.Open(path)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "in use")

		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		s := open(t, path)
		r := get(t, s, store.ID{1})
		require.Equal(t, store.Abandoned, r.State)
		require.Equal(t, "two", string(get(t, s, store.ID{2}).Outcome))

		c := again(childClaim(1))
		c.TakeoverBelow = 3
		for attempt := 2; attempt <= 3; attempt++ {
			taken, err := s.Begin(ctx, c)
			require.NoError(t, err)
			require.True(t, taken.HeldBy(c.Token))
			require.Equal(t, attempt, taken.Attempt)
			require.Equal(t, r.First, taken.First)
			s.Crash()
			s = open(t, path)
			c.Token[0]++
		}
		kept, err := s.Begin(ctx, c)
		require.NoError(t, err)
		require.Equal(t, store.Abandoned, kept.State)
		require.Equal(t, 3, kept.Attempt)
		require.NoError(t, s.Close(), "what an earlier process left is not held")
		checkFile(t, path)
	})

	t.Run("what_it_told_of_is_there", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "store.db")
		cmd, out := startChild(t, "churn", path)
		begun, ended := -1, -1
		for out.Scan() {
			var what string
			var i int
			_, err := fmt.Sscan(out.Text(), &what, &i)
			require.NoError(t, err, out.Text())
			if what == "begun" {
				begun = i
			} else {
				ended = i
			}
			if i == 200 {
				require.NoError(t, cmd.Process.Kill())
			}
		}
		_ = cmd.Wait()
		s := open(t, path)
		for i := range begun + 1 {
			r := get(t, s, store.ID{0, byte(i), byte(i >> 8)})
			switch {
			case i <= ended:
				require.Equal(t, fmt.Sprint(i), string(r.Outcome))
			case r.State != store.Done:
				require.Equal(t, store.Abandoned, r.State)
			}
		}
		require.NoError(t, s.Close())
		checkFile(t, path)
	})
}

func TestFileThatMayNotGrow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	cmd, out := startChild(t, "full", path)
	require.True(t, out.Scan())
	if len(out.Text()) > 4 && out.Text()[:4] == "skip" {
		t.Skip("RLIMIT_FSIZE cannot be set: " + out.Text())
	}
	var i int
	var unusable bool
	_, err := fmt.Sscanf(out.Text(), "full %d %t", &i, &unusable)
	require.NoError(t, err, out.Text())
	require.False(t, unusable, out.Text())
	require.Greater(t, i, 20)
	require.True(t, out.Scan())
	require.Equal(t, "after <nil> <nil> <nil> <nil>", out.Text())
	require.NoError(t, cmd.Wait())
	s := open(t, path)
	require.Equal(t, i+1, s.Stats().Done)
	require.NoError(t, s.Close())
	checkFile(t, path)
}

// checkFile lets bbolt go through all pages.
func checkFile(t *testing.T, path string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			require.NoError(t, err)
		}
		return nil
	}))
}
