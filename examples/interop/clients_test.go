package interop_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/interceptor"
)

// order is what a client pays for.
type order struct {
	number, card string
	cents        int
}

// client is a program that pays for an order.
type client func(*testing.T, *server, order) result

// result is what it said, and how it ended.
type result struct {
	text string
	err  error
}

var made = regexp.MustCompile(`charge (\S+) is made \((\w+)\)`)

// requireMade returns the charge's ID.
func (r result) requireMade(t *testing.T, statuses ...string) (id string) {
	t.Helper()
	require.NoError(t, r.err, r.text)
	m := made.FindStringSubmatch(r.text)
	require.NotNil(t, m, r.text)
	require.Contains(t, statuses, m[2])
	return m[1]
}

func run(t *testing.T, env []string, name string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	text, err := cmd.CombinedOutput()
	return result{string(text), err}
}

// withFlags is a client that understands the flags of ../client.
func withFlags(env []string, command ...string) client {
	return func(t *testing.T, s *server, o order) result {
		t.Helper()
		args := append(command[1:len(command):len(command)], "--addr", s.addr,
			"--order", o.number, "--card", o.card, "--amount", strconv.Itoa(o.cents))
		return run(t, env, command[0], args...)
	}
}

func goClient(t *testing.T) client {
	t.Helper()
	return withFlags(nil, build(t, "client"))
}

func pythonClient(t *testing.T) client {
	t.Helper()
	// Debian's packages are for Debian's Python, which another one may hide.
	python := "/usr/bin/python3"
	if _, err := os.Stat(python); err != nil {
		python = "python3"
	}
	needs(t, "Python with grpcio (Debian: python3-grpcio python3-protobuf)", python, "-c", "import grpc, google.protobuf")
	needs(t, "protoc and its protos (Debian: protobuf-compiler libprotobuf-dev)", "protoc", "-I../../proto",
		"--descriptor_set_out="+os.DevNull, "oncerpc/v1/options.proto")
	plugin, err := exec.LookPath("grpc_python_plugin")
	if err != nil {
		lacks(t, "grpc_python_plugin (Debian: protobuf-compiler-grpc): %v", err)
	}

	generated := t.TempDir()
	protoc := run(t, nil, "protoc", "-I../../proto", "-I..", "-I.", "--python_out="+generated, "--grpc_python_out="+generated,
		"--plugin=protoc-gen-grpc_python="+plugin, "oncerpc/v1/options.proto", "paymentpb/payment.proto", "status.proto")
	require.NoError(t, protoc.err, protoc.text)
	return withFlags([]string{"PYTHONPATH=" + generated, "PYTHONDONTWRITEBYTECODE=1"}, python, filepath.Join("python", "client.py"))
}

func nodeClient(t *testing.T) client {
	t.Helper()
	return nodeClientWith(t)
}

func nodeClientWith(t *testing.T, flags ...string) client {
	t.Helper()
	needs(t, "Node.js", "node", "--version")
	if _, err := os.Stat(filepath.Join("node", "node_modules")); err != nil {
		lacks(t, "@grpc/grpc-js: run npm ci in examples/interop/node (%v)", err)
	}
	return withFlags(nil, append([]string{"node", filepath.Join("node", "client.js")}, flags...)...)
}

// grpcurl learns the service by reflection. It does not retry, as a person would who sends the command again.
func grpcurl(t *testing.T) client {
	t.Helper()
	needs(t, "grpcurl (go install github.com/fullstorydev/grpcurl/cmd/grpcurl@latest)", "grpcurl", "-version")
	return func(t *testing.T, s *server, o order) (r result) {
		t.Helper()
		for range 5 {
			r = run(t, nil, "grpcurl", "-plaintext", "-v",
				// Not -H: that would put the key on the reflection stream too, and streams refuse keys.
				"-rpc-header", interceptor.MetadataKey+": "+interceptor.KeyFor("charge", o.number),
				"-d", fmt.Sprintf(`{"card": %q, "amount_cents": %d}`, o.card, o.cents), s.addr, service+"/Charge")
			if !strings.Contains(r.text, "Code: Unavailable") {
				break
			}
		}
		id := regexp.MustCompile(`"id": "(ch_\w+)"`).FindStringSubmatch(r.text)
		status := regexp.MustCompile(interceptor.MetadataStatus + `: (\w+)`).FindStringSubmatch(r.text)
		if id != nil && status != nil {
			r.text += fmt.Sprintf("charge %s is made (%s)\n", id[1], status[1])
		}
		return r
	}
}

// needs runs a command that shows whether something is there.
func needs(t *testing.T, what string, command ...string) {
	t.Helper()
	if r := run(t, nil, command[0], command[1:]...); r.err != nil {
		lacks(t, "%s: %v %s", what, r.err, r.text)
	}
}

func lacks(t *testing.T, format string, args ...any) {
	t.Helper()
	wanted(t)
	if os.Getenv("CI") != "" {
		require.FailNow(t, "missing: "+fmt.Sprintf(format, args...))
	}
	t.Skipf("missing: "+format, args...)
}
