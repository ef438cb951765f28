package interceptor_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

// slow is a handler that takes d.
func slow(d time.Duration) *service {
	return &service{handle: func(_ context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
		time.Sleep(d)
		return &testpb.Response{Number: n}, nil
	}}
}

func TestJoin(t *testing.T) {
	t.Run("ten_thousand_callers_with_one_key_get_one_answer_of_one_run", func(t *testing.T) {
		const callers = 10_000
		release := make(chan struct{})
		s := newServer(t, new(storetest.Memory), &service{handle: func(_ context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
			<-release
			return &testpb.Response{Number: n, Text: "the one answer"}, nil
		}}, interceptor.WithWaiters(callers, callers), interceptor.WithPolicy(testService+"Plain", &oncerpcv1.MethodPolicy{Wait: durationpb.New(time.Minute)}))
		ctx := metadata.AppendToOutgoingContext(t.Context(), interceptor.MetadataKey, key("a"))
		replies := make([]reply, callers)
		var wg sync.WaitGroup
		for i := range replies {
			wg.Go(func() {
				if i == callers/2 {
					close(release)
				}
				replies[i] = s.invoke(ctx, "Plain", &testpb.Request{Text: "x"})
			})
		}
		wg.Wait()
		statuses := map[interceptor.Status]int{}
		for _, r := range replies {
			require.NoError(t, r.err)
			require.Equal(t, "the one answer", r.resp.GetText())
			statuses[interceptor.StatusOf(r.trailer)]++
		}
		require.EqualValues(t, 1, s.svc.runs.Load())
		require.Equal(t, 1, statuses[interceptor.StatusExecuted], "%v", statuses)
		require.Equal(t, callers, statuses[interceptor.StatusExecuted]+statuses[interceptor.StatusJoined]+statuses[interceptor.StatusReplayed])
	})

	t.Run("waiters_are_bounded_per_key", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), slow(2*time.Second))
			first := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
			settle()
			var wg sync.WaitGroup
			var mu sync.Mutex
			var overloaded []reply
			for range 1_001 {
				wg.Go(func() {
					if r := s.call(t.Context(), "Plain", key("a"), "x"); r.err != nil {
						mu.Lock()
						defer mu.Unlock()
						overloaded = append(overloaded, r)
					}
				})
			}
			wg.Wait()
			(<-first).requireOK(t, 1, interceptor.StatusExecuted)
			require.Len(t, overloaded, 1)
			requireWait(t, overloaded[0], codes.ResourceExhausted, oncerpcv1.Reason_OVERLOADED, time.Second)
		})
	})

	t.Run("waiters_are_bounded_in_all_also_for_runs_elsewhere", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			a := newServer(t, records, slow(2*time.Second))
			b := newServer(t, records, slow(0), interceptor.WithWaiters(10, 1))
			first := async(func() reply { return a.call(t.Context(), "Plain", key("a"), "x") })
			settle()
			second := async(func() reply { return b.call(t.Context(), "Plain", key("a"), "x") })
			settle()
			requireWait(t, b.call(t.Context(), "Plain", key("a"), "x"), codes.ResourceExhausted, oncerpcv1.Reason_OVERLOADED, time.Second)
			(<-first).requireOK(t, 1, interceptor.StatusExecuted)
			(<-second).requireOK(t, 1, interceptor.StatusJoined)
		})
	})

	t.Run("waiting_ends_after_the_methods_wait", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), slow(20*time.Second))
			first := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
			settle()
			began := time.Now()
			r := s.call(t.Context(), "Plain", key("a"), "x")
			require.Equal(t, 5*time.Second, time.Since(began))
			requireWait(t, r, codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, 5*time.Second)
			time.Sleep(5 * time.Second)
			requireWait(t, s.call(t.Context(), "Plain", key("a"), "x"), codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, 5*time.Second)
			<-first
		})
	})

	t.Run("waiting_ends_before_the_callers_deadline", func(t *testing.T) {
		for _, row := range []struct{ deadline, want time.Duration }{
			{2 * time.Second, 1900 * time.Millisecond}, {500 * time.Millisecond, 450 * time.Millisecond},
		} {
			bubble(t, func(t *testing.T) {
				s := newServer(t, new(storetest.Memory), slow(20*time.Second))
				first := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
				settle()
				ctx, cancel := context.WithTimeout(t.Context(), row.deadline)
				defer cancel()
				began := time.Now()
				r := s.call(ctx, "Plain", key("a"), "x")
				require.Equal(t, row.want, time.Since(began).Round(10*time.Millisecond))
				require.Equal(t, oncerpcv1.Reason_IN_PROGRESS, interceptor.ReasonOf(r.err))
				<-first
			})
		}
	})

	t.Run("wait_of_zero_answers_at_once", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), slow(time.Second))
			first := async(func() reply { return s.call(t.Context(), "Impatient", key("a"), "x") })
			settle()
			began := time.Now()
			requireWait(t, s.call(t.Context(), "Impatient", key("a"), "x"), codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, 100*time.Millisecond)
			require.Zero(t, time.Since(began))
			(<-first).requireOK(t, 1, interceptor.StatusExecuted)
		})
	})

	t.Run("waiters_that_leave_leave_nothing_behind", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			a, b := newServer(t, records, slow(20*time.Second)), newServer(t, records, slow(0))
			first := async(func() reply { return a.call(t.Context(), "Plain", key("a"), "x") })
			settle()
			for _, s := range []*server{a, b} {
				for range 2_000 { // more than may wait at a time
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					require.NotEqual(t, codes.OK, status.Code(s.call(ctx, "Plain", key("a"), "x").err))
					cancel()
				}
			}
			<-first
		})
	})
}

// TestJoinedRunIsReleased: a waiter gets what the run it joined ended with, and never runs.
func TestJoinedRunIsReleased(t *testing.T) {
	busy := status.Error(codes.ResourceExhausted, "downstream is overloaded")
	releasing := func() *service {
		return &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			time.Sleep(time.Second)
			return nil, interceptor.NoEffect(busy)
		}}
	}
	polled := func(m *storetest.Memory) store.Store { return struct{ store.Store }{m} }
	for name, wrap := range map[string]func(*storetest.Memory) (a, b store.Store, same bool){
		"in_this_process":   func(m *storetest.Memory) (store.Store, store.Store, bool) { return m, m, true },
		"on_another_server": func(m *storetest.Memory) (store.Store, store.Store, bool) { return m, m, false },
		"by_polling":        func(m *storetest.Memory) (store.Store, store.Store, bool) { return m, polled(m), false },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				ra, rb, same := wrap(new(storetest.Memory))
				a := newServer(t, ra, releasing())
				b := a
				if !same {
					b = newServer(t, rb, releasing())
				}
				first := async(func() reply { return a.call(t.Context(), "Plain", key("a"), "x") })
				settle()
				var waiters []<-chan reply
				for range 20 {
					waiters = append(waiters, async(func() reply { return b.call(t.Context(), "Plain", key("a"), "x") }))
				}
				require.Equal(t, interceptor.StatusReleased, (<-first).status(t))
				for _, w := range waiters {
					r := <-w
					require.Equal(t, interceptor.StatusReleased, r.status(t))
					require.Equal(t, "downstream is overloaded", status.Convert(r.err).Message())
					require.Equal(t, oncerpcv1.Reason_REASON_UNSPECIFIED, interceptor.ReasonOf(r.err))
					require.NotZero(t, retryDelay(r.err))
					require.NotEmpty(t, r.trailer.Get("grpc-retry-pushback-ms"))
				}
				require.EqualValues(t, 1, a.svc.runs.Load())
				if !same {
					require.Zero(t, b.svc.runs.Load())
				}
			})
		})
	}

	t.Run("without_an_outcome_the_waiter_is_told_to_come_again", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			s := newServer(t, records, slow(0))
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
			var rec store.Record
			for r, err := range records.List(t.Context(), store.Query{}) {
				require.NoError(t, err)
				rec = r
			}
			time.Sleep(25 * time.Hour) // the outcome has expired: somebody elsewhere claims the key
			claim := store.Claim{ID: rec.ID, Token: store.Token{1}, Fingerprint: rec.Fingerprint, Lease: time.Minute}
			_, err := records.Begin(t.Context(), claim)
			require.NoError(t, err)
			waiter := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
			settle()
			require.NoError(t, records.Finish(t.Context(), rec.ID, store.Token{1}, store.End{State: store.Released, Retention: time.Hour}))
			requireWait(t, <-waiter, codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, 100*time.Millisecond)
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 2, interceptor.StatusExecuted)
		})
	})
}

func TestTwoServersOnOneStore(t *testing.T) {
	for name, wrap := range map[string]func(*storetest.Memory) store.Store{
		"waiting": func(m *storetest.Memory) store.Store { return m },
		"polling": func(m *storetest.Memory) store.Store { return struct{ store.Store }{m} },
	} {
		t.Run("calls_join_across_them_by_"+name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				records := new(storetest.Memory)
				a, b := newServer(t, wrap(records), slow(2*time.Second)), newServer(t, wrap(records), slow(0))
				first := async(func() reply { return a.call(t.Context(), "Plain", key("a"), "x") })
				settle()
				b.call(t.Context(), "Plain", key("a"), "other").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
				joined := b.call(t.Context(), "Plain", key("a"), "x")
				joined.requireOK(t, 1, interceptor.StatusJoined)
				(<-first).requireOK(t, 1, interceptor.StatusExecuted)
				b.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
				require.Zero(t, b.svc.runs.Load())
			})
		})
	}

	t.Run("lease_is_renewed_while_the_handler_runs", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			a, b := newServer(t, records, slow(50*time.Second)), newServer(t, records, slow(0))
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			first := async(func() reply { return a.call(ctx, "Rerun", key("a"), "x") })
			time.Sleep(40 * time.Second) // longer than the lease of 30 s
			require.Equal(t, oncerpcv1.Reason_IN_PROGRESS, interceptor.ReasonOf(b.call(ctx, "Rerun", key("a"), "x").err))
			(<-first).requireOK(t, 1, interceptor.StatusExecuted)
			require.Zero(t, b.svc.runs.Load())
		})
	})

	t.Run("a_lost_lease_is_superseded", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			cause := make(chan error, 1)
			away := &faulty{Store: records, renew: func() error { return context.DeadlineExceeded }}
			a := newServer(t, away, &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
				require.Equal(t, 1, interceptor.Attempt(ctx))
				<-ctx.Done()
				cause <- context.Cause(ctx)
				time.Sleep(10 * time.Second) // it does not heed its context at once
				return &testpb.Response{Number: 100}, nil
			}})
			b := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
				require.Equal(t, 2, interceptor.Attempt(ctx))
				return &testpb.Response{Number: 200}, nil
			}})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			first := async(func() reply { return a.call(ctx, "Rerun", key("a"), "x") })
			time.Sleep(29 * time.Second)
			// b waits for a's run; at the lease's end the record is abandoned, and RERUN lets b run it again.
			b.call(ctx, "Rerun", key("a"), "x").requireOK(t, 200, interceptor.StatusExecuted)
			require.ErrorIs(t, <-cause, interceptor.ErrSuperseded)
			requireWait(t, <-first, codes.Aborted, oncerpcv1.Reason_SUPERSEDED, 5*time.Second)
			a.call(ctx, "Rerun", key("a"), "x").requireOK(t, 200, interceptor.StatusReplayed)
			require.EqualValues(t, 1, a.svc.runs.Load())
		})
	})

	t.Run("under_hold_a_lost_lease_is_unknown_until_the_run_ends_after_all", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			away := &faulty{Store: records, renew: func() error { return context.DeadlineExceeded }}
			a, b := newServer(t, away, slow(time.Minute)), newServer(t, records, slow(0))
			first := async(func() reply { return a.call(t.Context(), "Plain", key("a"), "x") })
			time.Sleep(40 * time.Second)
			b.call(t.Context(), "Plain", key("a"), "x").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_OUTCOME_UNKNOWN)
			(<-first).requireOK(t, 1, interceptor.StatusExecuted)
			b.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
			require.Zero(t, b.svc.runs.Load())
		})
	})
}

// requireWait requires an error made by oncerpc that says "wait": the same delay within ±20 % in RetryInfo and pushback.
func requireWait(t *testing.T, r reply, code codes.Code, reason oncerpcv1.Reason, want time.Duration) {
	t.Helper()
	r.requireReason(t, code, reason)
	delay := retryDelay(r.err)
	require.InDelta(t, want.Seconds(), delay.Seconds(), want.Seconds()*0.2001)
	require.Equal(t, []string{durationMillis(delay)}, r.trailer.Get("grpc-retry-pushback-ms"))
}

func retryDelay(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}
