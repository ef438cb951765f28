package interceptor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// TestClasses has a row for each way in which a handler can end, with what is to become of it.
func TestClasses(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "downstream is gone")
	type row struct {
		name, method string
		err          error
		want         string // final, ambiguous or released
		pushback     bool   // whether "do not retry" goes out with the stored answer
	}
	rows := []row{
		{"unavailable_passed_on", "Plain", unavailable, "ambiguous", true},
		{"plain_error", "Plain", errors.New("boom"), "ambiguous", true},
		{"context_error", "Plain", context.DeadlineExceeded, "ambiguous", true},
		{"final_says_so", "Plain", interceptor.Final(unavailable), "final", true},
		{"final_wrapped", "Plain", fmt.Errorf("x: %w", interceptor.Final(unavailable)), "final", true},
		{"no_effect_says_so", "Plain", interceptor.NoEffect(unavailable), "released", false},
		{"no_effect_of_a_plain_error", "Plain", interceptor.NoEffect(errors.New("boom")), "released", false},
		{"no_effect_of_a_final_code", "Plain", interceptor.NoEffect(status.Error(codes.NotFound, "x")), "released", false},
		{"final_wins_inside", "Plain", interceptor.NoEffect(interceptor.Final(unavailable)), "final", true},
		{"final_wins_outside", "Plain", interceptor.Final(interceptor.NoEffect(unavailable)), "final", true},
		{"final_wins_beside", "Plain", errors.Join(interceptor.NoEffect(unavailable), interceptor.Final(errors.New("x"))), "final", true},
		{"outcomes_release", "Releasing", status.Error(codes.Aborted, "busy"), "released", false},
		{"outcomes_final", "Releasing", unavailable, "final", true},
		{"outcomes_ambiguous", "Releasing", status.Error(codes.NotFound, "x"), "ambiguous", false},
		{"outcomes_do_not_match_plain_errors", "Releasing", context.Canceled, "ambiguous", true},
		{"in_transaction_that_committed_nothing", "InTransaction", unavailable, "released", false},
		{"in_transaction_plain_error", "InTransaction", errors.New("boom"), "released", false},
		{"in_transaction_final_code", "InTransaction", status.Error(codes.NotFound, "x"), "final", false},
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		want, push := "ambiguous", true
		switch code {
		case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated,
			codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
			want, push = "final", false
		}
		rows = append(rows, row{"code_" + code.String(), "Plain", status.Error(code, "x"), want, push})
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
				return nil, row.err
			}})
			plain := newServer(t, new(storetest.Memory), &service{handle: s.svc.handle}).call(t.Context(), row.method, "", "x")
			first := s.call(t.Context(), row.method, key("k"), "x")
			again := s.call(t.Context(), row.method, key("k"), "x")
			require.Equal(t, status.Convert(plain.err).Proto().String(), status.Convert(first.err).Proto().String())
			require.Equal(t, status.Convert(first.err).Proto().String(), status.Convert(again.err).Proto().String())
			if row.want == "released" {
				require.EqualValues(t, 2, s.svc.runs.Load())
				require.Equal(t, interceptor.StatusReleased, first.status(t))
				require.Equal(t, interceptor.StatusReleased, again.status(t))
				reused := s.call(t.Context(), row.method, key("k"), "another request")
				reused.requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
				return
			}
			require.EqualValues(t, 1, s.svc.runs.Load())
			require.Equal(t, interceptor.StatusExecuted, first.status(t))
			require.Equal(t, interceptor.StatusReplayed, again.status(t))
			for _, r := range []reply{first, again} {
				ambiguous := r.trailer.Get(interceptor.MetadataOutcome)
				if row.want == "ambiguous" {
					require.Equal(t, []string{"ambiguous"}, ambiguous)
				} else {
					require.Empty(t, ambiguous)
				}
				var push []string
				if row.pushback {
					push = []string{"-1"}
				}
				require.Equal(t, push, r.trailer.Get("grpc-retry-pushback-ms"))
			}
		})
	}

	t.Run("outcomes_do_not_match_errors_that_are_no_status_even_by_the_code_they_get", func(t *testing.T) {
		rules := []*oncerpcv1.MethodPolicy_OutcomeRule{
			{Code: oncerpcv1.MethodPolicy_UNKNOWN, Class: oncerpcv1.MethodPolicy_RELEASED},
			{Code: oncerpcv1.MethodPolicy_CANCELLED, Class: oncerpcv1.MethodPolicy_RELEASED},
			{Code: oncerpcv1.MethodPolicy_INTERNAL, Class: oncerpcv1.MethodPolicy_RELEASED},
		}
		s := newServer(t, new(storetest.Memory), &service{handle: func(_ context.Context, r *testpb.Request, _ int64) (*testpb.Response, error) {
			switch r.GetText() {
			case "plain":
				return nil, errors.New("boom")
			case "context":
				return nil, context.Canceled
			case "panic":
				panic("boom")
			}
			return nil, status.Error(codes.Unknown, "a status")
		}}, interceptor.WithPolicy(testService+"Plain", &oncerpcv1.MethodPolicy{Outcomes: rules}))
		for _, text := range []string{"plain", "context", "panic"} {
			s.call(t.Context(), "Plain", key(text), text)
			require.Equal(t, interceptor.StatusReplayed, s.call(t.Context(), "Plain", key(text), text).status(t), text)
		}
		require.Equal(t, interceptor.StatusReleased, s.call(t.Context(), "Plain", key("status"), "status").status(t))
	})

	t.Run("a_downstream_that_does_not_know_is_ambiguous", func(t *testing.T) {
		for reason, want := range map[string][]string{
			"OUTCOME_UNKNOWN": {"ambiguous"}, "RECORD_UNREADABLE": {"ambiguous"}, "RESPONSE_NOT_RETAINED": {"ambiguous"}, "KEY_REUSED": nil,
		} {
			st, err := status.New(codes.FailedPrecondition, "downstream").WithDetails(&errdetails.ErrorInfo{Domain: interceptor.Domain, Reason: reason})
			require.NoError(t, err)
			s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
				return nil, st.Err()
			}})
			for range 2 {
				require.Equal(t, want, s.call(t.Context(), "Plain", key("a"), "x").trailer.Get(interceptor.MetadataOutcome), reason)
			}
			require.EqualValues(t, 1, s.svc.runs.Load())
		}
	})

	t.Run("marks_keep_the_error", func(t *testing.T) {
		cause := errors.New("cause")
		for _, mark := range []func(error) error{interceptor.Final, interceptor.NoEffect} {
			require.NoError(t, mark(nil))
			require.ErrorIs(t, mark(cause), cause)
			require.Equal(t, cause.Error(), mark(cause).Error())
			require.Equal(t, codes.Unavailable, status.Code(mark(unavailable)))
			require.Equal(t, "downstream is gone", status.Convert(mark(unavailable)).Message())
		}
	})
}

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
