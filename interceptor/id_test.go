package interceptor

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

// The vectors are for ever: an ID that changes forgets every key.
func TestIdentity(t *testing.T) {
	secret := []byte("0123456789abcdef0123456789abcdef")
	owner := func(i identity, scope string) string {
		o := i.owner(scope)
		return hex.EncodeToString(o[:])
	}
	t.Run("vectors", func(t *testing.T) {
		require.Equal(t, "8809053a62dbc3e4423e2c4538a0e8e949d8b5753f800c165451e8e09828a398", identity{}.id("tenant", goodKey).String())
		require.Equal(t, "8febce7e46a5b4bae4b5ce29182bba661448f6bc7f3fdd045b4827bbd0f5ecaf", identity{}.id("", "").String())
		require.Equal(t, "777f705f5c1ce49ec08794fb59ceda5b9b40241f237935e418b66a5d63729ce9", identity{secret}.id("tenant", goodKey).String())
		require.Equal(t, "1b54e1d8d22a975b", owner(identity{}, "tenant"))
		require.Equal(t, "ddd41f39d25e73e2", owner(identity{secret}, "tenant"))
	})
	t.Run("scope_and_key_cannot_be_cut_differently", func(t *testing.T) {
		require.NotEqual(t, identity{}.id("ab", "c"), identity{}.id("a", "bc"))
	})
	t.Run("an_owner_is_not_the_beginning_of_an_id", func(t *testing.T) {
		id := identity{}.id("tenant", "")
		require.NotEqual(t, [8]byte(id[:8]), identity{}.owner("tenant"))
	})
	t.Run("another_secret_gives_other_ids_and_owners", func(t *testing.T) {
		require.NotEqual(t, identity{secret}.id("tenant", goodKey), identity{secret[1:]}.id("tenant", goodKey))
		require.NotEqual(t, identity{secret}.owner("tenant"), identity{secret[1:]}.owner("tenant"))
	})
}

func BenchmarkIdentity(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = identity{}.id("tenant", goodKey)
	}
}
