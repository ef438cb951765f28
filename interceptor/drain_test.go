package interceptor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
)

func TestDrainOutlastedByBegin(t *testing.T) {
	t.Run("starts_no_run", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := &scripted{}
			records.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
				time.Sleep(5 * time.Second)
				return records.Memory.Begin(ctx, c)
			}
			s := newServer(t, records, &service{})
			call := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
			settle()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.Error(t, s.once.Drain(ctx))
			requireWait(t, <-call, codes.Unavailable, oncerpcv1.Reason_DRAINING, time.Second)
			require.Zero(t, s.svc.runs.Load())
			require.NoError(t, s.once.Drain(t.Context()))
			for rec, err := range records.List(t.Context(), store.Query{}) {
				require.NoError(t, err)
				require.Equal(t, store.Released, rec.State, "the key is free")
			}
		})
	})
}
