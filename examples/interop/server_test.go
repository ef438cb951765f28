package interop_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// build makes a program of the examples.
func build(t *testing.T, program string) (path string) {
	t.Helper()
	wanted(t)
	path = filepath.Join(t.TempDir(), program)
	text, err := exec.Command("go", "build", "-o", path, "../"+program).CombinedOutput()
	require.NoError(t, err, string(text))
	return path
}

// server is ../server as a process.
type server struct {
	addr string
	cmd  *exec.Cmd
	out  *output
}

func startServer(t *testing.T, flags ...string) *server {
	t.Helper()
	flags = append(flags, "-addr=127.0.0.1:0", "-db="+filepath.Join(t.TempDir(), "once.db"))
	s := &server{cmd: exec.Command(build(t, "server"), flags...), out: &output{begun: make(chan struct{})}}
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil { // a test failed before it stopped the server
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
		if t.Failed() {
			t.Log(s.account())
		}
	})
	<-s.out.begun
	listens := regexp.MustCompile(`listens on (\S+),`).FindStringSubmatch(s.account())
	require.NotNil(t, listens, s.account())
	s.addr = listens[1]
	return s
}

// account is what the server has said so far.
func (s *server) account() string {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	return s.out.text.String()
}

// stop stops the server as a terminal does, and returns how often each card was charged.
func (s *server) stop(t *testing.T) (charges map[string]int) {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, s.cmd.Wait(), s.account())
	charges = make(map[string]int)
	sum := 0
	for _, m := range regexp.MustCompile(`takes \S+ from (\S+):`).FindAllStringSubmatch(s.account(), -1) {
		charges[m[1]]++
		sum++
	}
	require.Equal(t, strings.Count(s.account(), "\nbank "), sum, "every charge is counted")
	return charges
}

// output keeps what a process writes; begun is closed at its first line.
type output struct {
	mu    sync.Mutex
	text  strings.Builder
	begun chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.text.Len() == 0 {
		defer close(o.begun)
	}
	return o.text.Write(p)
}

// wanted skips a test that builds programs or runs other languages where nobody asked for it.
func wanted(t *testing.T) {
	t.Helper()
	if os.Getenv("ONCERPC_INTEROP") == "" {
		t.Skip("programs are built, and clients in other languages run, with ONCERPC_INTEROP=1, as in .ci/run")
	}
}
