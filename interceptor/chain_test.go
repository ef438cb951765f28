package interceptor_test

import (
	"context"
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

func TestChain(t *testing.T) {
	t.Run("with_the_interceptor_twice_says_so", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			once := interceptor.NewServer(new(storetest.Memory), tenantOf)
			s := serve(t, once, &service{}, once.Unary, once.Unary)
			began := time.Now()
			r := s.call(t.Context(), "Plain", key("a"), "x")
			require.Equal(t, codes.Internal, status.Code(r.err))
			require.ErrorContains(t, r.err, "twice")
			require.Zero(t, time.Since(began), "it does not wait for itself")
			require.Zero(t, s.svc.runs.Load())
		})
	})

	t.Run("without_a_transport_stream_guards_as_well", func(t *testing.T) {
		once := interceptor.NewServer(new(storetest.Memory), tenantOf)
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(interceptor.MetadataKey, key("a")))
		info := &grpc.UnaryServerInfo{FullMethod: testService + "Plain"}
		runs := 0
		for range 3 {
			resp, err := once.Unary(ctx, &testpb.Request{}, info, func(ctx context.Context, _ any) (any, error) {
				runs++
				require.Error(t, grpc.SetHeader(ctx, metadata.Pairs("k", "v")), "as ever without a stream")
				return &testpb.Response{Number: int64(runs)}, nil
			})
			require.NoError(t, err)
			require.EqualValues(t, 1, resp.(*testpb.Response).GetNumber())
		}
		_, err := once.Unary(t.Context(), &testpb.Request{}, &grpc.UnaryServerInfo{FullMethod: testService + "Required"}, nil)
		require.Equal(t, oncerpcv1.Reason_KEY_MISSING, interceptor.ReasonOf(err))
	})
}
