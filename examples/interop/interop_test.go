// Package interop_test runs ../client, and clients in other languages that have nothing but stock gRPC, against
// ../server.
//
// They run where ONCERPC_INTEROP is set, as .ci/run does after it has installed what they need. What is missing all the
// same is a failure where CI is set, and elsewhere a reason to skip.
package interop_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
)

var update = flag.Bool("update", false, "write service_config.json instead of comparing with it")

var service = paymentpb.PaymentService_ServiceDesc.ServiceName

func TestServiceConfig(t *testing.T) {
	want := interceptor.ServiceConfig(service) + "\n"
	if *update {
		require.NoError(t, os.WriteFile("service_config.json", []byte(want), 0o644))
	}
	got, err := os.ReadFile("service_config.json")
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func TestAnswerIsLost(t *testing.T) {
	s := startServer(t, "-lose")
	clients := []struct {
		name   string
		client func(*testing.T) client
	}{{"Go", goClient}, {"grpcurl", grpcurl}, {"Python", pythonClient}, {"Node.js", nodeClient}}

	for _, c := range clients {
		t.Run(c.name+"_retries_and_the_money_is_taken_once", func(t *testing.T) {
			pay := c.client(t)
			first := pay(t, s, order{"lost-" + c.name, c.name, 2500}).requireMade(t, "replayed", "joined")
			again := pay(t, s, order{"lost-" + c.name, c.name, 2500}).requireMade(t, "replayed")
			require.Equal(t, first, again)

			other := pay(t, s, order{"lost-" + c.name, c.name, 2600})
			require.Error(t, other.err)
			require.Contains(t, other.text, "KEY_REUSED")
		})
	}
	answers := make(map[string]bool)
	for _, c := range clients {
		t.Run(c.name+"_gets_the_answer_to_all_clients_of_one_order", func(t *testing.T) {
			pay := c.client(t)
			answers[pay(t, s, order{"shared", "shared", 2500}).requireMade(t, "replayed", "joined")] = true
			require.Len(t, answers, 1)
		})
	}
	for card, charges := range s.stop(t) {
		require.Equal(t, 1, charges, card)
	}
}

func TestCallIsStillRunning(t *testing.T) {
	// The connection breaks, and the retries are told IN_PROGRESS, some times, until the charge is made.
	s := startServer(t, "-lose", "-slow=1s", "-wait=200ms")
	for name, client := range map[string]func(*testing.T) client{
		"Go": goClient, "Python": pythonClient, "Node.js": nodeClient,
	} {
		t.Run(name+"_waits_for_the_answer", func(t *testing.T) {
			client(t)(t, s, order{"slow-" + name, name, 2500}).requireMade(t, "replayed", "joined")
			require.Contains(t, s.account(), "IN_PROGRESS")
		})
	}
	for card, charges := range s.stop(t) {
		require.Equal(t, 1, charges, card)
	}
}

func TestHedging(t *testing.T) {
	t.Run("Node.js_sends_a_call_three_times_and_the_money_is_taken_once", func(t *testing.T) {
		pay := nodeClientWith(t, "--service-config", hedging(t))
		s := startServer(t, "-slow=1s", "-wait=200ms")
		pay(t, s, order{"hedged", "hedged", 2500}).requireMade(t, "executed")
		require.Equal(t, 3, strings.Count(s.account(), "Charge 25.00 from hedged"))
		require.Equal(t, map[string]int{"hedged": 1}, s.stop(t))
	})
}

func hedging(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "hedging.json")
	require.NoError(t, os.WriteFile(path, []byte(interceptor.HedgingServiceConfig(200*time.Millisecond, service)), 0o600))
	return path
}
