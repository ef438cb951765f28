package interceptor_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// The environment of a child process that is a server: the path of its store, and whether its handlers hang.
const (
	childStore = "ONCERPC_TEST_CHILD_STORE"
	childHangs = "ONCERPC_TEST_CHILD_HANGS"
)

// runChild serves in a child process until it is killed. It is false in the process of the tests.
func runChild() bool {
	path := os.Getenv(childStore)
	if path == "" {
		return false
	}
	records, err := boltstore.Open(path)
	if err != nil {
		fmt.Println("error:", err)
		return true
	}
	once := interceptor.NewServer(records, tenantOf)
	srv := grpc.NewServer(grpc.ChainUnaryInterceptor(once.Unary))
	testpb.RegisterTestServiceServer(srv, &service{handle: func(ctx context.Context, r *testpb.Request, _ int64) (*testpb.Response, error) {
		fmt.Println("running")
		if os.Getenv(childHangs) != "" {
			select {}
		}
		return &testpb.Response{Text: r.GetText(), Number: int64(interceptor.Attempt(ctx))}, nil
	}})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println("error:", err)
		return true
	}
	fmt.Println(lis.Addr())
	_ = srv.Serve(lis)
	return true
}

// child is a server in a process of its own.
type child struct {
	*server
	cmd *exec.Cmd
	out *bufio.Scanner
}

func startChild(t *testing.T, path string, hangs bool) *child {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	c := &child{cmd: exec.CommandContext(t.Context(), exe)}
	c.cmd.Env = append(os.Environ(), childStore+"="+path)
	if hangs {
		c.cmd.Env = append(c.cmd.Env, childHangs+"=1")
	}
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	c.out = bufio.NewScanner(out)
	conn, err := grpc.NewClient("passthrough:///"+c.line(t), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	require.NoError(t, err)
	c.server = &server{conn: conn}
	t.Cleanup(c.kill)
	return c
}

// line is the next line that the child prints.
func (c *child) line(t *testing.T) string {
	t.Helper()
	require.True(t, c.out.Scan(), "the child is gone")
	require.NotContains(t, c.out.Text(), "error:")
	return c.out.Text()
}

// kill ends the child by SIGKILL.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	if c.server != nil {
		_ = c.conn.Close()
	}
}

func TestKilledServer(t *testing.T) {
	// killMidHandler begins a call in a child whose handlers hang, and kills it there.
	killMidHandler := func(t *testing.T, path, method string) {
		t.Helper()
		c := startChild(t, path, true)
		answer := async(func() reply { return c.call(t.Context(), method, key("a"), "x") })
		require.Equal(t, "running", c.line(t))
		c.kill()
		require.Error(t, (<-answer).err)
	}
	requireUnknownAtOnce := func(t *testing.T, path, method string) {
		t.Helper()
		c := startChild(t, path, false)
		defer c.kill()
		began := time.Now()
		c.call(t.Context(), method, key("a"), "x").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_OUTCOME_UNKNOWN)
		require.Less(t, time.Since(began), 4*time.Second, "the file's lock proves that the run is over: nothing to wait for")
		c.call(t.Context(), method, key("a"), "y").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
	}

	t.Run("under_hold_the_outcome_is_unknown_at_once", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "records.db")
		killMidHandler(t, path, "Plain")
		requireUnknownAtOnce(t, path, "Plain")
		requireUnknownAtOnce(t, path, "Plain")
	})

	t.Run("under_rerun_it_runs_again_as_attempt_2", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "records.db")
		killMidHandler(t, path, "Rerun")
		c := startChild(t, path, false)
		c.call(t.Context(), "Rerun", key("a"), "x").requireOK(t, 2, interceptor.StatusExecuted)
		c.call(t.Context(), "Rerun", key("a"), "x").requireOK(t, 2, interceptor.StatusReplayed)
		c.kill()
		c = startChild(t, path, false)
		c.call(t.Context(), "Rerun", key("a"), "x").requireOK(t, 2, interceptor.StatusReplayed)
	})

	t.Run("after_max_attempts_it_is_held", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "records.db")
		killMidHandler(t, path, "Rerun")
		killMidHandler(t, path, "Rerun")
		requireUnknownAtOnce(t, path, "Rerun")
	})

	t.Run("what_was_answered_is_replayed", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "records.db")
		c := startChild(t, path, false)
		first := c.call(t.Context(), "Plain", key("a"), "x")
		first.requireOK(t, 1, interceptor.StatusExecuted)
		c.kill()
		c = startChild(t, path, false)
		again := c.call(t.Context(), "Plain", key("a"), "x")
		again.requireOK(t, 1, interceptor.StatusReplayed)
		require.Equal(t, first.resp.GetText(), again.resp.GetText())
	})
}
