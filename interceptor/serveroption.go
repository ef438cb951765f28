package interceptor

import (
	"context"
	"slices"
)

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
