package interceptor_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store/storetest"
)

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
