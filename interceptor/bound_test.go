package interceptor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

func TestFullStore(t *testing.T) {
	t.Run("refuses_new_keys_while_running_calls_end_and_are_replayed", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records, err := boltstore.Open(filepath.Join(t.TempDir(), "store.db"), boltstore.WithMaxSize(2<<20))
			require.NoError(t, err)
			const running = 50
			leave := make(chan struct{})
			s := newServer(t, records, &service{handle: func(_ context.Context, req *testpb.Request, n int64) (*testpb.Response, error) {
				<-leave
				return &testpb.Response{Text: req.GetText(), Number: n}, nil
			}})
			var replies []<-chan reply
			for i := range running {
				replies = append(replies, async(func() reply { return s.call(t.Context(), "Plain", key(fmt.Sprint("running", i)), "x") }))
			}
			synctest.Wait()
			require.Equal(t, running, records.Stats().Running)
			fillStore(t, records)

			r := s.call(t.Context(), "Plain", key("new"), "x")
			requireWait(t, r, codes.ResourceExhausted, oncerpcv1.Reason_OVERLOADED, 5*time.Second)
			require.EqualValues(t, running, s.svc.runs.Load())

			close(leave)
			for i := range running {
				r := <-replies[i]
				require.NoError(t, r.err)
				require.Equal(t, interceptor.StatusExecuted, r.status(t))
				s.call(t.Context(), "Plain", key(fmt.Sprint("running", i)), "x").
					requireOK(t, r.resp.GetNumber(), interceptor.StatusReplayed)
			}
			require.LessOrEqual(t, records.Stats().Size, int64(2<<20))

			time.Sleep(25 * time.Hour)
			synctest.Wait()
			require.Zero(t, records.Stats().Done)
			s.call(t.Context(), "Plain", key("new"), "x").requireOK(t, running+1, interceptor.StatusExecuted)
			s.call(t.Context(), "Plain", key("running0"), "x").requireOK(t, running+2, interceptor.StatusExecuted)
			require.LessOrEqual(t, records.Stats().Size, int64(2<<20))
			require.NoError(t, s.once.Drain(t.Context()))
			require.NoError(t, records.Close())
		})
	})
}

// fillStore ends claims until one is refused.
func fillStore(t *testing.T, records store.Store) {
	t.Helper()
	end := store.End{State: store.Done, Outcome: bytes.Repeat([]byte{1}, 5000), Retention: 24 * time.Hour}
	for i := 1; ; i++ {
		require.Less(t, i, 10_000, "it is never full")
		c := store.Claim{ID: store.ID{byte(i), byte(i >> 8)}, Token: store.Token{byte(i), byte(i >> 8)}}
		_, err := records.Begin(t.Context(), c)
		if errors.Is(err, store.ErrFull) {
			return
		}
		require.NoError(t, err)
		require.NoError(t, records.Finish(t.Context(), c.ID, c.Token, end))
	}
}
