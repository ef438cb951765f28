package interceptor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func TestHintsOfReleasedErrors(t *testing.T) {
	// joined is what a call gets that joined a run that was released with err.
	joined := func(t *testing.T, err error) reply {
		t.Helper()
		s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			time.Sleep(time.Second)
			return nil, interceptor.NoEffect(err)
		}})
		first := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
		settle()
		r := s.call(t.Context(), "Plain", key("a"), "x")
		require.Equal(t, interceptor.StatusReleased, r.status(t))
		<-first
		return r
	}

	t.Run("do_not_make_an_answer_too_large_to_arrive", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := joined(t, status.Error(codes.Unavailable, strings.Repeat("m", 4<<10)))
			size := 0
			for name, values := range r.trailer {
				for _, v := range values {
					size += len(name) + len(v)*4/3
				}
			}
			require.Less(t, size+len(status.Convert(r.err).Message()), 8<<10)
			require.NotEmpty(t, r.trailer.Get("grpc-retry-pushback-ms"))
		})
	})

	t.Run("of_the_handlers_own_stand_and_the_pushback_is_spread", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			waits := map[string]bool{}
			for _, own := range []time.Duration{10 * time.Second, -time.Second} {
				st, err := status.New(codes.Unavailable, "busy").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(own)})
				require.NoError(t, err)
				for range 5 {
					r := joined(t, st.Err())
					require.Equal(t, own, retryDelay(r.err))
					wait := r.trailer.Get("grpc-retry-pushback-ms")
					require.Len(t, wait, 1)
					require.False(t, strings.HasPrefix(wait[0], "-"), "the key is free: the call may be sent again")
					waits[wait[0]] = true
				}
			}
			require.Greater(t, len(waits), 2)
		})
	})
}
