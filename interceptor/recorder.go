package interceptor

import (
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// errHeaderSent is what gRPC's own streams say.
var errHeaderSent = errors.New("transport: SendHeader called multiple times")

// recorder keeps what a handler sets as header and trailer. The handler may outlive its RPC: then the recorder answers
// from its buffer and leaves the transport alone. Goroutines of the handler's may outlive the handler: what they set
// belongs to no outcome any more.
type recorder struct {
	grpc.ServerTransportStream // embedded, so that the interface may grow

	mu              sync.Mutex
	header, trailer metadata.MD
	sent            bool // the handler has sent the header
	left            bool // the RPC is over
	closed          bool // the handler has returned
}

// SetHeader adds to the header.
func (r *recorder) SetHeader(md metadata.MD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if r.sent {
		return errHeaderSent
	}
	r.header = metadata.Join(r.header, sendable(md))
	return nil
}

// SendHeader adds to the header and sends it.
func (r *recorder) SendHeader(md metadata.MD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if r.sent {
		return errHeaderSent
	}
	r.sent = true
	r.header = metadata.Join(r.header, sendable(md))
	if r.left {
		return nil
	}
	return r.ServerTransportStream.SendHeader(r.header.Copy())
}

// SetTrailer adds to the trailer.
func (r *recorder) SetTrailer(md metadata.MD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.trailer = metadata.Join(r.trailer, sendable(md))
	}
	return nil
}

// leave tells the recorder that the RPC is over.
func (r *recorder) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = true
}

// close tells the recorder that the handler has returned: what is set from now on comes too late.
func (r *recorder) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// recorded returns what was set so far.
func (r *recorder) recorded() (header, trailer metadata.MD, sent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.header.Copy(), r.trailer.Copy(), r.sent
}
