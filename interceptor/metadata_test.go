package interceptor_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func TestMetadata(t *testing.T) {
	ctx := t.Context()

	t.Run("header_and_trailer_are_replayed", func(t *testing.T) {
		for _, send := range []bool{false, true} {
			s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
				require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("a", "1", "a", "2", "b-bin", "\x00\xff")))
				if send {
					require.NoError(t, grpc.SendHeader(ctx, metadata.Pairs("c", "3")))
					require.Error(t, grpc.SetHeader(ctx, metadata.Pairs("d", "4")))
				} else {
					require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("c", "3")))
				}
				require.NoError(t, grpc.SetTrailer(ctx, metadata.Pairs("t", "5")))
				return &testpb.Response{Number: 1}, nil
			}})
			for _, st := range []interceptor.Status{interceptor.StatusExecuted, interceptor.StatusReplayed} {
				r := s.call(ctx, "Plain", key("a"), "x")
				require.NoError(t, r.err)
				require.Equal(t, st, interceptor.StatusOf(r.trailer))
				require.Equal(t, []string{"1", "2"}, r.header.Get("a"))
				require.Equal(t, []string{"\x00\xff"}, r.header.Get("b-bin"))
				require.Equal(t, []string{"3"}, r.header.Get("c"))
				require.Equal(t, []string{"5"}, r.trailer.Get("t"))
				if send && st == interceptor.StatusExecuted {
					require.Empty(t, r.header.Get(interceptor.MetadataStatus), "the header had been sent")
				} else {
					require.Equal(t, st, interceptor.StatusOf(r.header))
				}
			}
		}
	})

	t.Run("bad_metadata_breaks_no_answer", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
			require.NoError(t, grpc.SetHeader(ctx, metadata.MD{
				"Upper": {"kept lower-cased"}, "with space": {"x"}, "": {"x"}, ":path": {"x"}, "newline": {"a\nb"}, "null": {"\x00"},
				"grpc-status": {"13"}, "content-type": {"text/html"}, "good": {"yes"},
			}))
			require.NoError(t, grpc.SetTrailer(ctx, metadata.MD{"grpc-status-details-bin": {"junk"}, "newline": {"a\r\n"}, "fine": {"ok"}}))
			return &testpb.Response{Number: 1}, nil
		}})
		for _, st := range []interceptor.Status{interceptor.StatusExecuted, interceptor.StatusReplayed} {
			r := s.call(ctx, "Plain", key("a"), "x")
			r.requireOK(t, 1, st)
			require.Equal(t, []string{"yes"}, r.header.Get("good"))
			require.Equal(t, []string{"kept lower-cased"}, r.header.Get("upper"))
			require.Equal(t, []string{"ok"}, r.trailer.Get("fine"))
			require.Empty(t, r.header.Get("newline"))
			require.Empty(t, r.trailer.Get("newline"))
			require.Empty(t, r.trailer.Get("grpc-status-details-bin"))
		}
	})

	t.Run("metadata_of_one_call_only_is_not_replayed", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
			return &testpb.Response{Number: 1}, grpc.SetHeader(ctx, metadata.Pairs("set-cookie", "s=1", "x-request-id", "7", "keep", "me"))
		}})
		require.Equal(t, []string{"s=1"}, s.call(ctx, "Plain", key("a"), "x").header.Get("set-cookie"))
		again := s.call(ctx, "Plain", key("a"), "x")
		require.Empty(t, again.header.Get("set-cookie"))
		require.Empty(t, again.header.Get("x-request-id"))
		require.Equal(t, []string{"me"}, again.header.Get("keep"))
	})

	t.Run("outer_interceptors_can_still_set_headers", func(t *testing.T) {
		svc := &service{}
		s := newServer(t, new(storetest.Memory), svc)
		outer := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := s.once.Unary(ctx, req, info, handler)
			return resp, errors.Join(err, grpc.SetHeader(ctx, metadata.Pairs("outer", "1")))
		}
		s = serve(t, s.once, svc, outer)
		for range 2 {
			r := s.call(ctx, "Plain", key("a"), "x")
			require.NoError(t, r.err)
			require.Equal(t, []string{"1"}, r.header.Get("outer"))
		}
	})
}
