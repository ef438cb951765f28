package interceptor_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func TestReplay(t *testing.T) {
	ctx := t.Context()

	t.Run("second_call_with_same_key_is_replayed", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{})
		first := s.call(ctx, "Plain", key("a"), "hello")
		first.requireOK(t, 1, interceptor.StatusExecuted)
		require.Empty(t, first.trailer.Get(interceptor.MetadataFirstSeen))
		again := s.call(ctx, "Plain", key("a"), "hello")
		again.requireOK(t, 1, interceptor.StatusReplayed)
		require.True(t, proto.Equal(first.resp, again.resp))
		seen := again.trailer.Get(interceptor.MetadataFirstSeen)
		require.Len(t, seen, 1)
		at, err := time.Parse(time.RFC3339, seen[0])
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), at, time.Minute)
		require.EqualValues(t, 1, s.svc.runs.Load())
	})

	t.Run("quoted_key_is_the_same_key", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{})
		s.call(ctx, "Plain", key("a"), "hello").requireOK(t, 1, interceptor.StatusExecuted)
		s.call(ctx, "Plain", `"`+key("a")+`"`, "hello").requireOK(t, 1, interceptor.StatusReplayed)
	})

	t.Run("calls_without_a_key_run_every_time", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{})
		s.call(ctx, "Plain", "", "hello").requireOK(t, 1, interceptor.StatusNone)
		s.call(ctx, "Plain", "", "hello").requireOK(t, 2, interceptor.StatusNone)
	})

	t.Run("methods_without_effects_ignore_the_key", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{})
		for i, method := range []string{"Read", "Put", "Read"} {
			s.call(ctx, method, key("a"), "x").requireOK(t, int64(i+1), interceptor.StatusIgnored)
		}
		s.svc.handle = func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			return nil, status.Error(codes.NotFound, "gone")
		}
		r := s.call(ctx, "Read", key("a"), "x")
		require.Equal(t, codes.NotFound, status.Code(r.err))
		require.Equal(t, interceptor.StatusIgnored, r.status(t))
	})

	t.Run("scopes_do_not_share_keys", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{})
		s.call(ctx, "Plain", key("a"), "hello").requireOK(t, 1, interceptor.StatusExecuted)
		other := metadata.AppendToOutgoingContext(ctx, "tenant", "globex")
		s.call(other, "Plain", key("a"), "hello").requireOK(t, 2, interceptor.StatusExecuted)
		s.call(other, "Plain", key("a"), "hello").requireOK(t, 2, interceptor.StatusReplayed)
		// Scope and key are told apart: "ab"+"c…" is not "a"+"bc…".
		ab := metadata.AppendToOutgoingContext(ctx, "tenant", "ab")
		a := metadata.AppendToOutgoingContext(ctx, "tenant", "a")
		s.call(ab, "Plain", key("c"), "hello").requireOK(t, 3, interceptor.StatusExecuted)
		s.call(a, "Plain", "b"+key("c"), "hello").requireOK(t, 4, interceptor.StatusExecuted)
	})

	t.Run("nil_response_is_the_empty_message", func(t *testing.T) {
		for name, resp := range map[string]*testpb.Response{"typed": (*testpb.Response)(nil)} {
			s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
				return resp, nil
			}})
			s.call(ctx, "Plain", key(name), "x").requireOK(t, 0, interceptor.StatusExecuted)
			s.call(ctx, "Plain", key(name), "x").requireOK(t, 0, interceptor.StatusReplayed)
			require.EqualValues(t, 1, s.svc.runs.Load())
		}
	})

	t.Run("response_changed_after_return_is_replayed_as_returned", func(t *testing.T) {
		resp := &testpb.Response{Text: "before"}
		s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			return resp, nil
		}})
		s.call(ctx, "Plain", key("a"), "x")
		resp.Text = "after"
		require.Equal(t, "before", s.call(ctx, "Plain", key("a"), "x").resp.GetText())
	})

	t.Run("unknown_fields_of_the_response_are_replayed", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			resp := &testpb.Response{Text: "x"}
			resp.ProtoReflect().SetUnknown([]byte{0xfa, 0x3e, 0x03, 'o', 'l', 'd'})
			return resp, nil
		}})
		first := s.call(ctx, "Plain", key("a"), "x")
		require.NotEmpty(t, first.resp.ProtoReflect().GetUnknown())
		require.True(t, proto.Equal(first.resp, s.call(ctx, "Plain", key("a"), "x").resp))
	})

	t.Run("outcome_expires_with_its_retention", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), &service{})
			s.call(ctx, "Brief", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
			time.Sleep(time.Minute - time.Nanosecond)
			s.call(ctx, "Brief", key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
			time.Sleep(time.Nanosecond)
			s.call(ctx, "Brief", key("a"), "x").requireOK(t, 2, interceptor.StatusExecuted)
		})
	})

	t.Run("final_error_expires_with_its_own_retention_and_an_ambiguous_one_does_not", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), &service{handle: func(_ context.Context, r *testpb.Request, _ int64) (*testpb.Response, error) {
				if r.GetText() == "final" {
					return nil, status.Error(codes.NotFound, "no such card")
				}
				return nil, status.Error(codes.Unavailable, "gone")
			}})
			s.call(ctx, "Brief", key("a"), "final")
			s.call(ctx, "Brief", key("b"), "ambiguous")
			time.Sleep(10 * time.Second)
			require.Equal(t, interceptor.StatusExecuted, s.call(ctx, "Brief", key("a"), "final").status(t))
			require.Equal(t, interceptor.StatusReplayed, s.call(ctx, "Brief", key("b"), "ambiguous").status(t))
		})
	})
}

func TestErrorsAreReplayed(t *testing.T) {
	ctx := t.Context()
	withDetails, err := status.New(codes.FailedPrecondition, "card declined").WithDetails(
		&errdetails.ErrorInfo{Domain: "bank.example", Reason: "DECLINED"},
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "card", Description: "expired"}}},
	)
	require.NoError(t, err)
	fail := func(err error) *service {
		return &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) { return nil, err }}
	}

	t.Run("with_code_message_and_all_details", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), fail(withDetails.Err()))
		first, again := s.call(ctx, "Plain", key("a"), "x"), s.call(ctx, "Plain", key("a"), "x")
		require.Equal(t, interceptor.StatusExecuted, first.status(t))
		require.Equal(t, interceptor.StatusReplayed, again.status(t))
		for _, r := range []reply{first, again} {
			require.True(t, proto.Equal(withDetails.Proto(), status.Convert(r.err).Proto()), "%v", r.err)
			require.Empty(t, r.header, "errors have to be Trailers-Only")
			require.Empty(t, r.trailer.Get(interceptor.MetadataOutcome))
		}
		require.EqualValues(t, 1, s.svc.runs.Load())
	})

	t.Run("with_the_text_that_grpc_makes_of_any_error", func(t *testing.T) {
		for name, err := range map[string]error{
			"plain":     errors.New("plain"),
			"wrapped":   fmt.Errorf("wrap: %w", withDetails.Err()),
			"cancelled": context.Canceled,
			"deadline":  fmt.Errorf("db: %w", context.DeadlineExceeded),
			"code_99":   status.Error(codes.Code(99), "odd"),
			"not_utf8":  status.Error(codes.Internal, "bad \xff byte"),
		} {
			t.Run(name, func(t *testing.T) {
				plain := newServer(t, new(storetest.Memory), fail(err)).call(ctx, "Plain", "", "x")
				s := newServer(t, new(storetest.Memory), fail(err))
				for _, st := range []interceptor.Status{interceptor.StatusExecuted, interceptor.StatusReplayed} {
					r := s.call(ctx, "Plain", key(name), "x")
					require.Equal(t, st, r.status(t))
					require.True(t, proto.Equal(status.Convert(plain.err).Proto(), status.Convert(r.err).Proto()), "%v, not %v", r.err, plain.err)
				}
				require.EqualValues(t, 1, s.svc.runs.Load())
			})
		}
	})

	t.Run("a_downstreams_answer_is_not_taken_for_ours", func(t *testing.T) {
		st, err := status.New(codes.FailedPrecondition, "reused there").WithDetails(
			&errdetails.ErrorInfo{Domain: interceptor.Domain, Reason: "KEY_REUSED"},
			&errdetails.ErrorInfo{Domain: "bank.example", Reason: "DECLINED"},
		)
		require.NoError(t, err)
		s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
			_ = grpc.SetTrailer(ctx, metadata.Pairs(interceptor.MetadataStatus, "replayed", interceptor.MetadataOutcome, "ambiguous"))
			return nil, st.Err()
		}})
		for _, want := range []interceptor.Status{interceptor.StatusExecuted, interceptor.StatusReplayed} {
			r := s.call(ctx, "Plain", key("a"), "x")
			require.Equal(t, []string{string(want)}, r.trailer.Get(interceptor.MetadataStatus))
			require.Empty(t, r.trailer.Get(interceptor.MetadataOutcome))
			require.Equal(t, oncerpcv1.Reason_REASON_UNSPECIFIED, interceptor.ReasonOf(r.err))
			require.Len(t, status.Convert(r.err).Details(), 1)
		}
	})
}
