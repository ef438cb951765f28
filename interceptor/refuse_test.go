package interceptor_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func TestRefusals(t *testing.T) {
	ctx := t.Context()
	invalid := []struct{ name, key string }{
		{"too_short", "0123456789abcde"},
		{"too_long", strings.Repeat("k", 256)},
		{"comma", key("a,b")},
		{"space", key("a b")},
		{"backslash", key(`a\b`)},
		{"inner_quote", key(`a"b`)},
		{"parameters", `"` + key("a") + `";x=1`},
		{"open_quote", `"` + key("a")},
	}
	for _, row := range invalid {
		t.Run("malformed_key_"+row.name, func(t *testing.T) {
			records := new(storetest.Memory)
			s := newServer(t, records, &service{})
			r := s.call(ctx, "Plain", row.key, "x")
			r.requireReason(t, codes.InvalidArgument, oncerpcv1.Reason_KEY_INVALID)
			require.NotContains(t, r.err.Error(), row.key)
			require.Zero(t, s.svc.runs.Load())
			requireNoRecords(t, records)
		})
	}

	t.Run("repeated_key", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{})
		twice := metadata.AppendToOutgoingContext(ctx, interceptor.MetadataKey, key("a"))
		s.call(twice, "Plain", key("a"), "x").requireReason(t, codes.InvalidArgument, oncerpcv1.Reason_KEY_INVALID)
		require.Zero(t, s.svc.runs.Load())
	})

	t.Run("empty_key_is_malformed", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{})
		empty := metadata.AppendToOutgoingContext(ctx, interceptor.MetadataKey, "")
		s.call(empty, "Plain", "", "x").requireReason(t, codes.InvalidArgument, oncerpcv1.Reason_KEY_INVALID)
	})

	t.Run("required_key_is_missing", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{})
		r := s.call(ctx, "Required", "", "x")
		r.requireReason(t, codes.InvalidArgument, oncerpcv1.Reason_KEY_MISSING)
		info := errorInfo(t, r.err)
		require.Equal(t, "github.com/oncerpc/oncerpc", info.GetDomain())
		require.Equal(t, map[string]string{"method": testService + "Required"}, info.GetMetadata())
		require.Zero(t, s.svc.runs.Load())
	})

	t.Run("scope_is_empty", func(t *testing.T) {
		records := new(storetest.Memory)
		s := newServerScoped(t, records, func(context.Context) (string, error) { return "", nil }, &service{})
		s.call(ctx, "Plain", key("a"), "x").requireReason(t, codes.Unauthenticated, oncerpcv1.Reason_SCOPE_MISSING)
		require.Zero(t, s.svc.runs.Load())
		requireNoRecords(t, records)
	})

	t.Run("scope_error_that_is_a_status_is_returned_as_it_is", func(t *testing.T) {
		s := newServerScoped(t, new(storetest.Memory), func(context.Context) (string, error) {
			return "", status.Error(codes.PermissionDenied, "who are you")
		}, &service{})
		r := s.call(ctx, "Plain", key("a"), "x")
		require.Equal(t, codes.PermissionDenied, status.Code(r.err))
		require.Zero(t, s.svc.runs.Load())
	})

	t.Run("scope_error_that_is_none", func(t *testing.T) {
		s := newServerScoped(t, new(storetest.Memory), func(context.Context) (string, error) { return "", errors.New("no token") }, &service{})
		r := s.call(ctx, "Plain", key("a"), "x")
		r.requireReason(t, codes.Unauthenticated, oncerpcv1.Reason_SCOPE_MISSING)
		require.NotContains(t, r.err.Error(), "no token", "it may tell of the server's insides")
	})

	t.Run("key_reused_with_another_request", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{})
		s.call(ctx, "Plain", key("a"), "one").requireOK(t, 1, interceptor.StatusExecuted)
		r := s.call(ctx, "Plain", key("a"), "two")
		r.requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
		info := errorInfo(t, r.err)
		require.Len(t, info.GetMetadata()["id"], 8)
		s.call(ctx, "Plain", key("a"), "one").requireOK(t, 1, interceptor.StatusReplayed)
	})

	t.Run("key_reused_on_another_method", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{})
		s.call(ctx, "Plain", key("a"), "one").requireOK(t, 1, interceptor.StatusExecuted)
		s.call(ctx, "Guarded", key("a"), "one").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
		require.EqualValues(t, 1, s.svc.runs.Load())
	})

	t.Run("key_reused_while_the_first_call_runs", func(t *testing.T) {
		enter, leave := make(chan struct{}), make(chan struct{})
		s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			close(enter)
			<-leave
			return &testpb.Response{Number: 1}, nil
		}})
		first := async(func() reply { return s.call(ctx, "Plain", key("a"), "one") })
		<-enter
		s.call(ctx, "Plain", key("a"), "two").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
		close(leave)
		(<-first).requireOK(t, 1, interceptor.StatusExecuted)
	})

	t.Run("key_on_a_stream", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{})
		client := testpb.NewTestServiceClient(s.conn)
		stream, err := client.Watch(metadata.AppendToOutgoingContext(ctx, interceptor.MetadataKey, key("a")), &testpb.Request{})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, oncerpcv1.Reason_STREAM_UNSUPPORTED, interceptor.ReasonOf(err))
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.Zero(t, s.svc.runs.Load())
		stream, err = client.Watch(ctx, &testpb.Request{Text: "x"})
		require.NoError(t, err)
		resp, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, "x", resp.GetText())
	})

	t.Run("policy_that_makes_no_sense", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{})
		r := s.call(ctx, "Nonsense", key("a"), "x")
		require.Equal(t, codes.Internal, status.Code(r.err))
		require.ErrorContains(t, r.err, "retention")
		require.Zero(t, s.svc.runs.Load())
	})

	t.Run("response_too_large_to_keep", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			return &testpb.Response{Number: 1, Blob: make([]byte, 4<<20)}, nil
		}})
		first := s.call(ctx, "Plain", key("a"), "x")
		first.requireOK(t, 1, interceptor.StatusExecuted)
		require.Len(t, first.resp.GetBlob(), 4<<20)
		r := s.call(ctx, "Plain", key("a"), "x")
		r.requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_RESPONSE_NOT_RETAINED)
		require.Equal(t, interceptor.StatusReplayed, r.status(t))
		require.EqualValues(t, 1, s.svc.runs.Load())
	})

	t.Run("constructor_refuses_what_makes_no_sense", func(t *testing.T) {
		require.PanicsWithValue(t, "interceptor: NewServer: no store", func() { interceptor.NewServer(nil, interceptor.SharedScope) })
		require.Panics(t, func() { interceptor.NewServer(new(storetest.Memory), nil) })
		require.Panics(t, func() { interceptor.WithSecret(make([]byte, 31)) })
		require.Panics(t, func() { interceptor.WithWaiters(0, 1) })
		require.Panics(t, func() { interceptor.WithWaiters(1, 0) })
	})
}

func errorInfo(t *testing.T, err error) *errdetails.ErrorInfo {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	require.Fail(t, "no ErrorInfo", "%v", err)
	return nil
}
