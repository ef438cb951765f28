package interceptor_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
)

// TestMain fails the package if a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	before := runtime.NumGoroutine()
	code := m.Run()
	fuzzing := flag.Lookup("test.fuzz").Value.String() != "" // which waits for signals
	if after := settledGoroutines(before); after > before && code == 0 && !fuzzing {
		buf := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "%d goroutines before the tests, %d after:\n%s\n", before, after, buf[:runtime.Stack(buf, true)])
		code = 1
	}
	os.Exit(code)
}

// settledGoroutines counts goroutines once those that are about to end have ended.
func settledGoroutines(want int) int {
	for range 500 {
		if runtime.NumGoroutine() <= want {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	return runtime.NumGoroutine()
}

// service is a TestService whose methods all run one handler.
type service struct {
	testpb.UnimplementedTestServiceServer
	handle func(ctx context.Context, req *testpb.Request, run int64) (*testpb.Response, error)
	runs   atomic.Int64
}

func (s *service) run(ctx context.Context, req *testpb.Request) (*testpb.Response, error) {
	n := s.runs.Add(1)
	if s.handle == nil {
		return &testpb.Response{Text: req.GetText(), Number: n}, nil
	}
	return s.handle(ctx, req, n)
}

func (s *service) Plain(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.run(ctx, r)
}

func (s *service) Required(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.run(ctx, r)
}

func (s *service) Guarded(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.run(ctx, r)
}

func (s *service) Rerun(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.run(ctx, r)
}

func (s *service) Impatient(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.run(ctx, r)
}

func (s *service) Brief(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.run(ctx, r)
}

func (s *service) InTransaction(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.run(ctx, r)
}

func (s *service) Releasing(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.run(ctx, r)
}

func (s *service) Fielded(ctx context.Context, r *testpb.FieldedRequest) (*testpb.Response, error) {
	return s.run(ctx, &testpb.Request{Text: r.GetText()})
}

func (s *service) Read(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.run(ctx, r)
}

func (s *service) Put(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.run(ctx, r)
}

func (s *service) Nonsense(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.run(ctx, r)
}

func (s *service) Watch(r *testpb.Request, stream grpc.ServerStreamingServer[testpb.Response]) error {
	s.runs.Add(1)
	return stream.Send(&testpb.Response{Text: r.GetText()})
}

// server is a guarded server with a connection to it.
type server struct {
	once *interceptor.Server
	conn *grpc.ClientConn
	grpc *grpc.Server
	lis  *bufconn.Listener
	svc  *service
}

// tenantOf is the scope of the tests: the metadata "tenant", "acme" without one.
func tenantOf(ctx context.Context) (string, error) {
	if v := metadata.ValueFromIncomingContext(ctx, "tenant"); len(v) > 0 {
		return v[0], nil
	}
	return "acme", nil
}

// newServer serves svc guarded by records. What the handler panicked with becomes an INTERNAL error, as by a recovery
// interceptor outside.
func newServer(t testing.TB, records store.Store, svc *service, opts ...interceptor.ServerOption) *server {
	t.Helper()
	return newServerScoped(t, records, tenantOf, svc, opts...)
}

func newServerScoped(t testing.TB, records store.Store, scope interceptor.Scope, svc *service, opts ...interceptor.ServerOption) *server {
	t.Helper()
	once := interceptor.NewServer(records, scope, opts...)
	return serve(t, once, svc, recovery, once.Unary)
}

// serve serves svc behind a chain of interceptors.
func serve(t testing.TB, once *interceptor.Server, svc *service, chain ...grpc.UnaryServerInterceptor) *server {
	t.Helper()
	return serveWith(t, once, svc, grpc.ChainUnaryInterceptor(chain...), grpc.ChainStreamInterceptor(once.Stream))
}

func serveWith(t testing.TB, once *interceptor.Server, svc *service, opts ...grpc.ServerOption) *server {
	t.Helper()
	s := &server{once: once, svc: svc, lis: bufconn.Listen(1 << 20), grpc: grpc.NewServer(opts...)}
	testpb.RegisterTestServiceServer(s.grpc, svc)
	go func() { _ = s.grpc.Serve(s.lis) }()
	s.conn = dial(t, s.lis)
	t.Cleanup(func() {
		_ = s.conn.Close()
		s.grpc.Stop()
	})
	return s
}

func dial(t testing.TB, lis *bufconn.Listener, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///bufconn", append([]grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20)),
	}, opts...)...)
	require.NoError(t, err)
	return conn
}

func recovery(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = status.Errorf(codes.Internal, "recovered: %v", v)
		}
	}()
	return handler(ctx, req)
}

// reply is everything a caller sees.
type reply struct {
	resp            *testpb.Response
	err             error
	header, trailer metadata.MD
}

const testService = "/oncerpc.internal.testpb.TestService/"

// call calls a method of the TestService without the client interceptor. An empty key sends none.
func (s *server) call(ctx context.Context, method, key, text string) reply {
	if key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, interceptor.MetadataKey, key)
	}
	return s.invoke(ctx, method, &testpb.Request{Text: text})
}

func (s *server) invoke(ctx context.Context, method string, req any) reply {
	r := reply{resp: &testpb.Response{}}
	r.err = s.conn.Invoke(ctx, testService+method, req, r.resp, grpc.Header(&r.header), grpc.Trailer(&r.trailer))
	return r
}

// status is what the server said; it has to say the same in header and trailer on OK, and in the trailer only on errors.
func (r reply) status(t testing.TB) interceptor.Status {
	t.Helper()
	st := interceptor.StatusOf(r.trailer)
	if r.err == nil {
		require.Equal(t, st, interceptor.StatusOf(r.header))
	} else {
		require.Empty(t, r.header.Get(interceptor.MetadataStatus))
	}
	return st
}

// requireOK requires an OK answer of the numbered run under a status.
func (r reply) requireOK(t testing.TB, run int64, st interceptor.Status) {
	t.Helper()
	require.NoError(t, r.err)
	require.Equal(t, run, r.resp.GetNumber())
	require.Equal(t, st, r.status(t))
}

// requireReason requires an error made by oncerpc, Trailers-Only, without a status.
func (r reply) requireReason(t testing.TB, code codes.Code, reason oncerpcv1.Reason) {
	t.Helper()
	require.Equal(t, reason, interceptor.ReasonOf(r.err), "%v", r.err)
	require.Equal(t, code, status.Code(r.err))
	require.Empty(t, r.header, "errors have to be Trailers-Only")
	if reason != oncerpcv1.Reason_RESPONSE_NOT_RETAINED {
		require.Empty(t, r.status(t))
	}
}

// key makes a valid key for the tests.
func key(s string) string { return s + strings.Repeat("-", 16) }

// async starts f and gives its result.
func async[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return c
}

// bubble runs f in a synctest bubble, where time passes by sleeping.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func requireNoRecords(t *testing.T, records store.Lister) {
	t.Helper()
	for rec, err := range records.List(t.Context(), store.Query{}) {
		require.Fail(t, "a record is left", "%v %v", rec, err)
	}
}

// serveLimited serves s with at most two streams at a time.
func serveLimited(t testing.TB, s *server) *server {
	t.Helper()
	return serveWith(t, s.once, s.svc, grpc.MaxConcurrentStreams(2), grpc.ChainUnaryInterceptor(s.once.Unary))
}

func mustMarshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}
