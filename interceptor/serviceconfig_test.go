package interceptor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

// stockServer counts what the clients that know nothing but a service config send.
type stockServer struct {
	*server
	attempts atomic.Int64
}

func newStockServer(t *testing.T, records store.Store, handle handler) *stockServer {
	t.Helper()
	s := &stockServer{}
	once := interceptor.NewServer(records, tenantOf)
	count := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		s.attempts.Add(1)
		return next(ctx, req)
	}
	s.server = serve(t, once, &service{handle: handle}, count, once.Unary)
	return s
}

// callStock makes a call as a client with that service config does, and tells how many attempts it was.
func (s *stockServer) callStock(t *testing.T, config, method string) (r reply, attempts int) {
	t.Helper()
	conn := dial(t, s.lis, grpc.WithDefaultServiceConfig(config))
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, interceptor.MetadataKey, key("a"))
	before := s.attempts.Load()
	r.resp = &testpb.Response{}
	r.err = conn.Invoke(ctx, testService+method, &testpb.Request{}, r.resp, grpc.Header(&r.header), grpc.Trailer(&r.trailer))
	return r, int(s.attempts.Load() - before)
}

func TestServiceConfig(t *testing.T) {
	config := interceptor.ServiceConfig(
		testService+"Plain", testService+"Impatient", testService+"Releasing", "oncerpc.internal.testpb.TestService",
	)

	t.Run("waits_through_IN_PROGRESS_for_the_answer", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newStockServer(t, new(storetest.Memory), func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
				time.Sleep(2 * time.Second)
				return &testpb.Response{Number: 1}, nil
			})
			first := async(func() reply { return s.call(t.Context(), "Impatient", key("a"), "") })
			time.Sleep(500 * time.Millisecond)
			second, attempts := s.callStock(t, config, "Impatient")
			second.requireOK(t, 1, interceptor.StatusReplayed)
			require.Greater(t, attempts, 1)
			(<-first).requireOK(t, 1, interceptor.StatusExecuted)
			require.EqualValues(t, 1, s.svc.runs.Load())
		})
	})

	t.Run("goes_on_after_UNAVAILABLE", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			away := 2
			records := &faulty{Store: new(storetest.Memory), begin: func() error {
				if away--; away >= 0 {
					return errors.New("away")
				}
				return nil
			}}
			s := newStockServer(t, records, nil)
			r, attempts := s.callStock(t, config, "Plain")
			r.requireOK(t, 1, interceptor.StatusExecuted)
			require.Equal(t, 3, attempts)
		})
	})

	t.Run("goes_on_after_an_error_that_released_the_key", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newStockServer(t, new(storetest.Memory), func(_ context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
				if n == 1 {
					return nil, status.Error(codes.Aborted, "somebody else was first")
				}
				return &testpb.Response{Number: n}, nil
			})
			r, attempts := s.callStock(t, config, "Releasing")
			r.requireOK(t, 2, interceptor.StatusExecuted)
			require.Equal(t, 2, attempts)
		})
	})

	for _, code := range []codes.Code{codes.Unavailable, codes.Aborted, codes.FailedPrecondition} {
		t.Run(fmt.Sprintf("kept_%v_is_not_retried", code), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := newStockServer(t, new(storetest.Memory), func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
					return nil, status.Error(code, "no")
				})
				for _, want := range []interceptor.Status{interceptor.StatusExecuted, interceptor.StatusReplayed} {
					r, attempts := s.callStock(t, config, "Required")
					require.Equal(t, code, status.Code(r.err))
					require.Equal(t, want, r.status(t))
					require.Equal(t, 1, attempts)
				}
			})
		})
	}

	t.Run("service_stands_for_its_methods_that_require_a_key", func(t *testing.T) {
		require.Equal(t,
			interceptor.ServiceConfig(testService+"Required", testService+"Fielded"),
			interceptor.ServiceConfig("oncerpc.internal.testpb.TestService", testService+"Required"))
	})

	t.Run("hedging_is_JSON_that_gRPC_takes", func(t *testing.T) {
		for delay, want := range map[time.Duration]string{
			10 * time.Second: "10s", 4350 * time.Millisecond: "4.35s", time.Nanosecond: "0.000000001s",
		} {
			config := interceptor.HedgingServiceConfig(delay, testService+"Required")
			var parsed struct {
				MethodConfig []struct {
					HedgingPolicy struct{ HedgingDelay string }
				}
			}
			require.NoError(t, json.Unmarshal([]byte(config), &parsed))
			require.Equal(t, want, parsed.MethodConfig[0].HedgingPolicy.HedgingDelay)

			s := newStockServer(t, new(storetest.Memory), nil)
			r, _ := s.callStock(t, config, "Required")
			r.requireOK(t, 1, interceptor.StatusExecuted)
		}
	})

	for name, names := range map[string][]string{
		"nothing":                        nil,
		"method_that_is_not_linked":      {testService + "Chrage"},
		"method_without_slash":           {"oncerpc.internal.testpb.TestService.Plain"},
		"service_that_is_not_linked":     {"payment.v1.Payments"},
		"method_with_two_slashes":        {"/" + testService + "Plain"},
		"streaming_method":               {testService + "Watch"},
		"guarded_streaming_method":       {testService + "GuardedWatch"},
		"method_that_ignores_keys":       {testService + "Read"},
		"method_whose_policy_is_no_good": {testService + "Nonsense"},
	} {
		t.Run(name+"_panics", func(t *testing.T) {
			require.Panics(t, func() { interceptor.ServiceConfig(names...) })
		})
	}

	t.Run("hedging_without_delay_panics", func(t *testing.T) {
		require.Panics(t, func() { interceptor.HedgingServiceConfig(0, testService+"Plain") })
	})
}

func ExampleServiceConfig() {
	fmt.Println(interceptor.ServiceConfig("oncerpc.internal.testpb.TestService"))
	// Output:
	// {
	//   "methodConfig": [
	//     {
	//       "name": [
	//         {
	//           "service": "oncerpc.internal.testpb.TestService",
	//           "method": "Required"
	//         },
	//         {
	//           "service": "oncerpc.internal.testpb.TestService",
	//           "method": "Fielded"
	//         }
	//       ],
	//       "retryPolicy": {
	//         "maxAttempts": 5,
	//         "initialBackoff": "0.1s",
	//         "maxBackoff": "5s",
	//         "backoffMultiplier": 2,
	//         "retryableStatusCodes": [
	//           "UNAVAILABLE",
	//           "ABORTED"
	//         ]
	//       }
	//     }
	//   ],
	//   "retryThrottling": {
	//     "maxTokens": 100,
	//     "tokenRatio": 0.1
	//   }
	// }
}

func ExampleHedgingServiceConfig() {
	fmt.Println(interceptor.HedgingServiceConfig(500*time.Millisecond, "/oncerpc.internal.testpb.TestService/Required"))
	// Output:
	// {
	//   "methodConfig": [
	//     {
	//       "name": [
	//         {
	//           "service": "oncerpc.internal.testpb.TestService",
	//           "method": "Required"
	//         }
	//       ],
	//       "hedgingPolicy": {
	//         "maxAttempts": 3,
	//         "hedgingDelay": "0.5s",
	//         "nonFatalStatusCodes": [
	//           "UNAVAILABLE",
	//           "ABORTED"
	//         ]
	//       }
	//     }
	//   ],
	//   "retryThrottling": {
	//     "maxTokens": 100,
	//     "tokenRatio": 0.1
	//   }
	// }
}
