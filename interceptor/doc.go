// Package interceptor makes retries of unary gRPC calls harmless: one idempotency key per logical operation, one run of
// the handler, one outcome for every retry.
//
//	once := interceptor.NewServer(records, tenantOf) // a Server: grpc.ChainUnaryInterceptor(authenticate, once.Unary)
//	once := interceptor.NewClient()                  // a Client: grpc.WithChainUnaryInterceptor(once.Unary)
//
// A call with a key is guarded. The first one claims its key in the store and runs the handler; its outcome – response,
// or status with details, and the metadata that the handler set – is recorded before anybody is given it. A duplicate
// joins the run that is under way, or gets the recorded outcome. The same key with another request is refused.
//
// For one scope and key at most one run is under way at a time, over all servers that share the store, and an effect
// happens at most once, unless a handler says that nothing happened ([NoEffect]) or its method opted in to be run again
// after a crash. [Server] tells the guarantees, their limits and the order in the chain; [Client] what is retried.
package interceptor
