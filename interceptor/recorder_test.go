package interceptor_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func TestHandlersGoroutinesOutliveIt(t *testing.T) {
	t.Run("and_change_neither_the_answer_nor_its_replay", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := &scripted{}
			var stray func()
			s := newServer(t, &faultyFinish{Store: records, before: func() { stray() }}, &service{
				handle: func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
					stray = func() {
						require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("late", "header")))
						require.NoError(t, grpc.SetTrailer(ctx, metadata.Pairs("late", "trailer")))
						require.NoError(t, grpc.SendHeader(ctx, metadata.Pairs("late", "sent")))
					}
					return &testpb.Response{Number: n}, nil
				},
			})
			for _, st := range []interceptor.Status{interceptor.StatusExecuted, interceptor.StatusReplayed} {
				r := s.call(t.Context(), "Plain", key("a"), "x")
				r.requireOK(t, 1, st)
				require.Empty(t, r.header.Get("late"), st)
				require.Empty(t, r.trailer.Get("late"), st)
			}
		})
	})

	t.Run("and_use_the_context_and_the_stream_all_the_while", func(t *testing.T) {
		stop := make(chan struct{})
		var strays sync.WaitGroup
		s := newServer(t, new(storetest.Memory), &service{
			handle: func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
				for range 4 {
					strays.Go(func() {
						for {
							select {
							case <-stop:
								return
							default:
								_ = grpc.SetHeader(ctx, metadata.Pairs("k", "v"))
								_ = grpc.SetTrailer(ctx, metadata.Pairs("k", "v"))
								_ = grpc.SendHeader(ctx, metadata.Pairs("k", "v"))
								_, _ = interceptor.Attempt(ctx), ctx.Err()
								<-time.After(time.Millisecond)
							}
						}
					})
				}
				return &testpb.Response{Number: n}, nil
			},
		})
		for range 20 {
			r := s.call(t.Context(), "Plain", key("a"), "x")
			require.NoError(t, r.err)
			require.EqualValues(t, 1, r.resp.GetNumber())
		}
		close(stop)
		strays.Wait()
	})
}

// faultyFinish does something before every Finish.
type faultyFinish struct {
	store.Store

	before func()
}

func (f *faultyFinish) Finish(ctx context.Context, id store.ID, token store.Token, e store.End) error {
	f.before()
	return f.Store.Finish(ctx, id, token, e)
}
