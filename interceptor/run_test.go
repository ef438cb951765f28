package interceptor_test

import (
	"context"
	"errors"
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
	"github.com/oncerpc/oncerpc/store/storetest"
)

type handler = func(context.Context, *testpb.Request, int64) (*testpb.Response, error)

func TestCallerLeaves(t *testing.T) {
	t.Run("mid_handler_and_its_retry_gets_the_outcome", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
				time.Sleep(2 * time.Second)
				// The caller left long ago: the context lives, and metadata is accepted.
				if err := errors.Join(ctx.Err(), grpc.SetHeader(ctx, metadata.Pairs("h", "1")), grpc.SetTrailer(ctx, metadata.Pairs("t", "2")),
					grpc.SendHeader(ctx, nil)); err != nil {
					return nil, err
				}
				return &testpb.Response{Number: n}, nil
			}})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.Equal(t, codes.DeadlineExceeded, status.Code(s.call(ctx, "Plain", key("a"), "x").err))
			joined := s.call(t.Context(), "Plain", key("a"), "x")
			joined.requireOK(t, 1, interceptor.StatusJoined)
			require.NotEmpty(t, joined.trailer.Get(interceptor.MetadataFirstSeen))
			again := s.call(t.Context(), "Plain", key("a"), "x")
			again.requireOK(t, 1, interceptor.StatusReplayed)
			for _, r := range []reply{joined, again} {
				require.Equal(t, []string{"1"}, r.header.Get("h"))
				require.Equal(t, []string{"2"}, r.trailer.Get("t"))
			}
		})
	})

	t.Run("a_cancelled_caller_cancels_nothing_before_the_timeout", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			ended := make(chan error, 1)
			s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
				began := time.Now()
				<-ctx.Done()
				require.Equal(t, 3*time.Second, time.Since(began)) // 1 s with the caller, then the method's 2 s
				ended <- context.Cause(ctx)
				return nil, ctx.Err()
			}})
			ctx, cancel := context.WithCancel(t.Context())
			first := async(func() reply { return s.call(ctx, "Brief", key("a"), "x") })
			time.Sleep(time.Second)
			cancel()
			require.Equal(t, codes.Canceled, status.Code((<-first).err))
			require.ErrorIs(t, <-ended, interceptor.ErrTimeout)
			settle()
			r := s.call(t.Context(), "Brief", key("a"), "x")
			require.Equal(t, codes.Canceled, status.Code(r.err))
			require.Equal(t, interceptor.StatusReplayed, r.status(t))
			require.Equal(t, []string{"ambiguous"}, r.trailer.Get(interceptor.MetadataOutcome))
		})
	})

	t.Run("the_run_ends_at_the_later_of_deadline_and_timeout", func(t *testing.T) {
		for _, row := range []struct{ deadline, want time.Duration }{{time.Second, 2 * time.Second}, {5 * time.Second, 5 * time.Second}} {
			bubble(t, func(t *testing.T) {
				ended := make(chan time.Duration, 1)
				s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
					began := time.Now()
					<-ctx.Done()
					ended <- time.Since(began)
					return nil, ctx.Err()
				}})
				ctx, cancel := context.WithTimeout(t.Context(), row.deadline)
				defer cancel()
				require.Error(t, s.call(ctx, "Brief", key("a"), "x").err)
				require.Equal(t, row.want, (<-ended).Round(100*time.Millisecond))
				settle()
			})
		}
	})

	t.Run("a_caller_with_a_deadline_that_leaves_early_shortens_nothing", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			ended := make(chan time.Duration, 1)
			s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
				began := time.Now()
				<-ctx.Done()
				ended <- time.Since(began)
				return nil, ctx.Err()
			}})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			time.AfterFunc(time.Second, cancel)
			require.Equal(t, codes.Canceled, status.Code(s.call(ctx, "Brief", key("a"), "x").err))
			require.Equal(t, 10*time.Second, (<-ended).Round(100*time.Millisecond), "not 2 s after it left")
			settle()
		})
	})

	t.Run("the_handlers_context_ends_with_it_also_while_the_store_is_away", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			left := make(chan context.Context, 1)
			records := &faulty{Store: new(storetest.Memory), finish: failing(errDisk)}
			s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
				left <- ctx
				return &testpb.Response{Number: n}, nil
			}})
			first := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
			settle()
			require.ErrorIs(t, (<-left).Err(), context.Canceled)
			records.set(nil, nil)
			(<-first).requireOK(t, 1, interceptor.StatusExecuted)
		})
	})

	t.Run("without_a_key_the_handler_is_cancelled_as_ever", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			ended := make(chan time.Duration, 1)
			s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
				began := time.Now()
				<-ctx.Done()
				ended <- time.Since(began)
				return nil, ctx.Err()
			}})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.Error(t, s.call(ctx, "Brief", "", "x").err)
			require.Equal(t, time.Second, (<-ended).Round(100*time.Millisecond))
		})
	})

	t.Run("abandoned_handlers_do_not_stall_the_connection", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, r *testpb.Request, n int64) (*testpb.Response, error) {
				if r.GetText() == "slow" {
					time.Sleep(time.Minute)
				}
				return &testpb.Response{Number: n}, nil
			}})
			// grpc's default is unbounded; a server with MaxConcurrentStreams 2.
			s = serveLimited(t, s)
			for _, k := range []string{"a", "b"} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				require.Error(t, s.call(ctx, "Plain", key(k), "slow").err)
				cancel()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			s.call(ctx, "Plain", key("c"), "quick").requireOK(t, 3, interceptor.StatusExecuted)
			time.Sleep(time.Minute)
		})
	})
}

func TestHandlerDoesNotReturn(t *testing.T) {
	cases := map[string]struct {
		handle handler
		text   string
	}{
		"panic":       {func(context.Context, *testpb.Request, int64) (*testpb.Response, error) { panic("boom") }, "handler panicked"},
		"panic_nil":   {func(context.Context, *testpb.Request, int64) (*testpb.Response, error) { panic(nil) }, "handler panicked"},
		"panic_error": {func(context.Context, *testpb.Request, int64) (*testpb.Response, error) { panic(errors.New("boom")) }, "handler panicked"},
		"goexit": {func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			runtime.Goexit()
			return nil, nil
		}, "the handler exited without returning"},
	}
	for name, c := range cases {
		t.Run(name+"_is_stored_as_ambiguous_and_not_run_again", func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), &service{handle: c.handle})
			first := s.call(t.Context(), "Plain", key("a"), "x")
			require.Equal(t, codes.Internal, status.Code(first.err))
			if name != "goexit" {
				require.ErrorContains(t, first.err, "recovered: handler panicked")
				require.ErrorContains(t, first.err, "run_test.go", "the recovery outside has to see the handler's stack")
			}
			again := s.call(t.Context(), "Plain", key("a"), "x")
			require.Equal(t, codes.Internal, status.Code(again.err))
			require.ErrorContains(t, again.err, c.text)
			require.NotContains(t, again.err.Error(), "boom")
			require.Equal(t, interceptor.StatusReplayed, again.status(t))
			require.Equal(t, []string{"ambiguous"}, again.trailer.Get(interceptor.MetadataOutcome))
			require.EqualValues(t, 1, s.svc.runs.Load())
		})
	}

	t.Run("panic_value_is_kept_for_the_recovery_outside", func(t *testing.T) {
		cause := errors.New("cause")
		svc := &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) { panic(cause) }}
		once := interceptor.NewServer(new(storetest.Memory), tenantOf)
		got := make(chan any, 1)
		s := serve(t, once, svc, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			defer func() { got <- recover() }()
			return once.Unary(ctx, req, info, h)
		})
		_ = s.call(t.Context(), "Plain", key("a"), "x")
		var p *interceptor.HandlerPanic
		require.ErrorAs(t, (<-got).(error), &p)
		require.ErrorIs(t, p, cause)
		require.Contains(t, string(p.Stack), "TestHandlerDoesNotReturn")
	})

	t.Run("panic_after_the_caller_left_is_settled_and_ends_no_process", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
				time.Sleep(2 * time.Second)
				panic("boom")
			}})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.Error(t, s.call(ctx, "Plain", key("a"), "x").err)
			time.Sleep(2 * time.Second)
			r := s.call(t.Context(), "Plain", key("a"), "x")
			require.ErrorContains(t, r.err, "handler panicked")
		})
	})

	t.Run("response_that_cannot_be_marshalled_is_ambiguous", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			return &testpb.Response{Text: "not utf-8: \xff"}, nil
		}})
		for _, st := range []interceptor.Status{interceptor.StatusExecuted, interceptor.StatusReplayed} {
			r := s.call(t.Context(), "Plain", key("a"), "x")
			require.Equal(t, codes.Internal, status.Code(r.err))
			require.Equal(t, st, r.status(t))
			require.Equal(t, []string{"ambiguous"}, r.trailer.Get(interceptor.MetadataOutcome))
		}
		require.EqualValues(t, 1, s.svc.runs.Load())
	})
}

func TestDrain(t *testing.T) {
	t.Run("refuses_new_calls_answers_waiters_and_waits_for_runs", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), &service{handle: func(_ context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
				if n == 1 {
					time.Sleep(3 * time.Second)
				}
				return &testpb.Response{Number: n}, nil
			}})
			first := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
			time.Sleep(time.Second)
			waiter := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
			time.Sleep(time.Second)
			drained := async(func() error { return s.once.Drain(t.Context()) })
			settle()
			requireWait(t, <-waiter, codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, 2*time.Second)
			requireWait(t, s.call(t.Context(), "Plain", key("b"), "x"), codes.Unavailable, oncerpcv1.Reason_DRAINING, time.Second)
			s.call(t.Context(), "Plain", "", "x").requireOK(t, 2, interceptor.StatusNone)
			select {
			case err := <-drained:
				require.Fail(t, "drained while a run was under way", "%v", err)
			default:
			}
			(<-first).requireOK(t, 1, interceptor.StatusExecuted)
			require.NoError(t, <-drained)
			require.NoError(t, s.once.Drain(t.Context()), "a second time")
		})
	})

	t.Run("cancels_what_is_left_when_its_time_is_over", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			cause := make(chan error, 2)
			s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, r *testpb.Request, _ int64) (*testpb.Response, error) {
				<-ctx.Done()
				cause <- context.Cause(ctx)
				if r.GetText() == "deaf" {
					time.Sleep(time.Minute)
				}
				return nil, interceptor.NoEffect(ctx.Err())
			}})
			heeds := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "heeds") })
			deaf := async(func() reply { return s.call(t.Context(), "Plain", key("b"), "deaf") })
			settle()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			require.ErrorContains(t, s.once.Drain(ctx), "1 runs left")
			require.Equal(t, 2*time.Second, time.Since(began))
			require.ErrorIs(t, <-cause, interceptor.ErrDraining)
			require.ErrorIs(t, <-cause, interceptor.ErrDraining)
			require.Equal(t, interceptor.StatusReleased, (<-heeds).status(t))
			requireWait(t, <-deaf, codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, 2*time.Second)
			require.NoError(t, s.once.Drain(t.Context()))
		})
	})
}
