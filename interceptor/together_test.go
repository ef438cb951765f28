package interceptor_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	"github.com/oncerpc/oncerpc/store/storetest"
)

// withClient gives s a connection with the client interceptor, or with other options.
func (s *server) withClient(t *testing.T, opts ...grpc.DialOption) *server {
	t.Helper()
	c := *s
	c.conn = dial(t, s.lis, opts...)
	t.Cleanup(func() { _ = c.conn.Close() })
	return &c
}

func guardedClient(opts ...interceptor.ClientOption) grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(interceptor.NewClient(opts...).Unary)
}

func TestClientAndServerTogether(t *testing.T) {
	t.Run("a_stored_error_comes_with_its_details_and_is_not_retried", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			st, err := status.New(codes.Unavailable, "bank is closed").WithDetails(
				&errdetails.ErrorInfo{Domain: "bank.example", Reason: "CLOSED"},
				&errdetails.LocalizedMessage{Locale: "en", Message: "Come back tomorrow."},
			)
			require.NoError(t, err)
			s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
				return nil, interceptor.Final(st.Err())
			}}).withClient(t, grpc.WithDisableRetry(), guardedClient())
			began := time.Now()
			for _, want := range []interceptor.Status{interceptor.StatusExecuted, interceptor.StatusReplayed} {
				r := s.call(t.Context(), "Guarded", key("a"), "x")
				require.Equal(t, want, r.status(t))
				require.True(t, proto.Equal(st.Proto(), status.Convert(r.err).Proto()))
				k, ok := interceptor.KeyFromError(r.err)
				require.True(t, ok)
				require.Equal(t, key("a"), k)
			}
			require.Zero(t, time.Since(began), "no retry waits")
			require.EqualValues(t, 1, s.svc.runs.Load())
		})
	})

	t.Run("unavailable_passed_on_after_an_effect_is_ambiguous_and_not_run_again", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			effects := 0
			s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
				effects++
				return nil, status.Error(codes.Unavailable, "the ledger took it, then its connection broke")
			}}).withClient(t, grpc.WithDisableRetry(), guardedClient())
			for range 3 {
				r := s.call(t.Context(), "Guarded", key("a"), "x")
				require.Equal(t, codes.Unavailable, status.Code(r.err))
				require.Equal(t, []string{"ambiguous"}, r.trailer.Get(interceptor.MetadataOutcome))
			}
			require.Equal(t, 1, effects)
		})
	})

	t.Run("a_call_without_a_key_of_its_own_gets_one_for_all_attempts", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), slow(3*time.Second))
			c := s.withClient(t, grpc.WithDisableRetry(), guardedClient(interceptor.WithAttemptTimeout(time.Second)))
			r := c.call(t.Context(), "Guarded", "", "x")
			require.NoError(t, r.err)
			require.Contains(t, []interceptor.Status{interceptor.StatusJoined, interceptor.StatusReplayed}, r.status(t))
			require.EqualValues(t, 1, s.svc.runs.Load())
		})
	})

	t.Run("our_client_waits_through_in_progress", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), slow(40*time.Second))
			c := s.withClient(t, grpc.WithDisableRetry(), guardedClient())
			first := async(func() reply { return s.call(t.Context(), "Guarded", key("a"), "x") })
			settle()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r := c.call(ctx, "Guarded", key("a"), "x") // eight times 5 s of waiting
			require.NoError(t, r.err)
			require.EqualValues(t, 1, r.resp.GetNumber())
			<-first
		})
	})

	t.Run("released_outcomes_are_retried_when_they_say_so", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), &service{handle: func(_ context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
				if n < 3 {
					return nil, status.Error(codes.Aborted, "row is locked")
				}
				return &testpb.Response{Number: n}, nil
			}}).withClient(t, grpc.WithDisableRetry(), guardedClient())
			s.call(t.Context(), "Releasing", key("a"), "x").requireOK(t, 3, interceptor.StatusExecuted)
		})
	})
}

// TestStockClient: clients of any language without our interceptor get through by a service config alone.
func TestStockClient(t *testing.T) {
	const config = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "5s",
		"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE", "ABORTED"]}}], "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1}}`

	t.Run("passes_through_in_progress_to_the_answer", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			var attempts atomic.Int32
			once := interceptor.NewServer(new(storetest.Memory), tenantOf)
			s := serve(t, once, slow(12*time.Second), func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
				attempts.Add(1)
				return once.Unary(ctx, req, info, h)
			})
			stock := s.withClient(t, grpc.WithDefaultServiceConfig(config))
			first := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
			settle()
			r := stock.call(t.Context(), "Plain", key("a"), "x")
			r.requireOK(t, 1, interceptor.StatusJoined)
			require.EqualValues(t, 3, attempts.Load(), "the first caller, IN_PROGRESS after 5 s, the answer")
			(<-first).requireOK(t, 1, interceptor.StatusExecuted)
			require.EqualValues(t, 1, s.svc.runs.Load())
		})
	})

	t.Run("does_not_retry_a_stored_unavailable", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			return nil, status.Error(codes.Unavailable, "gone")
		}})
		var attempts int
		counted := serve(t, s.once, s.svc, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			attempts++
			return s.once.Unary(ctx, req, info, h)
		}).withClient(t, grpc.WithDefaultServiceConfig(config))
		ctx := metadata.AppendToOutgoingContext(t.Context(), interceptor.MetadataKey, key("a"))
		require.Equal(t, codes.Unavailable, status.Code(counted.invoke(ctx, "Plain", &testpb.Request{}).err))
		require.Equal(t, 1, attempts)
		require.EqualValues(t, 1, s.svc.runs.Load())
	})
}
