package interceptor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

func TestClientRetries(t *testing.T) {
	const noReason = oncerpcv1.Reason_REASON_UNSPECIFIED
	marks := map[string][]string{
		"none":                nil,
		"executed":            {interceptor.MetadataStatus, "executed"},
		"joined":              {interceptor.MetadataStatus, "joined"},
		"unrecorded":          {interceptor.MetadataStatus, "unrecorded"},
		"released":            {interceptor.MetadataStatus, "released"},
		"replayed":            {interceptor.MetadataStatus, "replayed"},
		"ignored":             {interceptor.MetadataStatus, "ignored"},
		"ambiguous":           {interceptor.MetadataStatus, "executed", interceptor.MetadataOutcome, "ambiguous"},
		"pushback":            {"grpc-retry-pushback-ms", "-1"},
		"released, pushback":  {interceptor.MetadataStatus, "released", "grpc-retry-pushback-ms", "-1"},
		"released, ambiguous": {interceptor.MetadataStatus, "released", interceptor.MetadataOutcome, "ambiguous"},
	}
	// What is sent again, by code and reason; nothing else is. "*" stands for the reasons that are not named.
	const always = "none executed joined unrecorded released"
	retried := map[codes.Code]map[string]string{
		codes.Unavailable: {"*": always},
		codes.Aborted: {
			"IN_PROGRESS": always, "SUPERSEDED": always, "OVERLOADED": always, "*": "released",
		},
		codes.ResourceExhausted: {"OVERLOADED": always, "*": "released"},
	}
	reasons := []oncerpcv1.Reason{
		noReason, oncerpcv1.Reason_IN_PROGRESS, oncerpcv1.Reason_SUPERSEDED, oncerpcv1.Reason_OVERLOADED,
		oncerpcv1.Reason_STORE_UNAVAILABLE, oncerpcv1.Reason_KEY_REUSED,
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		clientBubble(t, code.String(), func(t *testing.T) {
			for _, reason := range reasons {
				answers := retried[code]["*"]
				if named, ok := retried[code][reason.String()]; ok {
					answers = named
				}
				for name, mark := range marks {
					err := status.Error(code, "scripted")
					if reason != noReason && code != codes.OK {
						err = clientRefusal(code, reason, 0)
					}
					h := startClientHarness(interceptor.NewClient(), func(ctx context.Context, n int, _ any) (*testpb.Response, error) {
						if n > 1 {
							return clientExecuted(ctx)
						}
						var response *testpb.Response
						if code == codes.OK {
							response = &testpb.Response{Text: "done"}
						}
						return response, clientMarked(ctx, err, mark...)
					})
					_, err = h.Guarded(t.Context(), &testpb.Request{})
					h.stop()
					if slices.Contains(strings.Fields(answers), name) {
						require.NoError(t, err, "%v %s", reason, name)
						require.Len(t, h.attempts(), 2, "%v %s", reason, name)
					} else {
						requireClientCode(t, code, err)
						require.Len(t, h.attempts(), 1, "%v %s", reason, name)
					}
				}
			}
		})
	}

	clientBubble(t, "another_domain's_reason_is_not_ours", func(t *testing.T) {
		st, err := status.New(codes.Aborted, "scripted").WithDetails(&errdetails.ErrorInfo{Domain: "example.com", Reason: "IN_PROGRESS"})
		require.NoError(t, err)
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(1, st.Err()))
		_, err = h.Guarded(t.Context(), &testpb.Request{})
		requireClientCode(t, codes.Aborted, err)
		require.Len(t, h.attempts(), 1)
	})
	clientBubble(t, "idempotent_method_is_retried_without_a_key", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(2, errClientUnavailable))
		_, err := h.Put(t.Context(), &testpb.Request{})
		require.NoError(t, err)
		_, err = h.Read(t.Context(), &testpb.Request{})
		require.NoError(t, err)
		for _, a := range h.attempts() {
			require.Empty(t, a.keys)
		}
		require.Len(t, h.attempts(), 4)
	})
	clientBubble(t, "five_attempts_by_default", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(99, errClientUnavailable))
		_, err := h.Guarded(t.Context(), &testpb.Request{})
		requireClientCode(t, codes.Unavailable, err)
		require.Len(t, h.attempts(), 5)
	})
	clientBubble(t, "attempts_include_the_first", func(t *testing.T) {
		for n := 1; n < 4; n++ {
			h := newClientHarness(t, interceptor.NewClient(interceptor.WithAttempts(n)), clientFailing(99, errClientUnavailable))
			_, err := h.Guarded(t.Context(), &testpb.Request{})
			requireClientCode(t, codes.Unavailable, err)
			require.Len(t, h.attempts(), n)
		}
	})
	for _, reason := range []oncerpcv1.Reason{oncerpcv1.Reason_IN_PROGRESS, oncerpcv1.Reason_SUPERSEDED} {
		clientBubble(t, reason.String()+"_counts_only_without_a_deadline", func(t *testing.T) {
			once := interceptor.NewClient(interceptor.WithAttempts(3))
			h := newClientHarness(t, once, clientFailing(150, clientRefusal(codes.Aborted, reason, time.Second)))
			_, err := h.Guarded(t.Context(), &testpb.Request{})
			require.Equal(t, reason, interceptor.ReasonOf(err))
			require.Len(t, h.attempts(), 3)

			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			_, err = h.Guarded(ctx, &testpb.Request{})
			require.NoError(t, err)
			require.Len(t, h.attempts(), 151)
		})
	}
	clientBubble(t, "in_progress_with_no_wait_is_no_busy_loop", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(),
			clientFailing(99, clientRefusal(codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, 0), "grpc-retry-pushback-ms", "0"))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := h.Guarded(ctx, &testpb.Request{})
		require.Equal(t, oncerpcv1.Reason_IN_PROGRESS, interceptor.ReasonOf(err))
		require.Len(t, h.attempts(), 10)
	})
}

func TestClientWait(t *testing.T) {
	const ms = time.Millisecond
	retryInfo := func(d time.Duration) error {
		st, err := status.New(codes.Unavailable, "scripted").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d)})
		require.NoError(t, err)
		return st.Err()
	}
	for name, c := range map[string]struct {
		err   error
		pairs []string
		want  time.Duration
	}{
		"pushback_is_honoured":              {errClientUnavailable, []string{"700"}, 700 * ms},
		"pushback_goes_before_retry_info":   {retryInfo(2 * time.Second), []string{"700"}, 700 * ms},
		"pushback_of_zero_is_no_wait":       {errClientUnavailable, []string{"0"}, 0},
		"absurd_pushback_is_a_minute":       {errClientUnavailable, []string{"9223372036854775807"}, time.Minute},
		"retry_info_is_honoured":            {retryInfo(2 * time.Second), nil, 2 * time.Second},
		"retry_info_of_an_hour_is_a_minute": {retryInfo(time.Hour), nil, time.Minute},
		"negative_retry_info_is_no_wait":    {retryInfo(-time.Hour), nil, 0},
	} {
		clientBubble(t, name, func(t *testing.T) {
			h := newClientHarness(t, interceptor.NewClient(), clientFailing(1, c.err, clientPushbacks(c.pairs)...))
			_, err := h.Guarded(t.Context(), &testpb.Request{})
			require.NoError(t, err)
			require.Equal(t, []time.Duration{c.want}, h.gaps())
		})
	}
	for name, values := range map[string][]string{
		"negative":  {"-5"},
		"malformed": {"soon"},
		"empty":     {""},
		"fraction":  {"1.5"},
		"too_large": {"99999999999999999999"},
		"two":       {"10", "10"},
	} {
		clientBubble(t, name+"_pushback_ends_the_call", func(t *testing.T) {
			h := newClientHarness(t, interceptor.NewClient(), clientFailing(1, retryInfo(time.Second), clientPushbacks(values)...))
			_, err := h.Guarded(t.Context(), &testpb.Request{})
			requireClientCode(t, codes.Unavailable, err)
			require.Len(t, h.attempts(), 1)
		})
	}
	clientBubble(t, "backoff_doubles_up_to_its_limit_with_full_jitter", func(t *testing.T) {
		const base, limit = 100 * time.Millisecond, 5 * time.Second
		once := interceptor.NewClient(interceptor.WithAttempts(1))
		h := newClientHarness(t, once, clientFailing(200, clientRefusal(codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, 0)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := h.Guarded(ctx, &testpb.Request{})
		require.NoError(t, err)
		gaps := h.gaps()
		require.Len(t, gaps, 200)
		upper := base
		for i, gap := range gaps {
			require.Positive(t, gap)
			require.LessOrEqual(t, gap, upper, "wait %d", i+1)
			upper = min(2*upper, limit)
		}
		require.Less(t, slices.Min(gaps[6:]), limit/4)
		require.Greater(t, slices.Max(gaps[6:]), limit*3/4)
	})
	clientBubble(t, "backoff_is_configurable_and_cannot_overflow", func(t *testing.T) {
		const most = time.Duration(1<<63 - 1)
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithBackoff(most, most)), clientFailing(99, errClientUnavailable))
		_, err := h.Guarded(t.Context(), &testpb.Request{})
		requireClientCode(t, codes.Unavailable, err)
		for _, gap := range h.gaps() {
			require.LessOrEqual(t, gap, time.Minute)
		}
		require.Len(t, h.attempts(), 5)
	})
	clientBubble(t, "backoff_starts_again_after_a_hint", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithAttempts(9), interceptor.WithBackoff(time.Millisecond, time.Hour)),
			func(ctx context.Context, n int, _ any) (*testpb.Response, error) {
				if n == 7 {
					return nil, clientMarked(ctx, errClientUnavailable, "grpc-retry-pushback-ms", "70")
				}
				return nil, errClientUnavailable
			})
		_, err := h.Guarded(t.Context(), &testpb.Request{})
		requireClientCode(t, codes.Unavailable, err)
		require.Equal(t, 70*time.Millisecond, h.gaps()[6])
		require.LessOrEqual(t, h.gaps()[7], time.Millisecond)
	})
}

func clientPushbacks(values []string) (pairs []string) {
	for _, v := range values {
		pairs = append(pairs, "grpc-retry-pushback-ms", v)
	}
	return pairs
}

func TestClientDeadline(t *testing.T) {
	clientBubble(t, "wait_past_the_deadline_is_not_begun", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(9, errClientUnavailable, "grpc-retry-pushback-ms", "2000"))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		_, err := h.Guarded(ctx, &testpb.Request{})
		requireClientCode(t, codes.Unavailable, err)
		require.Equal(t, "scripted", status.Convert(err).Message())
		require.Len(t, h.attempts(), 3)
		require.Equal(t, 4*time.Second, time.Since(start))
	})
	clientBubble(t, "hint_past_the_deadline_ends_the_call_though_it_is_more_than_a_minute", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(9, errClientUnavailable, "grpc-retry-pushback-ms", "3600000"))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		_, err := h.Guarded(ctx, &testpb.Request{})
		requireClientCode(t, codes.Unavailable, err)
		require.Len(t, h.attempts(), 1)
	})
	clientBubble(t, "in_progress_ends_with_its_error_at_the_deadline", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(999, clientRefusal(codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, time.Second)))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second+time.Millisecond)
		defer cancel()
		_, err := h.Guarded(ctx, &testpb.Request{})
		require.Equal(t, oncerpcv1.Reason_IN_PROGRESS, interceptor.ReasonOf(err))
		require.Len(t, h.attempts(), 21)
	})
	clientBubble(t, "cancelling_ends_the_wait_at_once", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(9, errClientUnavailable, "grpc-retry-pushback-ms", "50000"))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		_, err := h.Guarded(ctx, &testpb.Request{}, interceptor.Key("a-key-of-a-caller-that-leaves"))
		require.Equal(t, time.Second, time.Since(start))
		requireClientCode(t, codes.Canceled, err)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, errClientUnavailable)
		key, ok := interceptor.KeyFromError(err)
		require.True(t, ok)
		require.Equal(t, "a-key-of-a-caller-that-leaves", key)
		require.Equal(t, "rpc error: code = Canceled desc = oncerpc: cancelled while waiting to retry: scripted", err.Error())
	})
	clientBubble(t, "each_attempt_has_its_own_timeout", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithAttemptTimeout(100*time.Millisecond)),
			func(ctx context.Context, n int, _ any) (*testpb.Response, error) {
				if n < 4 {
					<-ctx.Done()
					return nil, status.FromContextError(ctx.Err()).Err()
				}
				return clientExecuted(ctx)
			})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := h.Guarded(ctx, &testpb.Request{})
		require.NoError(t, err)
		require.Len(t, h.attempts(), 4)
		for _, a := range h.attempts() {
			require.InDelta(t, 100*time.Millisecond, a.left, float64(time.Millisecond))
		}
	})
	clientBubble(t, "server's_deadline_exceeded_within_an_attempt_is_retried", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithAttemptTimeout(100*time.Millisecond)),
			clientFailing(1, status.Error(codes.DeadlineExceeded, "scripted")))
		_, err := h.Guarded(t.Context(), &testpb.Request{})
		require.NoError(t, err)
		require.Len(t, h.attempts(), 2)
	})
	clientBubble(t, "replayed_deadline_exceeded_is_not_retried", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithAttemptTimeout(100*time.Millisecond)),
			clientFailing(1, status.Error(codes.DeadlineExceeded, "scripted"), interceptor.MetadataStatus, "replayed"))
		_, err := h.Guarded(t.Context(), &testpb.Request{})
		requireClientCode(t, codes.DeadlineExceeded, err)
		require.Len(t, h.attempts(), 1)
	})
	clientBubble(t, "call's_own_deadline_is_not_retried", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithAttemptTimeout(time.Minute)),
			func(ctx context.Context, _ int, _ any) (*testpb.Response, error) {
				<-ctx.Done()
				return nil, status.FromContextError(ctx.Err()).Err()
			})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := h.Guarded(ctx, &testpb.Request{})
		requireClientCode(t, codes.DeadlineExceeded, err)
		require.Equal(t, time.Second, time.Since(start))
		require.Len(t, h.attempts(), 1)
	})
	clientBubble(t, "10000_failing_attempts_leave_no_context_and_no_goroutine", func(t *testing.T) {
		once := interceptor.NewClient(interceptor.WithAttemptTimeout(time.Hour))
		failure := clientRefusal(codes.Aborted, oncerpcv1.Reason_IN_PROGRESS, 100*time.Millisecond)
		var left []context.Context
		ctx, cancel := context.WithTimeout(t.Context(), 1000*time.Second+time.Millisecond)
		defer cancel()
		err := once.Unary(ctx, testpb.TestService_Guarded_FullMethodName, &testpb.Request{}, &testpb.Response{}, nil,
			func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
				left = append(left, ctx)
				return failure
			})
		require.ErrorIs(t, err, failure)
		require.Len(t, left, 10001)
		for _, ctx := range left {
			require.ErrorIs(t, ctx.Err(), context.Canceled)
		}
		require.NoError(t, ctx.Err()) // the bubble's end finds a goroutine that is left
	})
}

func TestClientError(t *testing.T) {
	clientBubble(t, "status_stays_as_it_is", func(t *testing.T) {
		want, err := status.New(codes.FailedPrecondition, "no money").WithDetails(&errdetails.ErrorInfo{Domain: "example.com", Reason: "POOR"})
		require.NoError(t, err)
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(1, want.Err(), interceptor.MetadataStatus, "executed"))
		_, err = h.Guarded(t.Context(), &testpb.Request{}, interceptor.Key("0123456789abcdef"))
		got, ok := status.FromError(err)
		require.True(t, ok)
		require.Equal(t, want.String(), got.String())
		require.Equal(t, want.Details()[0].(*errdetails.ErrorInfo).GetReason(), got.Details()[0].(*errdetails.ErrorInfo).GetReason())
		require.Equal(t, want.Err().Error(), err.Error())
		require.ErrorIs(t, err, got.Err())
		key, ok := interceptor.KeyFromError(err)
		require.True(t, ok)
		require.Equal(t, "0123456789abcdef", key)
	})
	t.Run("key_is_not_printed", func(t *testing.T) {
		err := clientInvoke(errors.New("no status"), interceptor.Key("0123456789abcdef"))
		key, ok := interceptor.KeyFromError(err)
		require.True(t, ok)
		require.Equal(t, "0123456789abcdef", key)
		for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			require.NotContains(t, fmt.Sprintf(format, err), "0123456789abcdef")
		}
	})
	t.Run("error_without_a_status_has_none_afterwards", func(t *testing.T) {
		plain := errors.New("no status")
		err := clientInvoke(plain)
		require.ErrorIs(t, err, plain)
		_, ok := status.FromError(err)
		require.False(t, ok)
	})
	t.Run("no_key_in_other_errors", func(t *testing.T) {
		for _, err := range []error{nil, errors.New("plain"), errClientUnavailable} {
			_, ok := interceptor.KeyFromError(err)
			require.False(t, ok)
		}
	})
	clientBubble(t, "each_guarded_call_has_its_own_key", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(9, status.Error(codes.NotFound, "scripted")))
		_, first := h.Guarded(t.Context(), &testpb.Request{})
		_, second := h.Guarded(t.Context(), &testpb.Request{})
		a, _ := interceptor.KeyFromError(first)
		b, _ := interceptor.KeyFromError(second)
		require.Equal(t, []string{a}, h.attempts()[0].keys)
		require.Equal(t, []string{b}, h.attempts()[1].keys)
		require.NotEqual(t, a, b)
		require.NoError(t, interceptor.UUIDKey(a))
		require.Equal(t, byte('4'), a[14])
		require.Contains(t, "89ab", a[19:20])
	})
}

// clientInvoke is a guarded call that ends with err.
func clientInvoke(err error, opts ...grpc.CallOption) error {
	return interceptor.NewClient().Unary(context.Background(), testpb.TestService_Guarded_FullMethodName,
		&testpb.Request{}, &testpb.Response{}, nil,
		func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return err }, opts...)
}
