package interceptor_test

import (
	"context"
	"errors"
	"strings"
	"testing"

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

func TestLimits(t *testing.T) {
	ctx := t.Context()

	t.Run("details_are_dropped_first_and_marked", func(t *testing.T) {
		st := status.New(codes.NotFound, "no such card")
		for range 40 {
			var err error
			st, err = st.WithDetails(&testpb.Response{Text: strings.Repeat("d", 200)})
			require.NoError(t, err)
		}
		s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			return nil, st.Err()
		}})
		first := s.call(ctx, "Plain", key("a"), "x")
		require.Len(t, status.Convert(first.err).Details(), 40, "the first caller gets them")
		require.Empty(t, first.trailer.Get(interceptor.MetadataTruncated))
		again := s.call(ctx, "Plain", key("a"), "x")
		require.Equal(t, codes.NotFound, status.Code(again.err))
		require.Equal(t, "no such card", status.Convert(again.err).Message())
		require.Empty(t, status.Convert(again.err).Details())
		require.Equal(t, []string{"details"}, again.trailer.Get(interceptor.MetadataTruncated))
	})

	t.Run("then_the_message_is_cut_at_1_KiB_and_marked", func(t *testing.T) {
		message := strings.Repeat("é", 5_000)
		s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			return nil, status.Error(codes.NotFound, message)
		}})
		s.call(ctx, "Plain", key("a"), "x")
		again := s.call(ctx, "Plain", key("a"), "x")
		require.Equal(t, message[:1024], status.Convert(again.err).Message())
		require.Equal(t, []string{"message"}, again.trailer.Get(interceptor.MetadataTruncated))
	})

	t.Run("then_the_largest_metadata_is_dropped_and_marked", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
			return &testpb.Response{Number: 1}, errors.Join(
				grpc.SetHeader(ctx, metadata.Pairs("small", "1", "big", strings.Repeat("x", 4_000))),
				grpc.SetTrailer(ctx, metadata.Pairs("bigger-bin", strings.Repeat("\x01", 3_500))),
			)
		}})
		first := s.call(ctx, "Plain", key("a"), "x")
		require.NotEmpty(t, first.trailer.Get("bigger-bin"))
		again := s.call(ctx, "Plain", key("a"), "x")
		again.requireOK(t, 1, interceptor.StatusReplayed)
		require.Equal(t, []string{"1"}, again.header.Get("small"))
		require.NotEmpty(t, again.header.Get("big"))
		require.Empty(t, again.trailer.Get("bigger-bin"), "as HPACK counts it, binary is larger by a third")
		require.Equal(t, []string{"metadata"}, again.trailer.Get(interceptor.MetadataTruncated))
	})

	t.Run("a_client_that_takes_8_KiB_of_headers_gets_every_replay", func(t *testing.T) {
		st := status.New(codes.ResourceExhausted, strings.Repeat("message ", 500))
		st, err := st.WithDetails(&testpb.Response{Text: strings.Repeat("d", 9_000)})
		require.NoError(t, err)
		s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
			return nil, errors.Join(grpc.SetTrailer(ctx, metadata.Pairs("t", strings.Repeat("t", 5_000))), interceptor.Final(st.Err()))
		}})
		s.call(ctx, "Plain", key("a"), "x")
		small := s.withClient(t, grpc.WithMaxHeaderListSize(8<<10), grpc.WithDisableRetry())
		r := small.call(ctx, "Plain", key("a"), "x")
		require.Equal(t, codes.ResourceExhausted, status.Code(r.err), "%v", r.err)
		require.Equal(t, interceptor.StatusReplayed, r.status(t))
	})

	t.Run("what_fits_is_whole", func(t *testing.T) {
		st, err := status.New(codes.NotFound, "x").WithDetails(&testpb.Response{Text: strings.Repeat("d", 3_500)})
		require.NoError(t, err)
		s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			return nil, st.Err()
		}})
		s.call(ctx, "Plain", key("a"), "x")
		again := s.call(ctx, "Plain", key("a"), "x")
		require.Len(t, status.Convert(again.err).Details(), 1)
		require.Empty(t, again.trailer.Get(interceptor.MetadataTruncated))
	})

	t.Run("response_bound_is_set_by_WithMaxResponse", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{}, interceptor.WithMaxResponse(4))
		s.call(ctx, "Plain", key("a"), "").requireOK(t, 1, interceptor.StatusExecuted)
		s.call(ctx, "Plain", key("b"), "longer than that").requireOK(t, 2, interceptor.StatusExecuted)
		s.call(ctx, "Plain", key("a"), "").requireOK(t, 1, interceptor.StatusReplayed)
		s.call(ctx, "Plain", key("b"), "longer than that").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_RESPONSE_NOT_RETAINED)
		require.Panics(t, func() { interceptor.WithMaxResponse(0) })
	})
}
