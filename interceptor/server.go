package interceptor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
)

const (
	storeTimeout   = 10 * time.Second // of one Begin, and of one Finish
	settlePatience = 10 * time.Second // how long a caller waits for its outcome to be recorded
	storeWait      = time.Second      // hint on STORE_UNAVAILABLE, DRAINING and OVERLOADED
	fullWait       = 5 * time.Second  // hint on OVERLOADED when the store is full
	minWait        = 100 * time.Millisecond
	maxWait        = 5 * time.Second
)

// Server makes retries of unary calls harmless: it runs the handler once per scope and key, keeps what it ended with,
// and answers every retry with that. [NewServer] makes one. Its methods may be called concurrently. Several Servers may
// share one store.
//
// # Outcomes
//
// What becomes of an error is the question "did, or could, the effect happen?" and not one of its code. Codes that say
// no by themselves are final; every other error is kept as ambiguous, because the effect may have happened. A handler
// that knows better says so with [Final] or [NoEffect], or the method's policy does under outcomes.
//
// When a server dies while a handler runs, nobody knows whether its effect happened. The next call gets
// OUTCOME_UNKNOWN, unless the method's policy lets it run again (RERUN, see [Attempt]), or [WithReconcile] can find out;
// [Server.Resolve] settles it by hand.
//
// # Guarantees
//
// For one scope and key at most one handler run is under way at a time, over all servers that share the store. Once a
// recorded outcome has been given to any caller, every later call with that key gets it until its retention has passed.
// An effect happens at most once, unless a handler says that nothing happened, or the method opted in to be run again.
//
// # Limits
//
// Order in the chain: recovery, logging, authentication, rate limit, validation, then this, then what maps errors, then
// the handler. Interceptors outside see a replay as they see a run; what they put into the context that ends with the
// RPC, such as a transaction, does not live as long as a handler here may: put such things inside.
//
// A guarded handler runs in its own goroutine, on a context that keeps the RPC's values and not its cancellation: the
// caller may leave, and the outcome is kept for its retry. The transport stream in that context is a recorder, so
// grpc.SetSendCompressor and grpc.ClientSupportedCompressors fail inside of it. Metadata that gRPC would refuse to send
// is dropped instead.
//
// Fingerprints tell requests apart by their canonical bytes, also between servers of two schema versions, as long as
// clients marshal deterministically, which this package's client does: give servers a new field before clients send it.
//
// Streams are not guarded; one that carries a key is refused by [Server.Stream].
//
// # Design
//
// The handler's goroutine is separate so that an abandoned handler neither holds a stream of its connection nor loses
// its outcome. The run and its duplicates meet in memory, so that a burst costs the store one claim. Everything that
// could be lost between an effect and its record is written before the answer, and nothing is run again because a write
// failed: an error from the store means "unknown", and is settled by the claim's token.
type Server struct {
	store    store.Store
	waiter   store.Waiter  // nil: the store is polled
	renewer  store.Renewer // nil: claims have no lease
	scope    Scope
	policies *policies
	opts     serverOptions

	mu         sync.Mutex
	runs       map[store.ID]*run   // of this process, from claimed to settled
	watches    map[store.ID]*watch // of runs elsewhere that callers here wait for
	waiting    int                 // callers in runs and watches
	callerless int                 // runs whose caller has left
	releases   int                 // claims that are being given back
	work       int                 // keyed calls, runs and releases under way: what Drain waits for
	idle       chan struct{}       // closed when draining and work is 0
	draining   chan struct{}       // closed by Drain
	cutOff     bool                // Drain's time is over: no run begins any more
	expelled   chan struct{}       // closed a second later
}

type serverOptions struct {
	common              commonOptions
	secret              []byte
	fingerprint         func(ctx context.Context, method string, req any) ([]byte, error)
	fingerprintMetadata []string
	waitersPerKey       int
	waitersInAll        int
	callerless          int
	maxResponse         int
	reconcile           map[string]Reconcile // by full method
}

// NewServer returns a Server that keeps its records in records and asks scope who sends a key, so that one caller never
// gets another's response. It panics if records or scope is nil, and if an option makes no sense; the text says which.
func NewServer(records store.Store, scope Scope, opts ...ServerOption) *Server {
	if records == nil {
		panic("interceptor: NewServer: no store")
	}
	if scope == nil {
		panic("interceptor: NewServer: no scope: use SharedScope if all callers may share keys and responses")
	}
	s := &Server{
		store: records,
		scope: scope,
		opts: serverOptions{
			waitersPerKey: 1_000,
			waitersInAll:  10_000,
			callerless:    10_000,
			maxResponse:   4 << 20,
		},
		runs:     make(map[store.ID]*run),
		watches:  make(map[store.ID]*watch),
		idle:     make(chan struct{}),
		draining: make(chan struct{}),
		expelled: make(chan struct{}),
	}
	for _, o := range opts {
		o.applyServer(&s.opts)
	}
	s.waiter, _ = store.As[store.Waiter](records)
	s.renewer, _ = store.As[store.Renewer](records)
	policies, err := newPolicies(s.opts.common)
	if err != nil {
		panic("interceptor: NewServer: " + err.Error())
	}
	s.policies = policies
	for method := range s.opts.reconcile {
		if linkedMethod(method) == nil {
			panic("interceptor: NewServer: WithReconcile: method " + method + " is not linked into this program")
		}
	}
	return s
}

// WithSecret keys the digests that name records, so that nobody who reads the store can try keys and scopes against
// them. The secret has to be the same on all servers for as long as the store lives: changing it forgets every key. The
// default is none. It panics if secret is shorter than 32 bytes.
func WithSecret(secret []byte) ServerOption {
	if len(secret) < 32 {
		panic("interceptor: WithSecret: the secret is shorter than 32 bytes")
	}
	secret = append([]byte(nil), secret...)
	return serverOption(func(o *serverOptions) { o.secret = secret })
}

// WithWaiters bounds how many calls wait for a running call with the same key, for one key and in all. Calls beyond are
// answered OVERLOADED. The defaults are 1,000 and 10,000. It panics if a bound is not positive.
func WithWaiters(perKey, inAll int) ServerOption {
	if perKey <= 0 || inAll <= 0 {
		panic("interceptor: WithWaiters: a bound is not positive")
	}
	return serverOption(func(o *serverOptions) { o.waitersPerKey, o.waitersInAll = perKey, inAll })
}

// WithCallerlessRuns bounds how many runs may go on whose callers have left. At the bound, calls with a key that would
// need the store are answered OVERLOADED. The default is 10,000. It panics if n is not positive.
func WithCallerlessRuns(n int) ServerOption {
	if n <= 0 {
		panic("interceptor: WithCallerlessRuns: the bound is not positive")
	}
	return serverOption(func(o *serverOptions) { o.callerless = n })
}

// WithMaxResponse bounds the marshalled responses that are kept, in bytes. A call whose response is larger gets it whole,
// and its retries are answered RESPONSE_NOT_RETAINED: the call is not run again. The default is 4 MiB. It panics if n is
// not positive.
func WithMaxResponse(n int) ServerOption {
	if n <= 0 {
		panic("interceptor: WithMaxResponse: the bound is not positive")
	}
	return serverOption(func(o *serverOptions) { o.maxResponse = n })
}

// WithFingerprint takes the place of the canonical fingerprint of requests, for types whose own Marshal method does not
// give equal requests equal bytes. f gets the full method; equal requests have to give equal bytes, on all servers. Its
// error fails the call with INTERNAL before it runs. It panics if f is nil.
//
// Adding or dropping it is safe: records made without it are compared as they were made. Records made with it cannot be
// read by a server without it: retries of those calls get RECORD_UNREADABLE there.
func WithFingerprint(f func(ctx context.Context, method string, req any) ([]byte, error)) ServerOption {
	if f == nil {
		panic("interceptor: WithFingerprint: no function")
	}
	return serverOption(func(o *serverOptions) { o.fingerprint = f })
}

// WithFingerprintMetadata makes incoming metadata part of the request: a retry has to bring the same values under these
// names. The default is none. Changing the names refuses retries that straddle the deploy with KEY_REUSED.
func WithFingerprintMetadata(names ...string) ServerOption {
	names = slices.Clone(names)
	return serverOption(func(o *serverOptions) { o.fingerprintMetadata = names })
}

// Unary is a grpc.UnaryServerInterceptor. Put it after authentication, rate limits and validation and before what maps
// errors: it has to see the request and the error that the client sees.
func (s *Server) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	began := time.Now()
	p, err := s.policies.of(info.FullMethod)
	if err != nil {
		return nil, status.Error(codes.Internal, "oncerpc: "+err.Error())
	}
	if p.key == oncerpcv1.MethodPolicy_IGNORED {
		return s.ignore(ctx, p, req, handler)
	}
	key, err := callKey(ctx, p, req, s.opts.common.keyFormat)
	if err != nil {
		return nil, s.refuse(ctx, p.method, refusal{reason: oncerpcv1.Reason_KEY_INVALID, message: err.Error()}, began)
	}
	if key == "" {
		if p.key == oncerpcv1.MethodPolicy_REQUIRED {
			return nil, s.refuse(ctx, p.method, refusal{
				reason:  oncerpcv1.Reason_KEY_MISSING,
				message: "this method needs an idempotency key: send one in metadata " + MetadataKey + ", the same on every retry",
			}, began)
		}
		return handler(ctx, req)
	}
	if !s.enter() {
		return nil, s.refuse(ctx, p.method, drainingRefusal(), began)
	}
	defer s.leave()
	c, err := s.newCall(ctx, p, key, req, handler, began)
	if err != nil {
		return nil, err
	}
	return c.serve()
}

// Stream is a grpc.StreamServerInterceptor. Streams are not guarded: one that carries a key is refused, since its
// sender relies on a promise that nobody keeps.
func (s *Server) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	p, err := s.policies.of(info.FullMethod)
	if err != nil {
		return status.Error(codes.Internal, "oncerpc: "+err.Error())
	}
	if len(metadata.ValueFromIncomingContext(ss.Context(), MetadataKey)) == 0 {
		return handler(srv, ss)
	}
	if p.key == oncerpcv1.MethodPolicy_IGNORED {
		ss.SetTrailer(metadata.Pairs(MetadataStatus, string(StatusIgnored)))
		return handler(srv, ss)
	}
	return s.refuse(ss.Context(), info.FullMethod, refusal{
		reason:  oncerpcv1.Reason_STREAM_UNSUPPORTED,
		message: "streaming calls take no idempotency key: send it without " + MetadataKey,
	}, time.Now())
}

// ignore calls a handler whose method is not guarded, and tells a caller that sent a key.
func (s *Server) ignore(ctx context.Context, p *policy, req any, handler grpc.UnaryHandler) (any, error) {
	began := time.Now()
	resp, err := handler(ctx, req)
	if len(metadata.ValueFromIncomingContext(ctx, MetadataKey)) > 0 {
		s.opts.common.observe(ctx, Event{
			Kind: EventIgnored, Method: p.method, Code: status.Code(err), Duration: time.Since(began),
		})
		mark(ctx, err == nil, metadata.Pairs(MetadataStatus, string(StatusIgnored)))
	}
	return resp, err
}

func drainingRefusal() refusal {
	return refusal{
		reason:  oncerpcv1.Reason_DRAINING,
		message: "the server is shutting down: send the call again, it will reach another one",
		wait:    jitter(storeWait),
	}
}

// enter counts a keyed call as work, unless the server is draining.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isDraining() {
		return false
	}
	s.work++
	return true
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workDone()
}

// workDone is called with s.mu held.
func (s *Server) workDone() {
	s.work--
	if s.work == 0 && s.isDraining() {
		select {
		case <-s.idle:
		default:
			close(s.idle)
		}
	}
}

func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// newCall finds out who sends the key and what the request is.
func (s *Server) newCall(ctx context.Context, p *policy, key string, req any, handler grpc.UnaryHandler, began time.Time) (*call, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		if st, ok := status.FromError(err); ok && st.Code() != codes.OK {
			return nil, err
		}
		return nil, s.refuse(ctx, p.method, refusal{
			reason:  oncerpcv1.Reason_SCOPE_MISSING,
			message: "the server cannot tell whose idempotency key this is: " + err.Error(),
		}, began)
	}
	if scope == "" {
		return nil, s.refuse(ctx, p.method, refusal{
			reason:  oncerpcv1.Reason_SCOPE_MISSING,
			message: "the server cannot tell whose idempotency key this is: authenticate the call",
		}, began)
	}
	msg, ok := req.(proto.Message)
	if !ok {
		return nil, status.Error(codes.Internal, fmt.Sprintf("oncerpc: requests of %s are %T, not proto.Message: they cannot be guarded", p.method, req))
	}
	ids := identity{secret: s.opts.secret}
	c := &call{
		s: s, ctx: ctx, began: began, p: p, req: msg, handler: handler,
		id:    ids.id(scope, key),
		owner: ids.owner(scope),
	}
	if p.rerun {
		c.takeover = p.maxAttempts
	}
	c.fingerprint, err = c.fingerprintAs(c.algorithm())
	if err != nil {
		return nil, status.Error(codes.Internal, "oncerpc: fingerprint of the request: "+err.Error())
	}
	return c, nil
}

// Drain prepares the server's end: from now on it refuses keyed calls (DRAINING) and answers those that wait for a run
// IN_PROGRESS, and it returns nil once every run has ended and its outcome is recorded. When ctx ends first, it cancels
// the contexts of the runs that are left with the cause [ErrDraining], gives them one second, answers the callers that
// remain IN_PROGRESS, and returns an error with the number of runs left; their outcomes are still recorded if they end
// before the process does. Call it before GracefulStop, and close the store after both.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	if !s.isDraining() {
		close(s.draining)
		if s.work == 0 {
			close(s.idle)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
		return nil
	case <-ctx.Done():
	}
	s.cancelRuns()
	grace := time.NewTimer(time.Second)
	defer grace.Stop()
	select {
	case <-s.idle:
		return nil
	case <-grace.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.expelled:
	default:
		close(s.expelled)
	}
	return fmt.Errorf("interceptor: drain: %d runs left, and %d claims to give back: %w", len(s.runs), s.releases, ctx.Err())
}

func (s *Server) cancelRuns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutOff = true
	for _, r := range s.runs {
		r.cancel(ErrDraining)
	}
}
