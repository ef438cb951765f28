package crashtest_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ledger builds the server with its points, once.
var ledger = sync.OnceValues(func() (exe string, err error) {
	exe = filepath.Join(folder, "ledger")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-tags", "oncerpc_failpoints", "-o", exe, "./ledger").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return exe, nil
})

var folder string // for what is built

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if folder, err = os.MkdirTemp("", "crashtest"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(folder) }()
		return m.Run()
	}())
}

func buildLedger(t *testing.T) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("a listener cannot be passed to a child process on windows")
	}
	exe, err := ledger()
	if err != nil {
		t.Skipf("the server cannot be built here: %v", err)
	}
	return exe
}

// listen opens the socket that all processes of a world serve on, one after the other. Between two of them callers
// queue in it.
func listen(t *testing.T) (addr string, file *os.File) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, lis.Close()) }()
	file, err = lis.(*net.TCPListener).File()
	require.NoError(t, err)
	return lis.Addr().String(), file
}

// child is one life of the server.
type child struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr bytes.Buffer
	ready  chan struct{} // closed when it serves
	gone   chan struct{} // closed when it has ended, and all that it told was heard
	shot   atomic.Pointer[string]

	// Set before gone is closed.
	point  string // where it ended itself, or was shot
	closed bool   // gracefully
	signal syscall.Signal
}

// startChild starts a server. effect is called for every effect that it tells of.
func startChild(exe, file string, lis *os.File, point string, k int, bug string, effect func(name string, attempt int)) (*child, error) {
	c := &child{
		cmd:   exec.Command(exe, "-file", file, "-point", point, "-k", strconv.Itoa(k), "-bug", bug),
		ready: make(chan struct{}),
		gone:  make(chan struct{}),
	}
	told, pipe, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.cmd.ExtraFiles = []*os.File{lis, pipe}
	c.cmd.Stderr = &c.stderr
	c.stdin, err = c.cmd.StdinPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	_ = pipe.Close()
	if err != nil {
		_ = told.Close()
		return nil, err
	}
	go c.hear(told, effect)
	return c, nil
}

func (c *child) hear(told *os.File, effect func(string, int)) {
	defer close(c.gone)
	defer func() { _ = told.Close() }()
	for lines := bufio.NewScanner(told); lines.Scan(); {
		switch words := strings.SplitN(lines.Text(), " ", 2); words[0] {
		case "ready":
			close(c.ready)
		case "point":
			c.point = words[1]
		case "closed":
			c.closed = true
		case "effect":
			var name string
			var attempt int
			if _, err := fmt.Sscan(words[1], &name, &attempt); err == nil {
				effect(name, attempt)
			}
		}
	}
	_ = c.cmd.Wait()
	if at := c.shot.Load(); at != nil && c.point == "" {
		c.point = *at
	}
	if ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		c.signal = ws.Signal()
	}
}

// shoot kills it at a point that it does not know of.
func (c *child) shoot(point string) {
	c.shot.Store(&point)
	c.kill()
}

func (c *child) kill() { _ = c.cmd.Process.Kill() }

// stop asks it to end gracefully.
func (c *child) stop() { _ = c.stdin.Close() }

// awaitReady waits until it serves. false: it ended before, or did not in time.
func (c *child) awaitReady(patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.ready:
		return true
	case <-c.gone:
	case <-timer.C:
	}
	return false
}

// awaitGone waits until it has ended.
func (c *child) awaitGone(patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.gone:
		return true
	case <-timer.C:
		return false
	}
}

// fault says what is wrong with how it ended, if it was not killed and did not end gracefully.
func (c *child) fault() string {
	if c.closed || c.signal == syscall.SIGKILL {
		return ""
	}
	return fmt.Sprintf("the server ended by itself: %v: %s", c.cmd.ProcessState, c.stderr.String())
}

// tally is what all worlds of a test add to.
type tally struct {
	mu         sync.Mutex
	kills      int            // wanted
	lives      int            // of one world
	points     []string       // where to kill
	pending    int            // lives that are not over
	fired      map[string]int // kills by point
	seen       map[string]int // statuses, reasons, attempts
	violations []string
}

func newTally(kills, lives int, points ...string) *tally {
	return &tally{kills: kills, lives: lives, points: points, fired: map[string]int{}, seen: map[string]int{}}
}

func (t *tally) saw(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen[what]++
}

func (t *tally) violate(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.violations) < 50 {
		t.violations = append(t.violations, fmt.Sprintf(format, args...))
	}
}
