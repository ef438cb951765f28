package boltstore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

func TestSwappedFile(t *testing.T) {
	t.Parallel()
	t.Run("file_that_another_took_the_place_of_is_refused", func(t *testing.T) {
		s, path := newStore(t)
		require.NoError(t, s.Close())
		other, swapped := newStore(t)
		require.NoError(t, other.Close())
		before, err := os.ReadFile(swapped)
		require.NoError(t, err)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		defer func() { require.NoError(t, f.Close()) }()
		require.NoError(t, os.Rename(swapped, path))
		require.ErrorContains(t, boltstore.Admit(f, path), "replaced by another file")
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, before, after)

		require.NoError(t, os.Remove(path))
		require.ErrorIs(t, boltstore.Admit(f, path), os.ErrNotExist)
	})

	t.Run("file_that_is_swapped_all_the_while_is_opened_whole_or_refused", func(t *testing.T) {
		s, path := newStore(t)
		c := newClaim()
		claim(t, s, c)
		finish(t, s, c, done("x"))
		require.NoError(t, s.Close())
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		stop, stopped := make(chan struct{}), make(chan error, 1)
		go func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					stopped <- nil
					return
				default:
				}
				next := fmt.Sprint(path, ".", i)
				err := os.WriteFile(next, whole, 0o600)
				if err == nil {
					err = os.Rename(next, path)
				}
				if err != nil {
					stopped <- err
					return
				}
			}
		}()
		opened, refused := 0, 0
		for range 100 {
			s, err := boltstore.Open(path)
			if err != nil {
				require.ErrorContains(t, err, "replaced by another file")
				refused++
				continue
			}
			require.Equal(t, "x", string(get(t, s, c.ID).Outcome))
			require.NoError(t, s.Close())
			opened++
		}
		close(stop)
		require.NoError(t, <-stopped)
		t.Log(opened, "opened,", refused, "refused")
	})
}

// raceToCreate opens the file that each line names, and tells of it what it has recorded there.
func raceToCreate() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		path := in.Text()
		s, err := boltstore.Open(path)
		if err != nil {
			fmt.Println("refused:", err)
			continue
		}
		c := childClaim(byte(os.Getpid()))
		c.ID[1] = byte(os.Getpid() >> 8)
		_, err = s.Begin(context.Background(), c)
		if err == nil {
			err = s.Finish(context.Background(), c.ID, c.Token, done(path))
		}
		if err == nil {
			err = s.Close()
		}
		fmt.Println("recorded", c.ID[0], c.ID[1], err)
	}
}

func TestProcessesThatRaceToCreateTheFileLeaveOneStore(t *testing.T) {
	t.Parallel()
	const processes, rounds = 3, 40
	self, err := os.Executable()
	require.NoError(t, err)
	var in [processes]io.WriteCloser
	var out [processes]*bufio.Scanner
	for i := range processes {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "BOLTSTORE_TEST_CHILD=race")
		cmd.Stderr = os.Stderr
		in[i], err = cmd.StdinPipe()
		require.NoError(t, err)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		out[i] = bufio.NewScanner(stdout)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = in[i].Close()
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	refused := 0
	for range rounds {
		path := filepath.Join(t.TempDir(), "store.db")
		for i := range processes {
			_, err := fmt.Fprintln(in[i], path)
			require.NoError(t, err)
		}
		var recorded []store.ID
		for i := range processes {
			require.True(t, out[i].Scan())
			if text := out[i].Text(); strings.HasPrefix(text, "refused:") {
				require.Contains(t, text, path)
				require.Contains(t, text, "in use")
				refused++
				continue
			}
			var low, high byte
			_, err := fmt.Sscanf(out[i].Text(), "recorded %d %d <nil>", &low, &high)
			require.NoError(t, err, out[i].Text())
			recorded = append(recorded, store.ID{low, high})
		}
		require.NotEmpty(t, recorded)
		s := open(t, path)
		require.Equal(t, len(recorded), s.Stats().Done, "nobody's records were overwritten")
		for _, id := range recorded {
			require.Equal(t, path, string(get(t, s, id).Outcome))
		}
		require.NoError(t, s.Close())
		files, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, files, 1)
	}
	t.Log(refused, "of", processes*rounds, "refused")
}

// openAsNobody opens the file as somebody who may write nothing here.
func openAsNobody() {
	if os.Getuid() == 0 {
		if err := syscall.Setuid(65534); err != nil {
			fmt.Println("skip", err)
			return
		}
	}
	s, err := boltstore.Open(os.Getenv("BOLTSTORE_TEST_PATH"))
	fmt.Println(err)
	if err == nil {
		fmt.Println(s.Close())
	}
}

func TestReadOnlyFolder(t *testing.T) {
	folder := t.TempDir()
	base := filepath.Dir(folder)
	require.NoError(t, os.Chmod(base, 0o755))
	t.Cleanup(func() { _ = os.Chmod(folder, 0o700) })
	s := open(t, filepath.Join(folder, "store.db"))
	require.NoError(t, s.Close())
	before, err := os.ReadFile(filepath.Join(folder, "store.db"))
	require.NoError(t, err)
	try := func(name string) []string {
		require.NoError(t, os.Chmod(folder, 0o555))
		_, out := startChild(t, "nobody", filepath.Join(folder, name))
		var lines []string
		for out.Scan() {
			lines = append(lines, out.Text())
		}
		if len(lines) > 0 && strings.HasPrefix(lines[0], "skip") {
			t.Skip("the child may not change its user: " + lines[0])
		}
		return lines
	}

	lines := try("new.db")
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "boltstore: open "+filepath.Join(folder, "new.db")+": create: ")
	require.Contains(t, lines[0], "permission denied")

	require.NoError(t, os.Chmod(filepath.Join(folder, "store.db"), 0o444))
	lines = try("store.db")
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "boltstore: open "+filepath.Join(folder, "store.db"))
	require.Contains(t, lines[0], "permission denied")
	after, err := os.ReadFile(filepath.Join(folder, "store.db"))
	require.NoError(t, err)
	require.Equal(t, before, after)

	require.NoError(t, os.Chmod(filepath.Join(folder, "store.db"), 0o666))
	require.Equal(t, []string{"<nil>", "<nil>"}, try("store.db"), "a store that is there needs no new files")
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, files, 1)
}
