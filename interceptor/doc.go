// Package interceptor makes retries of unary gRPC calls harmless: one idempotency key per logical operation, one run of
// the handler, one outcome for every retry.
//
// On a server, [NewServer] takes a store and a [Scope] and gives two interceptors:
//
//	once := interceptor.NewServer(records, tenantOf)
//	srv := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(recovery, logging, authenticate, once.Unary),
//		grpc.ChainStreamInterceptor(authenticateStream, once.Stream),
//	)
//
// On a client, [NewClient] gives one, which sends the keys and retries:
//
//	once := interceptor.NewClient()
//	conn, err := grpc.NewClient(addr, creds, grpc.WithDisableRetry(), grpc.WithChainUnaryInterceptor(once.Unary))
//
// # Model
//
// A call with a key is guarded. The first one claims its key in the store and runs the handler; its outcome – response,
// or status with details, and the metadata that the handler set – is recorded before anybody is given it. A duplicate
// joins the run that is under way, or gets the recorded outcome. The same key with another request is refused.
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
package interceptor
