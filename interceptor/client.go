package interceptor

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// Client sends one idempotency key per logical call and retries the calls that a key makes safe to retry.
//
// It acts on unary calls of these methods only; every other call passes through untouched:
//   - A method is guarded if its schema has a policy, or [WithPolicy] or [WithDefaultPolicy] names one, and its keys are
//     not IGNORED. Its calls carry a key.
//   - A call with an explicit key, from [Key] or in the outgoing metadata, carries it whatever the method. It is retried
//     unless the method's policy says IGNORED.
//   - A method whose schema has an idempotency_level is retried without a key.
//
// The key of a call is the one of [Key], else the one in the outgoing metadata, else the request's key field, else a
// fresh random UUID. It is made and checked before the first attempt; a key that no server would take ends the call
// with KEY_INVALID (see [ReasonOf]) before anything is sent.
//
// # Retries
//
// A call is sent again when it failed with
//   - UNAVAILABLE;
//   - DEADLINE_EXCEEDED, if [WithAttemptTimeout] is set and the call's own context stands;
//   - ABORTED with reason IN_PROGRESS or SUPERSEDED;
//   - ABORTED or RESOURCE_EXHAUSTED with [StatusReleased] or reason OVERLOADED.
//
// It is never sent again after any other code, after an answer that is a replay or marked ambiguous, or after
// a grpc-retry-pushback-ms that is negative, malformed or there twice.
//
// The wait before the next attempt is the server's pushback, else its google.rpc.RetryInfo, else the backoff of
// [WithBackoff]. A wait that would pass the call's deadline ends the call at once with the error of its last attempt.
// A server's hint of more than a minute is taken as a minute.
//
// [WithAttempts] bounds the attempts, and a retry budget for each ClientConn those of all its calls together (gRFC A6:
// 100 tokens; a failure that could be retried costs one, a success brings 0.1; no retries at 50 or less). First
// attempts are never held back. Answers IN_PROGRESS and SUPERSEDED count against neither while the call has a deadline:
// the outcome is on its way. Such attempts are at least 10 ms apart.
//
// A caller that cancels while the client waits gets CANCELED at once; errors.Is also finds [context.Canceled] and the
// error of the last attempt in it.
//
// An OK answer to a call with a key that does not carry an idempotency-status, or says ignored, shows that nobody
// guards the method there. From then on its calls with keys are not retried on that ClientConn, until an answer to one
// of them carries another status.
//
// # What the caller sees
//
// An error keeps its status, and [KeyFromError] finds the key in it. The reply is reset between attempts and left empty
// on an error. The caller's grpc.Header, grpc.Trailer and grpc.Peer are filled from the last attempt alone, and
// grpc.OnFinish runs once, with the error that the call returns.
//
// Requests with a key are marshalled deterministically, so that servers of two schema versions see one request in
// every attempt; their content-type is application/grpc+proto. This is left out when a call option sets a codec or
// content-subtype, or the codec registered as "proto" is not gRPC's own.
//
// A Client may be shared by any number of connections and goroutines. It should be the outermost interceptor, so that
// the others run for every attempt, and go with grpc.WithDisableRetry, so that attempts are not multiplied.
type Client struct {
	policies *policies
	options  clientOptions
	conns    *clientConns
}

// NewClient makes a [Client]. It panics on a policy that makes no sense, as [NewServer] does.
func NewClient(opts ...ClientOption) *Client {
	options := clientOptions{
		attempts:    5,
		backoffBase: 100 * time.Millisecond,
		backoffCap:  5 * time.Second,
	}
	for _, o := range opts {
		o.applyClient(&options)
	}
	p, err := newPolicies(options.common)
	if err != nil {
		panic(err.Error())
	}
	return &Client{policies: p, options: options, conns: new(clientConns)}
}

// Unary is a [grpc.UnaryClientInterceptor].
func (c *Client) Unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	p, err := c.policies.of(method)
	if err != nil {
		return refuseCall(opts, status.Error(codes.Internal, err.Error()))
	}
	key, err := c.key(ctx, method, p, req, opts)
	if err != nil {
		return refuseCall(opts, err)
	}
	if key == "" && !p.idempotent {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	call := &clientCall{
		client:     c,
		conn:       c.conns.of(cc),
		key:        key,
		idempotent: p.idempotent,
		ignored:    p.key == oncerpcv1.MethodPolicy_IGNORED,
		method:     method,
		reply:      reply,
		opts:       splitCallOptions(opts, key != ""),
	}
	if key != "" {
		ctx = withKey(ctx, key)
	}
	return call.do(ctx, func(ctx context.Context, opts []grpc.CallOption) error {
		return invoker(ctx, method, req, reply, cc, opts...)
	})
}

// clientOptions is what a Client can be told.
type clientOptions struct {
	common         commonOptions
	attempts       int
	attemptTimeout time.Duration // 0: none
	backoffBase    time.Duration
	backoffCap     time.Duration
}

// WithAttempts bounds how often a call is sent, the first time included. The default is 5; 1 means no retries. It
// panics if n is not positive.
func WithAttempts(n int) ClientOption {
	if n < 1 {
		panic("oncerpc: WithAttempts: n is not positive")
	}
	return clientOption(func(o *clientOptions) { o.attempts = n })
}

// WithAttemptTimeout bounds each attempt of a call; the call as a whole is bounded by its context alone. An attempt
// that ends with DEADLINE_EXCEEDED while the call's own context stands is retried. By default an attempt may take as
// long as the call. It panics if d is not positive.
func WithAttemptTimeout(d time.Duration) ClientOption {
	if d <= 0 {
		panic("oncerpc: WithAttemptTimeout: d is not positive")
	}
	return clientOption(func(o *clientOptions) { o.attemptTimeout = d })
}

// WithBackoff sets the wait before a retry for which the server gave no hint: a random time between zero and base,
// doubled with each such wait in a row, up to limit. The defaults are 100 ms and 5 s. It panics if base is not positive
// or limit is less than base.
func WithBackoff(base, limit time.Duration) ClientOption {
	if base <= 0 || limit < base {
		panic("oncerpc: WithBackoff: base is not positive or limit is less than base")
	}
	return clientOption(func(o *clientOptions) { o.backoffBase, o.backoffCap = base, limit })
}

func (c *Client) observe(ctx context.Context, e Event) { c.options.common.observe(ctx, e) }
