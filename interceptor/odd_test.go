package interceptor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	"github.com/oncerpc/oncerpc/store/storetest"
)

// typedNil is an error whose methods do not work on nil.
type typedNil struct{ text string }

func (e *typedNil) Error() string              { return e.text }
func (e *typedNil) GRPCStatus() *status.Status { return status.New(codes.NotFound, e.text) }

// nilStatus is an error that has no status after all.
type nilStatus struct{}

func (nilStatus) Error() string              { return "no status" }
func (nilStatus) GRPCStatus() *status.Status { return nil }

// okStatus is an error that claims that all is well.
type okStatus struct{}

func (okStatus) Error() string              { return "ok?" }
func (okStatus) GRPCStatus() *status.Status { return status.New(codes.OK, "fine") }

// panicky is an error that cannot be looked at.
type panicky struct{}

func (panicky) Error() string { panic("Error panics") }

func TestOddReturns(t *testing.T) {
	dynamic := func(m proto.Message) proto.Message {
		d := dynamicpb.NewMessage(m.ProtoReflect().Descriptor())
		b, err := proto.Marshal(m)
		require.NoError(t, err)
		require.NoError(t, proto.Unmarshal(b, d))
		return d
	}
	huge := status.New(codes.ResourceExhausted, "huge")
	huge, err := huge.WithDetails(&errdetails.DebugInfo{Detail: strings.Repeat("d", 20<<20)})
	require.NoError(t, err)
	var noResponse *testpb.Response
	var noError *typedNil
	var noWrapper *wrapperspb.StringValue
	for name, row := range map[string]struct {
		resp any
		err  error
		do   func()
		code codes.Code
		// first is the first caller's code, if it is another.
		first codes.Code
	}{
		"typed_nil_response":               {resp: noResponse, code: codes.OK},
		"typed_nil_of_another_message":     {resp: noWrapper, code: codes.OK},
		"nothing":                          {code: codes.OK},
		"dynamic_message":                  {resp: dynamic(&testpb.Response{Number: 1}), code: codes.OK},
		"dynamic_message_of_another_type":  {resp: dynamic(wrapperspb.String("x")), code: codes.Internal},
		"message_of_another_type":          {resp: wrapperspb.String("x"), code: codes.Internal},
		"no_message":                       {resp: 42, code: codes.Internal},
		"response_and_error":               {resp: &testpb.Response{Number: 1}, err: errors.New("both"), code: codes.Unknown},
		"error_of_status_ok":               {err: okStatus{}, code: codes.Internal},
		"error_of_status_ok_wrapped":       {err: fmt.Errorf("wrapped: %w", okStatus{}), code: codes.Internal},
		"error_of_status_ok_that_is_final": {err: interceptor.Final(okStatus{}), code: codes.Internal},
		"error_of_no_status":               {err: nilStatus{}, code: codes.Unknown},
		"typed_nil_error":                  {err: noError, code: codes.Internal},
		"error_that_panics":                {err: panicky{}, code: codes.Internal},
		"code_99":                          {err: status.Error(99, "odd"), code: 99},
		"text_that_is_not_utf8":            {err: errors.New("\xff\xfe"), code: codes.Unknown},
		"huge_details":                     {err: huge.Err(), code: codes.ResourceExhausted, first: codes.Unavailable},
		"panic_with_nil":                   {do: func() { panic(nil) }, code: codes.Internal},
		"panic_with_a_status":              {do: func() { panic(status.Error(codes.NotFound, "x")) }, code: codes.Internal},
		"panic_with_a_panicking_value":     {do: func() { panic(panicky{}) }, code: codes.Internal},
		"panic_of_the_runtime":             {do: func() { _ = []int{}[len(os.Args):] }, code: codes.Internal},
		"exit":                             {do: runtime.Goexit, code: codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			inner := func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
				runs++
				if row.do != nil {
					row.do()
				}
				return row.resp, row.err
			}
			once := interceptor.NewServer(new(storetest.Memory), tenantOf)
			s := serve(t, once, &service{}, recovery, once.Unary, inner)
			for i, st := range []interceptor.Status{interceptor.StatusExecuted, interceptor.StatusReplayed, interceptor.StatusReplayed} {
				r := s.call(t.Context(), "Plain", key("a"), "x")
				if i == 0 && row.first != codes.OK {
					require.Equal(t, row.first, status.Code(r.err), "%v", r.err)
					continue
				}
				require.Equal(t, row.code, status.Code(r.err), "%v", r.err)
				if i > 0 || row.do == nil {
					require.Equal(t, st, r.status(t))
				}
				if i > 0 && row.code == codes.Internal {
					require.NotContains(t, fmt.Sprint(r.err), "Error panics", "what panicked may hold anything")
				}
			}
			require.Equal(t, 1, runs)
			require.NoError(t, once.Drain(t.Context()))
		})
	}
}

func TestBrokenMetadataOfTheCaller(t *testing.T) {
	once := interceptor.NewServer(new(storetest.Memory), tenantOf)
	ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{interceptor.MetadataKey: nil})
	resp, err := once.Unary(ctx, &testpb.Request{}, &grpc.UnaryServerInfo{FullMethod: testService + "Plain"},
		func(context.Context, any) (any, error) { return &testpb.Response{Number: 1}, nil })
	require.NoError(t, err)
	require.EqualValues(t, 1, resp.(*testpb.Response).GetNumber())
	for i, method := range []string{"", "/", "x", "/a/b/c", "/\xff/\xff", testService + "Nowhere"} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(interceptor.MetadataKey, key("a")+strings.Repeat("k", i)))
		_, err := once.Unary(ctx, &testpb.Request{}, &grpc.UnaryServerInfo{FullMethod: method},
			func(context.Context, any) (any, error) { return &testpb.Response{Number: 1}, nil })
		require.NoError(t, err, method)
	}
}
