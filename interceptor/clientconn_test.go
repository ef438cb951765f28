package interceptor_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

func TestClientBudget(t *testing.T) {
	clientBubble(t, "drained_budget_ends_retries_and_not_first_attempts", func(t *testing.T) {
		failing := true
		script := func(ctx context.Context, _ int, _ any) (*testpb.Response, error) {
			if failing {
				return nil, errClientUnavailable
			}
			return clientExecuted(ctx)
		}
		once := interceptor.NewClient(interceptor.WithAttempts(6))
		h := newClientHarness(t, once, script)
		call := func(h *clientHarness) (attempts int, err error) {
			before := len(h.attempts())
			_, err = h.Guarded(t.Context(), &testpb.Request{})
			return len(h.attempts()) - before, err
		}
		for i := range 30 {
			n, err := call(h)
			requireClientCode(t, codes.Unavailable, err)
			switch {
			case i < 8:
				require.Equal(t, 6, n, "call %d", i)
			case i == 8: // the 50th failure leaves 50
				require.Equal(t, 2, n)
			default:
				require.Equal(t, 1, n, "call %d", i)
			}
		}
		// 100 tokens less 71 failures leave 29. 221 successes bring 22.1, and the first failure after them leaves 50.1.
		failing = false
		for range 221 {
			n, err := call(h)
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
		failing = true
		n, err := call(h)
		requireClientCode(t, codes.Unavailable, err)
		require.Equal(t, 2, n)

		other := newClientHarness(t, once, script)
		n, _ = call(other)
		require.Equal(t, 6, n, "another connection has its own budget")
	})
	clientBubble(t, "answers_that_nobody_retries_cost_nothing", func(t *testing.T) {
		err := status.Error(codes.NotFound, "scripted")
		h := newClientHarness(t, interceptor.NewClient(), func(ctx context.Context, n int, _ any) (*testpb.Response, error) {
			switch {
			case n <= 100:
				return nil, clientMarked(ctx, err, "grpc-retry-pushback-ms", "-1")
			case n <= 200:
				return nil, clientMarked(ctx, errClientUnavailable, interceptor.MetadataStatus, "replayed", "grpc-retry-pushback-ms", "-1")
			default:
				return nil, errClientUnavailable
			}
		})
		for range 200 {
			_, err := h.Guarded(t.Context(), &testpb.Request{})
			require.Error(t, err)
		}
		_, _ = h.Guarded(t.Context(), &testpb.Request{})
		require.Len(t, h.attempts(), 205)
	})
	clientBubble(t, "in_progress_costs_only_without_a_deadline", func(t *testing.T) {
		failure := clientRefusal(codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, time.Second)
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(1000, failure))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second+time.Millisecond)
		defer cancel()
		_, err := h.Guarded(ctx, &testpb.Request{})
		require.Error(t, err)
		require.Len(t, h.attempts(), 101)
		for range 10 {
			_, err := h.Guarded(t.Context(), &testpb.Request{})
			require.Error(t, err)
		}
		require.Len(t, h.attempts(), 151)
		_, err = h.Guarded(t.Context(), &testpb.Request{})
		require.Error(t, err)
		require.Len(t, h.attempts(), 152)
	})
}

func TestClientUnguarded(t *testing.T) {
	const key = "0123456789abcdef"
	// script answers OK with mark, or fails.
	script := func(mark *string, failing *bool) clientScript {
		return func(ctx context.Context, _ int, _ any) (*testpb.Response, error) {
			var err error
			if *failing {
				err = errClientUnavailable
			}
			response := &testpb.Response{}
			if err != nil {
				response = nil
			}
			if *mark == "" {
				return response, err
			}
			return response, clientMarked(ctx, err, interceptor.MetadataStatus, *mark)
		}
	}
	for name, first := range map[string]string{"without_a_status": "", "ignored": "ignored"} {
		clientBubble(t, "OK_"+name+"_ends_retries_until_a_status_comes", func(t *testing.T) {
			seen := new(events)
			once := interceptor.NewClient(interceptor.WithAttempts(2), interceptor.WithObserver(seen))
			mark, failing := first, false
			h := newClientHarness(t, once, script(&mark, &failing))
			_, err := h.Guarded(t.Context(), &testpb.Request{})
			require.NoError(t, err)
			require.Equal(t, testpb.TestService_Guarded_FullMethodName, seen.all[0].Method)
			require.Equal(t, kinds(map[string]interceptor.EventKind{
				"": interceptor.EventUnguarded, "ignored": interceptor.EventIgnored,
			}[first]), seen.take())

			mark, failing = "", true
			attempts := func(call func() error) int {
				before := len(h.attempts())
				require.Error(t, call())
				return len(h.attempts()) - before
			}
			guarded := func() error { _, err := h.Guarded(t.Context(), &testpb.Request{}); return err }
			explicit := func() error {
				_, err := h.Guarded(t.Context(), &testpb.Request{}, interceptor.Key(key))
				return err
			}
			required := func() error { _, err := h.Required(t.Context(), &testpb.Request{}); return err }
			idempotent := func() error { _, err := h.Put(t.Context(), &testpb.Request{}); return err }
			require.Equal(t, 1, attempts(guarded))
			require.Equal(t, 1, attempts(explicit))
			require.Equal(t, 2, attempts(required), "another method")
			require.Equal(t, 2, attempts(idempotent))
			other := newClientHarness(t, once, script(&mark, &failing))
			_, err = other.Guarded(t.Context(), &testpb.Request{})
			require.Error(t, err)
			require.Len(t, other.attempts(), 2, "another connection")

			mark, failing = "executed", false
			require.NoError(t, guarded())
			mark, failing = "", true
			require.Equal(t, 2, attempts(guarded))
		})
	}
	clientBubble(t, "status_in_the_header_of_an_OK_is_enough", func(t *testing.T) {
		seen := new(events)
		once := interceptor.NewClient(interceptor.WithObserver(seen))
		h := newClientHarness(t, once, func(ctx context.Context, _ int, _ any) (*testpb.Response, error) {
			return &testpb.Response{}, grpc.SetHeader(ctx, metadata.Pairs(interceptor.MetadataStatus, "executed"))
		})
		_, err := h.Guarded(t.Context(), &testpb.Request{})
		require.NoError(t, err)
		require.Empty(t, seen.take())
	})
	clientBubble(t, "status_on_an_error_shows_that_the_method_is_guarded", func(t *testing.T) {
		mark, failing := "", false
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithAttempts(2)), script(&mark, &failing))
		_, err := h.Guarded(t.Context(), &testpb.Request{})
		require.NoError(t, err)
		mark, failing = "released", true
		_, err = h.Guarded(t.Context(), &testpb.Request{})
		require.Error(t, err)
		require.Len(t, h.attempts(), 3)
	})
	clientBubble(t, "idempotent_method_with_a_key_is_retried_though_the_key_is_ignored", func(t *testing.T) {
		mark, failing := "ignored", false
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithAttempts(2)), script(&mark, &failing))
		_, err := h.Put(t.Context(), &testpb.Request{}, interceptor.Key(key))
		require.NoError(t, err)
		failing = true
		_, err = h.Put(t.Context(), &testpb.Request{}, interceptor.Key(key))
		require.Error(t, err)
		require.Len(t, h.attempts(), 3)
	})
	clientBubble(t, "call_that_waits_is_not_sent_again_when_another_finds_nobody_guarding", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), func(ctx context.Context, n int, _ any) (*testpb.Response, error) {
			if n == 1 {
				return nil, clientMarked(ctx, errClientUnavailable, "grpc-retry-pushback-ms", "10000")
			}
			return &testpb.Response{}, nil
		})
		waiting := make(chan error)
		go func() {
			_, err := h.Guarded(t.Context(), &testpb.Request{})
			waiting <- err
		}()
		time.Sleep(time.Second)
		_, err := h.Guarded(t.Context(), &testpb.Request{})
		require.NoError(t, err)
		requireClientCode(t, codes.Unavailable, <-waiting)
		require.Len(t, h.attempts(), 2)
	})
}

func TestClientForgetsClosedConns(t *testing.T) {
	once := interceptor.NewClient()
	func() {
		for range 3 {
			h := startClientHarness(once, clientFailing(0, nil))
			_, err := h.Guarded(t.Context(), &testpb.Request{})
			require.NoError(t, err)
			h.stop()
		}
	}()
	require.Positive(t, once.KnownConns())
	for deadline := time.Now().Add(10 * time.Second); once.KnownConns() > 0 && time.Now().Before(deadline); runtime.Gosched() {
		runtime.GC() // a cleanup runs some time after its object was found dead
	}
	require.Zero(t, once.KnownConns())
}
