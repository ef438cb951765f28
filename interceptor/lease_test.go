package interceptor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

// scripted is a store that answers as it is told; what is not told is Memory's.
type scripted struct {
	storetest.Memory

	begin func(ctx context.Context, c store.Claim) (store.Record, error)
	get   func(ctx context.Context, id store.ID) (store.Record, error)
	wait  func(ctx context.Context, id store.ID, token store.Token) error
	renew func(ctx context.Context, id store.ID, token store.Token, lease time.Duration) error
}

func (s *scripted) Begin(ctx context.Context, c store.Claim) (store.Record, error) {
	if s.begin == nil {
		return s.Memory.Begin(ctx, c)
	}
	return s.begin(ctx, c)
}

func (s *scripted) Get(ctx context.Context, id store.ID) (store.Record, error) {
	if s.get == nil {
		return s.Memory.Get(ctx, id)
	}
	return s.get(ctx, id)
}

func (s *scripted) Wait(ctx context.Context, id store.ID, token store.Token) error {
	if s.wait == nil {
		return s.Memory.Wait(ctx, id, token)
	}
	return s.wait(ctx, id, token)
}

func (s *scripted) Renew(ctx context.Context, id store.ID, token store.Token, lease time.Duration) error {
	if s.renew == nil {
		return s.Memory.Renew(ctx, id, token, lease)
	}
	return s.renew(ctx, id, token, lease)
}

func TestRunEndsWithItsLease(t *testing.T) {
	// cancelledAfter is how long after the call's start its run was cancelled.
	cancelledAfter := func(t *testing.T, records store.Store) time.Duration {
		t.Helper()
		began := time.Now()
		ended := make(chan time.Duration, 1)
		s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), interceptor.ErrSuperseded)
			ended <- time.Since(began)
			return nil, interceptor.NoEffect(ctx.Err())
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s.call(ctx, "Rerun", key("a"), "x")
		return <-ended
	}

	t.Run("which_counts_from_before_the_claim_was_made", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := &scripted{renew: func(context.Context, store.ID, store.Token, time.Duration) error { return errDisk }}
			records.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
				rec, err := records.Memory.Begin(ctx, c)
				time.Sleep(9 * time.Second) // the answer takes its time
				return rec, err
			}
			require.LessOrEqual(t, cancelledAfter(t, records), 30*time.Second)
		})
	})

	t.Run("which_counts_from_the_last_renewal", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			began := time.Now()
			records := &scripted{}
			records.renew = func(ctx context.Context, id store.ID, token store.Token, lease time.Duration) error {
				if time.Since(began) > time.Minute {
					return errDisk
				}
				return records.Memory.Renew(ctx, id, token, lease)
			}
			require.Equal(t, 90*time.Second, cancelledAfter(t, records))
		})
	})

	t.Run("and_at_once_when_the_claim_is_lost", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := &scripted{renew: func(context.Context, store.ID, store.Token, time.Duration) error { return store.ErrLost }}
			require.Equal(t, 10*time.Second, cancelledAfter(t, records))
		})
	})

	t.Run("also_when_the_store_does_not_answer_at_all", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := &scripted{renew: func(ctx context.Context, _ store.ID, _ store.Token, _ time.Duration) error {
				<-ctx.Done()
				return ctx.Err()
			}}
			require.LessOrEqual(t, cancelledAfter(t, records), 30*time.Second)
		})
	})
}
