package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain is the program where the program starts itself as a server.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-serve") {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestTransfer(t *testing.T) {
	t.Run("in_the_stores_transaction_every_transfer_happens_exactly_once", func(t *testing.T) {
		var account strings.Builder
		clean, err := run(&account, 3*time.Second, false)
		require.NoError(t, err)
		require.True(t, clean, "%s", account.String())
		require.NotContains(t, account.String(), "killed 0 times")
		require.NotContains(t, account.String(), "orders answered        0")
	})

	t.Run("without_it_the_audit_finds_the_double_transfers", func(t *testing.T) {
		var account strings.Builder
		for range 5 { // a kill has to come between the two commits
			clean, err := run(&account, 3*time.Second, true)
			require.NoError(t, err)
			if !clean {
				return
			}
		}
		require.Fail(t, "the audit sees nothing", "%s", account.String())
	})
}
