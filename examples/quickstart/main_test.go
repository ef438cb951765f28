package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden file instead of comparing with it")

func TestQuickstart(t *testing.T) {
	var account bytes.Buffer
	require.NoError(t, run(&account))
	// The retry may come while the first run is still being recorded, or after.
	got := strings.ReplaceAll(account.String(), "(joined)", "(replayed)")

	golden := filepath.Join("testdata", "account.txt")
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestVerdict(t *testing.T) {
	t.Run("every_promise_without_evidence_is_broken", func(t *testing.T) {
		promises := evidence{}.promises()
		for _, p := range promises {
			require.False(t, p.kept, p.text)
		}
		require.Error(t, (&account{w: io.Discard}).verdict(promises))
	})

	t.Run("account_that_cannot_be_written_is_an_error", func(t *testing.T) {
		require.ErrorIs(t, (&account{w: shut{}}).verdict(nil), io.ErrClosedPipe)
	})
}

type shut struct{}

func (shut) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
