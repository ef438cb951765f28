package interceptor_test

import (
	"context"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// TestStorm has callers race over few keys on a file and a network, and leave when they like.
func TestStorm(t *testing.T) {
	const keys, callers = 100, 2_000
	records, err := boltstore.Open(filepath.Join(t.TempDir(), "once.db"))
	require.NoError(t, err)
	once := interceptor.NewServer(records, tenantOf)
	var runs [keys]atomic.Int64
	srv := grpc.NewServer(grpc.ChainUnaryInterceptor(once.Unary))
	testpb.RegisterTestServiceServer(srv, &service{handle: func(_ context.Context, r *testpb.Request, n int64) (*testpb.Response, error) {
		runs[r.GetNumber()].Add(1)
		<-time.After(rand.N(20 * time.Millisecond)) // whatever the caller does
		switch r.GetNumber() % 3 {
		case 0:
			return nil, status.Error(codes.FailedPrecondition, strconv.FormatInt(n, 10))
		case 1:
			return nil, status.Error(codes.Unavailable, strconv.FormatInt(n, 10))
		}
		return &testpb.Response{Number: n}, nil
	}})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = srv.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	client := testpb.NewTestServiceClient(conn)

	var answers [keys]sync.Map
	var left, inProgress, unexpected atomic.Int64
	var wg sync.WaitGroup
	room := make(chan struct{}, 500)
	for range callers {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			n := rand.N(keys)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if rand.N(2) == 0 {
				ctx, cancel = context.WithTimeout(ctx, rand.N(10*time.Millisecond))
				defer cancel()
			}
			resp, err := client.Plain(metadata.AppendToOutgoingContext(ctx, interceptor.MetadataKey, key(strconv.Itoa(n))),
				&testpb.Request{Number: int64(n)})
			switch code := status.Code(err); {
			case ctx.Err() != nil || code == codes.DeadlineExceeded:
				left.Add(1)
			case code == codes.OK:
				answers[n].Store(strconv.FormatInt(resp.GetNumber(), 10), true)
			case interceptor.ReasonOf(err) != 0:
				inProgress.Add(1)
			case code == codes.FailedPrecondition, code == codes.Unavailable:
				answers[n].Store(status.Convert(err).Message(), true)
			default:
				unexpected.Add(1)
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d callers left, %d were told to wait", left.Load(), inProgress.Load())
	require.NoError(t, conn.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, once.Drain(ctx))
	srv.GracefulStop()
	require.NoError(t, records.Close(), "no claim is left")
	for n := range keys {
		require.LessOrEqual(t, runs[n].Load(), int64(1), "runs of key %d", n)
		count := 0
		answers[n].Range(func(any, any) bool { count++; return true })
		require.LessOrEqual(t, count, 1, "answers to key %d", n)
	}
}
