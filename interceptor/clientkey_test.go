package interceptor_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

func TestClientKey(t *testing.T) {
	const (
		optionKey = "option-key-option-key"
		ctxKey    = "context-key-context-key"
		fieldKey  = "field-key-field-key"
	)
	outgoing := func(ctx context.Context, keys ...string) context.Context {
		for _, key := range keys {
			ctx = metadata.AppendToOutgoingContext(ctx, interceptor.MetadataKey, key)
		}
		return ctx
	}
	clientBubble(t, "one_key_and_one_value_in_every_attempt", func(t *testing.T) {
		for name, call := range map[string]func(h *clientHarness) error{
			"fresh": func(h *clientHarness) error {
				_, err := h.Guarded(t.Context(), &testpb.Request{})
				return err
			},
			optionKey: func(h *clientHarness) error {
				_, err := h.Plain(outgoing(t.Context(), ctxKey), &testpb.Request{}, interceptor.Key(ctxKey), interceptor.Key(optionKey))
				return err
			},
			ctxKey: func(h *clientHarness) error {
				_, err := h.Plain(outgoing(t.Context(), ctxKey), &testpb.Request{})
				return err
			},
			fieldKey: func(h *clientHarness) error {
				_, err := h.Fielded(t.Context(), &testpb.FieldedRequest{RequestId: fieldKey})
				return err
			},
		} {
			h := newClientHarness(t, interceptor.NewClient(), clientFailing(3, errClientUnavailable))
			require.NoError(t, call(h), name)
			require.Len(t, h.attempts(), 4, name)
			want := h.attempts()[0].keys
			require.Len(t, want, 1)
			if name != "fresh" {
				require.Equal(t, []string{name}, want)
			}
			for _, a := range h.attempts() {
				require.Equal(t, want, a.keys, name)
			}
		}
	})
	clientBubble(t, "option_replaces_several_values_in_the_metadata", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(0, nil))
		_, err := h.Guarded(outgoing(t.Context(), ctxKey, "another-key-another-key"), &testpb.Request{}, interceptor.Key(optionKey))
		require.NoError(t, err)
		require.Equal(t, []string{optionKey}, h.attempts()[0].keys)
	})
	clientBubble(t, "other_metadata_stays_and_the_caller's_is_not_changed", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), func(ctx context.Context, _ int, _ any) (*testpb.Response, error) {
			require.Equal(t, []string{"x", "y"}, metadata.ValueFromIncomingContext(ctx, "other"))
			return clientExecuted(ctx)
		})
		md := metadata.MD{"Idempotency-Key": {ctxKey}, "other": {"x"}}
		ctx := metadata.AppendToOutgoingContext(metadata.NewOutgoingContext(t.Context(), md), "other", "y")
		_, err := h.Plain(ctx, &testpb.Request{}, interceptor.Key(optionKey))
		require.NoError(t, err)
		_, err = h.Plain(ctx, &testpb.Request{})
		require.NoError(t, err)
		require.Equal(t, []string{optionKey}, h.attempts()[0].keys)
		require.Equal(t, []string{ctxKey}, h.attempts()[1].keys)
		require.True(t, slices.Equal(md["Idempotency-Key"], []string{ctxKey}))
	})
	clientBubble(t, "quotes_of_a_structured_field_are_taken_off", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(0, nil))
		_, err := h.Guarded(outgoing(t.Context(), `"`+ctxKey+`"`), &testpb.Request{})
		require.NoError(t, err)
		require.Equal(t, []string{ctxKey}, h.attempts()[0].keys)
	})
	clientBubble(t, "bad_key_is_refused_before_anything_is_sent", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(0, nil))
		guarded := func(ctx context.Context, opts ...grpc.CallOption) error {
			_, err := h.Guarded(ctx, &testpb.Request{}, opts...)
			return err
		}
		fielded := func(field string, opts ...grpc.CallOption) error {
			_, err := h.Fielded(t.Context(), &testpb.FieldedRequest{RequestId: field}, opts...)
			return err
		}
		for name, err := range map[string]error{
			"short":               guarded(t.Context(), interceptor.Key("secret42")),
			"empty":               guarded(t.Context(), interceptor.Key("")),
			"not ASCII":           guarded(t.Context(), interceptor.Key("secret-secret-secret-ß")),
			"metadata":            guarded(outgoing(t.Context(), "secret42")),
			"several in metadata": guarded(outgoing(t.Context(), "secret-secret-secret", "secret-secret-secret")),
			"parameters":          guarded(outgoing(t.Context(), `"secret-secret-secret";a=1`)),
			"field":               fielded("secret42"),
			"field and option":    fielded("secret-secret-secret", interceptor.Key("secret-secret-other-secret")),
		} {
			requireClientCode(t, codes.InvalidArgument, err)
			require.Equal(t, oncerpcv1.Reason_KEY_INVALID, interceptor.ReasonOf(err), name)
			require.NotContains(t, err.Error(), "secret")
			_, ok := interceptor.KeyFromError(err)
			require.False(t, ok)
		}
		require.Empty(t, h.attempts())
	})
	clientBubble(t, "same_key_in_option_and_field_is_sent", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(0, nil))
		_, err := h.Fielded(t.Context(), &testpb.FieldedRequest{RequestId: fieldKey}, interceptor.Key(fieldKey))
		require.NoError(t, err)
		require.Equal(t, []string{fieldKey}, h.attempts()[0].keys)
	})
	clientBubble(t, "key_follows_the_format", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(interceptor.WithKeyFormat(interceptor.UUIDKey)), clientFailing(0, nil))
		_, err := h.Guarded(t.Context(), &testpb.Request{}, interceptor.Key(optionKey))
		require.Equal(t, oncerpcv1.Reason_KEY_INVALID, interceptor.ReasonOf(err))
		_, err = h.Guarded(t.Context(), &testpb.Request{})
		require.NoError(t, err)

		h = newClientHarness(t, interceptor.NewClient(interceptor.WithKeyFormat(func(string) error { return errors.New("never") })), clientFailing(0, nil))
		_, err = h.Guarded(t.Context(), &testpb.Request{})
		require.Equal(t, oncerpcv1.Reason_KEY_INVALID, interceptor.ReasonOf(err))
		require.Empty(t, h.attempts())
	})
	clientBubble(t, "policy_in_Go_guards_a_method", func(t *testing.T) {
		for _, o := range []interceptor.ClientOption{
			interceptor.WithPolicy(testpb.TestService_Plain_FullMethodName, &oncerpcv1.MethodPolicy{}),
			interceptor.WithDefaultPolicy(&oncerpcv1.MethodPolicy{}),
		} {
			h := newClientHarness(t, interceptor.NewClient(o), clientFailing(1, errClientUnavailable))
			_, err := h.Plain(t.Context(), &testpb.Request{})
			require.NoError(t, err)
			require.Len(t, h.attempts(), 2)
			require.Len(t, h.attempts()[1].keys, 1)
		}
	})
	clientBubble(t, "method_ignored_by_policy_is_not_retried_even_with_a_key", func(t *testing.T) {
		once := interceptor.NewClient(interceptor.WithPolicy(testpb.TestService_Guarded_FullMethodName,
			&oncerpcv1.MethodPolicy{Key: oncerpcv1.MethodPolicy_IGNORED.Enum()}))
		h := newClientHarness(t, once, clientFailing(9, errClientUnavailable))
		_, err := h.Guarded(t.Context(), &testpb.Request{}, interceptor.Key(optionKey))
		requireClientCode(t, codes.Unavailable, err)
		_, err = h.Guarded(t.Context(), &testpb.Request{})
		requireClientCode(t, codes.Unavailable, err)
		require.Equal(t, []string{optionKey}, h.attempts()[0].keys)
		require.Empty(t, h.attempts()[1].keys)
		require.Len(t, h.attempts(), 2)
	})
	clientBubble(t, "nonsense_in_the_schema_is_an_internal_error", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(0, nil))
		finished := 0
		_, err := h.Nonsense(t.Context(), &testpb.Request{}, grpc.OnFinish(func(error) { finished++ }))
		requireClientCode(t, codes.Internal, err)
		require.Contains(t, err.Error(), "retention")
		require.Empty(t, h.attempts())
		require.Equal(t, 1, finished)
	})
	t.Run("nonsense_in_options_panics", func(t *testing.T) {
		negative := &oncerpcv1.MethodPolicy{MaxAttempts: new(int32)}
		for name, f := range map[string]func(){
			"policy":          func() { interceptor.NewClient(interceptor.WithDefaultPolicy(negative)) },
			"method":          func() { interceptor.NewClient(interceptor.WithPolicy("/x.Y/Z", &oncerpcv1.MethodPolicy{})) },
			"attempts":        func() { interceptor.WithAttempts(0) },
			"attempt timeout": func() { interceptor.WithAttemptTimeout(0) },
			"backoff base":    func() { interceptor.WithBackoff(0, 1) },
			"backoff limit":   func() { interceptor.WithBackoff(2, 1) },
		} {
			require.Panics(t, f, name)
		}
	})
}

func TestClientPassesOtherCallsThrough(t *testing.T) {
	clientBubble(t, "no_key_and_no_retry", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(9, errClientUnavailable))
		_, err := h.Plain(t.Context(), &testpb.Request{})
		requireClientCode(t, codes.Unavailable, err)
		require.Len(t, h.attempts(), 1)
		require.Empty(t, h.attempts()[0].keys)
		_, keyed := interceptor.KeyFromError(err)
		require.False(t, keyed)
	})
	t.Run("same_context_options_and_error_without_allocation", func(t *testing.T) {
		once := interceptor.NewClient(interceptor.WithPolicy(testpb.TestService_Guarded_FullMethodName, &oncerpcv1.MethodPolicy{}))
		ctx := metadata.AppendToOutgoingContext(t.Context(), "other", "x")
		req, reply := &testpb.Request{}, &testpb.Response{Text: "left alone"}
		opts := make([]grpc.CallOption, 0, 4)
		opts = append(opts, grpc.StaticMethod(), grpc.Header(new(metadata.MD)))
		plain := errors.New("plain")
		same := true
		invoker := func(c context.Context, method string, r, p any, cc *grpc.ClientConn, o ...grpc.CallOption) error {
			same = same && c == ctx && method == testpb.TestService_Plain_FullMethodName && r == any(req) && p == any(reply) && cc == nil &&
				len(o) == 2 && cap(o) == 4 && unsafe.SliceData(o) == unsafe.SliceData(opts)
			return plain
		}
		var err error
		allocs := testing.AllocsPerRun(100, func() {
			err = once.Unary(ctx, testpb.TestService_Plain_FullMethodName, req, reply, nil, invoker, opts...)
		})
		require.True(t, same)
		require.Equal(t, plain, err)
		require.Equal(t, "left alone", reply.Text)
		require.Zero(t, allocs)
		require.Zero(t, once.KnownConns())
	})
	clientBubble(t, "stray_key_option_without_a_client_is_harmless", func(t *testing.T) {
		h := newClientHarness(t, interceptor.NewClient(), clientFailing(0, nil))
		reply := new(testpb.Response)
		stream, err := h.conn.NewStream(t.Context(), &grpc.StreamDesc{}, testpb.TestService_Plain_FullMethodName, interceptor.Key("0123456789abcdef"))
		require.NoError(t, err) // no unary interceptor here
		require.NoError(t, stream.SendMsg(&testpb.Request{}))
		require.NoError(t, stream.CloseSend())
		require.NoError(t, stream.RecvMsg(reply))
		require.Equal(t, "done", reply.Text)
		require.Empty(t, h.attempts()[0].keys)
	})
	t.Run("method_that_is_not_linked_is_left_alone", func(t *testing.T) {
		err := interceptor.NewClient().Unary(t.Context(), "/not.Linked/Method", nil, nil, nil,
			func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
				return status.Error(codes.Unavailable, "once")
			})
		require.Equal(t, status.Error(codes.Unavailable, "once"), err)
	})
}
