package interceptor

import (
	"runtime"
	"sync"
	"weak"

	"google.golang.org/grpc"
)

// clientConns is what a Client knows of each connection. It does not keep a connection alive, and forgets what it knew
// when the connection is collected.
type clientConns struct {
	byConn sync.Map // weak.Pointer[grpc.ClientConn] → *clientConn
}

// clientConn is shared by the calls on one connection. It must not refer to the connection.
type clientConn struct {
	budget    retryBudget
	unguarded sync.Map // methods whose last answer to a key showed that nobody guards them
}

// of returns the state of cc. A nil cc, as some in-process transports pass, is one connection.
func (s *clientConns) of(cc *grpc.ClientConn) *clientConn {
	ref := weak.Make(cc)
	if known, ok := s.byConn.Load(ref); ok {
		return known.(*clientConn)
	}
	known, loaded := s.byConn.LoadOrStore(ref, &clientConn{budget: retryBudget{tokens: budgetTokens}})
	if !loaded && cc != nil {
		runtime.AddCleanup(cc, func(ref weak.Pointer[grpc.ClientConn]) { s.byConn.Delete(ref) }, ref)
	}
	return known.(*clientConn)
}

// gRFC A6, with the numbers that its example uses for one server.
const (
	budgetTokens = 100
	budgetRatio  = 0.1
)

// retryBudget is the token bucket of gRFC A6: it ends retries, not first attempts, while most attempts fail.
type retryBudget struct {
	mu     sync.Mutex
	tokens float64
}

func (b *retryBudget) success() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.tokens+budgetRatio, budgetTokens)
}

// failure pays for an attempt that failed and says whether it may be retried.
func (b *retryBudget) failure() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = max(b.tokens-1, 0)
	return b.tokens > budgetTokens/2
}
