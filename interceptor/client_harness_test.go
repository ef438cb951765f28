package interceptor_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// clientScript answers the n-th attempt that reaches the server (1 for the first). A response beside an error is sent
// before it.
type clientScript func(ctx context.Context, n int, req any) (*testpb.Response, error)

// clientSeen is what one attempt looked like to the server.
type clientSeen struct {
	method  string
	keys    []string // all values of idempotency-key
	request any
	wire    []byte // the request's bytes
	at      time.Time
	left    time.Duration // until the attempt's deadline
}

// clientHarness is a Client's connection to a real server that answers by a script.
type clientHarness struct {
	testpb.TestServiceClient

	conn   *grpc.ClientConn
	server *grpc.Server
	script clientScript

	mu   sync.Mutex
	seen []clientSeen
}

func newClientHarness(t *testing.T, once *interceptor.Client, script clientScript, dial ...grpc.DialOption) *clientHarness {
	t.Helper()
	h := startClientHarness(once, script, dial...)
	t.Cleanup(h.stop)
	return h
}

func startClientHarness(once *interceptor.Client, script clientScript, dial ...grpc.DialOption) *clientHarness {
	h := &clientHarness{script: script}
	lis := bufconn.Listen(1 << 20)
	h.server = grpc.NewServer(grpc.UnknownServiceHandler(h.serve), grpc.ForceServerCodecV2(clientWireCodec{encoding.GetCodecV2("proto")}))
	go func() { _ = h.server.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///bufconn", append([]grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithChainUnaryInterceptor(once.Unary),
	}, dial...)...)
	if err != nil {
		panic(err)
	}
	h.conn, h.TestServiceClient = conn, testpb.NewTestServiceClient(conn)
	return h
}

func (h *clientHarness) stop() {
	_ = h.conn.Close()
	h.server.Stop()
}

func (h *clientHarness) serve(_ any, stream grpc.ServerStream) error {
	ctx := stream.Context()
	method, _ := grpc.MethodFromServerStream(stream)
	frame := &clientWireFrame{message: new(testpb.Request)}
	if method == testpb.TestService_Fielded_FullMethodName {
		frame.message = new(testpb.FieldedRequest)
	}
	if err := stream.RecvMsg(frame); err != nil {
		return err
	}
	seen := clientSeen{
		method:  method,
		keys:    metadata.ValueFromIncomingContext(ctx, interceptor.MetadataKey),
		request: frame.message, wire: frame.bytes, at: time.Now(),
	}
	if deadline, ok := ctx.Deadline(); ok {
		seen.left = time.Until(deadline)
	}
	h.mu.Lock()
	h.seen = append(h.seen, seen)
	n := len(h.seen)
	h.mu.Unlock()
	response, err := h.script(ctx, n, frame.message)
	if response != nil {
		if err := stream.SendMsg(response); err != nil {
			return err
		}
	}
	return err
}

// attempts returns what the server has seen.
func (h *clientHarness) attempts() []clientSeen {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen[:len(h.seen):len(h.seen)]
}

// gaps are the times between the attempts.
func (h *clientHarness) gaps() (gaps []time.Duration) {
	seen := h.attempts()
	for i := 1; i < len(seen); i++ {
		gaps = append(gaps, seen[i].at.Sub(seen[i-1].at))
	}
	return gaps
}

// clientWireFrame receives a message and keeps the bytes that it came as.
type clientWireFrame struct {
	message protoadapt.MessageV2
	bytes   []byte
}

type clientWireCodec struct{ encoding.CodecV2 }

func (c clientWireCodec) Unmarshal(data mem.BufferSlice, v any) error {
	frame, ok := v.(*clientWireFrame)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	frame.bytes = data.Materialize()
	return c.CodecV2.Unmarshal(data, frame.message)
}

// clientBubble runs a subtest in which time passes only while everybody waits.
func clientBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// clientFailing fails the first n attempts with err, and then answers OK. Pairs of metadata go with every failure.
func clientFailing(n int, err error, pairs ...string) clientScript {
	return func(ctx context.Context, attempt int, _ any) (*testpb.Response, error) {
		if attempt > n {
			return clientExecuted(ctx)
		}
		return nil, clientMarked(ctx, err, pairs...)
	}
}

// clientExecuted is the OK of a guarded method.
func clientExecuted(ctx context.Context) (*testpb.Response, error) {
	return &testpb.Response{Text: "done"}, clientMarked(ctx, nil, interceptor.MetadataStatus, string(interceptor.StatusExecuted))
}

func clientMarked(ctx context.Context, err error, pairs ...string) error {
	if setErr := grpc.SetTrailer(ctx, metadata.Pairs(pairs...)); setErr != nil {
		return setErr
	}
	return err
}

// clientRefusal is an error as oncerpc makes it; a hint of 0 is none.
func clientRefusal(code codes.Code, reason oncerpcv1.Reason, hint time.Duration) error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Domain: interceptor.Domain, Reason: reason.String()}}
	if hint != 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(hint)})
	}
	st, err := status.New(code, "scripted").WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return st.Err()
}

var errClientUnavailable = status.Error(codes.Unavailable, "scripted")

func requireClientCode(t *testing.T, want codes.Code, err error) {
	t.Helper()
	require.Equal(t, want, status.Code(err), "%v", err)
}
