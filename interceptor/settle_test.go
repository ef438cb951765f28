package interceptor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

// slowBegin is a store whose Begin takes effect and answers only after a while.
func slowBegin(d time.Duration) *scripted {
	s := &scripted{}
	s.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
		rec, err := s.Memory.Begin(ctx, c)
		time.Sleep(d)
		return rec, err
	}
	return s
}

func TestCallerLeavesBeforeItsHandlerStarts(t *testing.T) {
	leave := func(t *testing.T, s *server) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Equal(t, codes.DeadlineExceeded, status.Code(s.call(ctx, "Plain", key("a"), "x").err))
		time.Sleep(time.Minute)
		settle()
	}

	t.Run("the_key_is_free_for_the_same_request_only", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := slowBegin(5 * time.Second)
			s := newServer(t, records, &service{})
			leave(t, s)
			require.Zero(t, s.svc.runs.Load())
			records.begin = nil
			s.call(t.Context(), "Plain", key("a"), "other").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
		})
	})

	t.Run("an_earlier_run_that_was_to_be_reconciled_stays_open", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := slowBegin(5 * time.Second)
			abandon(t, &records.Memory, "Plain")
			asked := 0
			s := newServer(t, records, &service{}, interceptor.WithReconcile(testService+"Plain",
				func(context.Context, store.Record, proto.Message) (proto.Message, error) {
					asked++
					return &testpb.Response{Number: 7}, nil
				}))
			slow := records.begin
			records.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
				if c.TakeoverBelow == 0 {
					return records.Memory.Begin(ctx, c)
				}
				return slow(ctx, c)
			}
			leave(t, s)
			require.Zero(t, asked)
			records.begin = nil
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 7, interceptor.StatusReplayed)
			require.Zero(t, s.svc.runs.Load(), "nobody knows whether the earlier run had an effect")
		})
	})
}

func TestFinishFindsNoRoom(t *testing.T) {
	t.Run("and_is_tried_until_there_is_some", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := &faulty{Store: new(storetest.Memory), finish: failing(store.ErrFull)}
			s := newServer(t, records, &service{})
			time.AfterFunc(5*time.Second, func() { records.set(nil, nil) })
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
		})
	})
}

func TestDrainWaitsForFinish(t *testing.T) {
	t.Run("of_a_run_whose_caller_has_left", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := &faulty{Store: new(storetest.Memory), finish: failing(errDisk)}
			s := newServer(t, records, &service{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.Equal(t, codes.DeadlineExceeded, status.Code(s.call(ctx, "Plain", key("a"), "x").err))
			began := time.Now()
			time.AfterFunc(time.Minute, func() { records.set(nil, nil) })
			require.NoError(t, s.once.Drain(t.Context()))
			require.GreaterOrEqual(t, time.Since(began), time.Minute)
			for rec, err := range records.Store.(store.Lister).List(t.Context(), store.Query{}) {
				require.NoError(t, err)
				require.Equal(t, store.Done, rec.State)
			}
		})
	})
}

func TestWaitersLeaveRoom(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		name := "for_others_here"
		if elsewhere {
			name = "for_others_elsewhere"
		}
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				records := new(storetest.Memory)
				a := newServer(t, records, slow(time.Minute), interceptor.WithWaiters(1, 1))
				b := a
				if elsewhere {
					b = newServer(t, records, slow(0), interceptor.WithWaiters(1, 1))
				}
				first := async(func() reply { return a.call(t.Context(), "Plain", key("a"), "x") })
				settle()
				for range 3 {
					b.call(t.Context(), "Plain", key("a"), "x").requireReason(t, codes.Aborted, oncerpcv1.Reason_IN_PROGRESS)
				}
				(<-first).requireOK(t, 1, interceptor.StatusExecuted)
			})
		})
	}
}
