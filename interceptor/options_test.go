package interceptor_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func TestFingerprintOptions(t *testing.T) {
	ctx := t.Context()
	custom := interceptor.WithFingerprint(func(_ context.Context, method string, req any) ([]byte, error) {
		text := req.(*testpb.Request).GetText()
		if text == "refuse" {
			return nil, errors.New("cannot read it")
		}
		return []byte(strings.ToLower(text)), nil
	})

	t.Run("a_fingerprint_of_ones_own_decides_what_is_equal", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{}, custom)
		s.call(ctx, "Plain", key("a"), "Hello").requireOK(t, 1, interceptor.StatusExecuted)
		s.call(ctx, "Plain", key("a"), "hELLO").requireOK(t, 1, interceptor.StatusReplayed)
		s.call(ctx, "Plain", key("a"), "other").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
		s.call(ctx, "Guarded", key("a"), "Hello").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
		require.Equal(t, codes.Internal, status.Code(s.call(ctx, "Plain", key("b"), "refuse").err))
		require.EqualValues(t, 1, s.svc.runs.Load())
	})

	t.Run("records_of_another_algorithm_are_compared_by_it_or_refused", func(t *testing.T) {
		records := new(storetest.Memory)
		plain := newServer(t, records, &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			return nil, interceptor.NoEffect(errors.New("busy"))
		}})
		own := newServer(t, records, &service{}, custom)
		require.Error(t, plain.call(ctx, "Plain", key("a"), "Hello").err)
		own.call(ctx, "Plain", key("a"), "hello").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
		own.call(ctx, "Plain", key("a"), "Hello").requireOK(t, 1, interceptor.StatusExecuted)
		own.call(ctx, "Plain", key("a"), "Hello").requireOK(t, 1, interceptor.StatusReplayed)
		own.call(ctx, "Plain", key("b"), "Hello").requireOK(t, 2, interceptor.StatusExecuted)
		plain.call(ctx, "Plain", key("b"), "Hello").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_RECORD_UNREADABLE)
		require.Panics(t, func() { interceptor.WithFingerprint(nil) })
	})

	t.Run("metadata_can_be_part_of_the_request", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{}, interceptor.WithFingerprintMetadata("Currency"))
		eur := metadata.AppendToOutgoingContext(ctx, "currency", "EUR", "trace", "1")
		s.call(eur, "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
		s.call(metadata.AppendToOutgoingContext(ctx, "currency", "EUR", "trace", "2"), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
		s.call(metadata.AppendToOutgoingContext(ctx, "currency", "USD"), "Plain", key("a"), "x").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
	})

	t.Run("a_secret_names_records_otherwise", func(t *testing.T) {
		records := new(storetest.Memory)
		secret := bytes.Repeat([]byte{7}, 32)
		a, b := newServer(t, records, &service{}), newServer(t, records, &service{}, interceptor.WithSecret(secret))
		clear(secret) // it is copied
		a.call(ctx, "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
		b.call(ctx, "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
		require.NotEqual(t, a.once.ID("acme", key("a")), b.once.ID("acme", key("a")))
		require.True(t, slices.ContainsFunc([]store.ID{a.once.ID("acme", key("a"))}, func(id store.ID) bool {
			rec, err := records.Get(ctx, id)
			return err == nil && rec.State == store.Done
		}))
	})
}

func TestKeyField(t *testing.T) {
	ctx := t.Context()
	fielded := func(s *server, header, field, text, trace string) reply {
		c := ctx
		if header != "" {
			c = metadata.AppendToOutgoingContext(c, interceptor.MetadataKey, header)
		}
		return s.invoke(c, "Fielded", &testpb.FieldedRequest{Text: text, RequestId: field, Inner: &testpb.FieldedRequest_Inner{Trace: trace}})
	}
	s := newServer(t, new(storetest.Memory), &service{})
	fielded(s, "", key("a"), "x", "1").requireOK(t, 1, interceptor.StatusExecuted)
	fielded(s, "", key("a"), "x", "2").requireOK(t, 1, interceptor.StatusReplayed)
	fielded(s, key("a"), key("a"), "x", "").requireOK(t, 1, interceptor.StatusReplayed)
	fielded(s, key("a"), "", "x", "").requireOK(t, 1, interceptor.StatusReplayed)
	fielded(s, key("b"), key("a"), "x", "").requireReason(t, codes.InvalidArgument, oncerpcv1.Reason_KEY_INVALID)
	fielded(s, "", "short", "x", "").requireReason(t, codes.InvalidArgument, oncerpcv1.Reason_KEY_INVALID)
	fielded(s, "", "", "x", "").requireReason(t, codes.InvalidArgument, oncerpcv1.Reason_KEY_MISSING)
	fielded(s, "", key("a"), "y", "").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
	require.EqualValues(t, 1, s.svc.runs.Load())
}
