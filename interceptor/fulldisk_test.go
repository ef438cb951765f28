//go:build unix

package interceptor_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
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

const childFull = "ONCERPC_TEST_CHILD_FULL"

// TestFullDisk runs TestFullDiskInChild in a process of its own, whose files may not grow.
func TestFullDisk(t *testing.T) {
	if os.Getenv(childFull) != "" {
		t.Skip("this is the child")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestFullDiskInChild$", "-test.v")
	cmd.Env = append(os.Environ(), childFull+"="+filepath.Join(t.TempDir(), "once.db"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
}

func mayGrowTo(t *testing.T, n uint64) {
	t.Helper()
	limit := syscall.Rlimit{Cur: n, Max: syscall.RLIM_INFINITY & (1<<63 - 1)}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Skip("RLIMIT_FSIZE cannot be set: " + err.Error())
	}
}

// A handler that was started before the disk was full runs once, and its outcome is lost neither then nor later.
func TestFullDiskInChild(t *testing.T) {
	path := os.Getenv(childFull)
	if path == "" {
		t.Skip("TestFullDisk runs it")
	}
	records, err := boltstore.Open(path)
	require.NoError(t, err)
	mayGrowTo(t, 20<<20)
	const keys = 300
	var runs [keys]atomic.Int64
	once := interceptor.NewServer(records, tenantOf)
	srv := grpc.NewServer(grpc.ChainUnaryInterceptor(once.Unary))
	testpb.RegisterTestServiceServer(srv, &service{handle: func(_ context.Context, r *testpb.Request, n int64) (*testpb.Response, error) {
		runs[r.GetNumber()].Add(1)
		return &testpb.Response{Number: n, Blob: make([]byte, 64<<10)}, nil
	}})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = srv.Serve(lis) }()
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	s := &server{conn: conn}

	var answers [keys]sync.Map
	var statuses sync.Map
	// round calls with every key, 16 at a time, and returns how many got an outcome.
	round := func() int64 {
		var got atomic.Int64
		var wg sync.WaitGroup
		room := make(chan struct{}, 16)
		for n := range int64(keys) {
			room <- struct{}{}
			wg.Go(func() {
				defer func() { <-room }()
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				r := s.invoke(metadata.AppendToOutgoingContext(ctx, interceptor.MetadataKey, key(strconv.FormatInt(n, 10))), "Plain", &testpb.Request{Number: n})
				what := string(interceptor.StatusOf(r.trailer))
				if r.err != nil {
					what = status.Code(r.err).String() + " " + interceptor.ReasonOf(r.err).String()
				}
				count, _ := statuses.LoadOrStore(what, new(atomic.Int64))
				count.(*atomic.Int64).Add(1)
				switch code := status.Code(r.err); code {
				case codes.OK:
					answers[n].Store(r.resp.GetNumber(), true)
					got.Add(1)
				case codes.ResourceExhausted, codes.Aborted, codes.DeadlineExceeded:
				default:
					t.Error(n, r.err)
				}
			})
		}
		wg.Wait()
		return got.Load()
	}
	tell := func(when string) {
		statuses.Range(func(k, v any) bool {
			t.Log(when, k, v.(*atomic.Int64).Load())
			return true
		})
		statuses.Clear()
	}
	require.Less(t, round(), int64(keys), "the disk was to be full")
	tell("filling:")
	require.Less(t, round(), int64(keys), "the disk was to be full")
	tell("full:")
	mayGrowTo(t, 1<<40)
	for range 20 {
		if round() == keys {
			break
		}
		<-time.After(500 * time.Millisecond) // a full store is left in peace for a while
	}
	require.EqualValues(t, keys, round())
	tell("room again:")
	require.NoError(t, conn.Close())
	require.NoError(t, once.Drain(t.Context()))
	srv.GracefulStop()
	require.NoError(t, records.Close())
	for n := range keys {
		require.EqualValues(t, 1, runs[n].Load(), "runs of key %d", n)
		count := 0
		answers[n].Range(func(any, any) bool { count++; return true })
		require.Equal(t, 1, count, "answers to key %d", n)
	}
}
