package interceptor

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
)

// nowhere is a store that is never asked.
type nowhere struct{ store.Store }

// TestDefaults names every number that holds when no option says otherwise.
func TestDefaults(t *testing.T) {
	s := NewServer(nowhere{}, SharedScope)
	require.Equal(t, 1_000, s.opts.waitersPerKey)
	require.Equal(t, 10_000, s.opts.waitersInAll)
	require.Equal(t, 10_000, s.opts.callerless)
	require.Equal(t, 4<<20, s.opts.maxResponse)
	require.Equal(t, 6<<10, maxHeaders)
	require.Equal(t, 1<<10, maxMessage)
	require.Equal(t, 10*time.Second, storeTimeout)
	require.Equal(t, 10*time.Second, settlePatience)

	p, err := s.policies.of("/oncerpc.internal.testpb.TestService/Plain")
	require.NoError(t, err)
	require.Equal(t, oncerpcv1.MethodPolicy_OPTIONAL, p.key)
	require.Equal(t, 24*time.Hour, p.retention)
	require.Equal(t, time.Minute, p.timeout)
	require.Equal(t, 5*time.Second, p.wait)
	require.Equal(t, 30*time.Second, p.lease)
	require.False(t, p.rerun)
	require.Equal(t, 3, p.maxAttempts)
	require.False(t, p.inTransaction)

	require.Error(t, checkKey(strings.Repeat("k", 15), nil))
	require.NoError(t, checkKey(strings.Repeat("k", 16), nil))
	require.NoError(t, checkKey(strings.Repeat("k", 255), nil))
	require.Error(t, checkKey(strings.Repeat("k", 256), nil))

	c := NewClient()
	require.Equal(t, 5, c.options.attempts)
	require.Equal(t, 100*time.Millisecond, c.options.backoffBase)
	require.Equal(t, 5*time.Second, c.options.backoffCap)
	require.Zero(t, c.options.attemptTimeout)

	// Waits: a run's age, from 100 ms to 5 s.
	require.Equal(t, 100*time.Millisecond, ageWait(0))
	require.Equal(t, 3*time.Second, ageWait(3*time.Second))
	require.Equal(t, 5*time.Second, ageWait(time.Hour))
	for range 1_000 {
		w := jitter(time.Second)
		require.GreaterOrEqual(t, w, 800*time.Millisecond)
		require.LessOrEqual(t, w, 1200*time.Millisecond)
	}
}
