package interceptor

import (
	"context"
	"fmt"
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
// # Crashes
//
// What becomes of a call depends on how its handler is written: with its effects in the store's transaction and
// in_transaction in its policy, with [ChildKey] as the key of a call elsewhere and RERUN, or neither.
//
//	handler         where the server dies         what the retry sees              what you do
//	any             before the claim              it is the first call             nothing
//	                after the record              the outcome, replayed            nothing
//	in transaction  before or during the commit   effect and record, or it runs    nothing
//	child key       between claim and record      it runs, and calls with the      nothing
//	                                              same child key
//	                in max_attempts runs          OUTCOME_UNKNOWN                  look, Server.Resolve
//	neither         between claim and record      OUTCOME_UNKNOWN                  look, Server.Resolve
//	                                              or what WithReconcile found out  nothing
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
			Kind: EventIgnored, Method: p.method, Code: statusCode(err), Duration: time.Since(began),
		})
		mark(ctx, err == nil, metadata.Pairs(MetadataStatus, string(StatusIgnored)))
	}
	return resp, err
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
			message: "the server cannot tell whose idempotency key this is", // err may tell of the server's insides
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
