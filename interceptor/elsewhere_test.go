package interceptor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
)

func TestJoinElsewhere(t *testing.T) {
	// waiting is a call that waits for a run elsewhere whose record is then as after makes it.
	waiting := func(t *testing.T, after func(rec store.Record) (store.Record, error)) reply {
		t.Helper()
		records := &scripted{}
		s := newServer(t, records, &service{})
		records.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
			other := c
			other.Token = store.Token{1}
			return records.Memory.Begin(ctx, other)
		}
		records.wait = func(ctx context.Context, _ store.ID, _ store.Token) error {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			return ctx.Err()
		}
		records.get = func(ctx context.Context, id store.ID) (store.Record, error) {
			rec, err := records.Memory.Get(ctx, id)
			require.NoError(t, err)
			return after(rec)
		}
		r := s.call(t.Context(), "Plain", key("a"), "x")
		require.Zero(t, s.svc.runs.Load())
		return r
	}

	t.Run("gives_no_outcome_of_another_request_that_came_between", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			waiting(t, func(rec store.Record) (store.Record, error) {
				rec.State, rec.Fingerprint[len(rec.Fingerprint)-1] = store.Done, rec.Fingerprint[len(rec.Fingerprint)-1]+1
				rec.Outcome = mustMarshal(&oncerpcv1.Outcome{ResponseType: "oncerpc.internal.testpb.Response"})
				return rec, nil
			}).requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
		})
	})

	t.Run("of_a_record_that_cannot_be_read", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			waiting(t, func(rec store.Record) (store.Record, error) { return rec, store.ErrUnreadable }).
				requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_RECORD_UNREADABLE)
		})
	})

	t.Run("while_the_store_fails", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := waiting(t, func(rec store.Record) (store.Record, error) { return rec, errors.New("away") })
			requireWait(t, r, codes.Unavailable, oncerpcv1.Reason_STORE_UNAVAILABLE, time.Second)
		})
	})

	t.Run("of_a_record_that_is_gone_asks_to_come_again_soon", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := waiting(t, func(rec store.Record) (store.Record, error) { return store.Record{ID: rec.ID, Now: rec.Now}, nil })
			requireWait(t, r, codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, 100*time.Millisecond)
		})
	})

	t.Run("in_vain_is_told_the_runs_age", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := waiting(t, func(rec store.Record) (store.Record, error) { return rec, nil })
			requireWait(t, r, codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, 5*time.Second)
		})
	})
}
