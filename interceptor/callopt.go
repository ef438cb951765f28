package interceptor

import (
	"reflect"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// callOptions is a caller's options, taken apart: attempts get copies of what writes through a pointer or runs once.
type callOptions struct {
	passed   []grpc.CallOption // for every attempt; never appended to in place
	headers  []*metadata.MD
	trailers []*metadata.MD
	peers    []*peer.Peer
	finish   []func(error)
}

// splitCallOptions does not keep or change opts, which may be shared with other calls.
func splitCallOptions(opts []grpc.CallOption, keyed bool) callOptions {
	s := callOptions{passed: make([]grpc.CallOption, 0, len(opts)+1)}
	ownCodec := false
	for _, o := range opts {
		switch o := o.(type) {
		case keyCallOption, childCallOption:
			continue
		case grpc.HeaderCallOption:
			s.headers = append(s.headers, o.HeaderAddr)
			continue
		case grpc.TrailerCallOption:
			s.trailers = append(s.trailers, o.TrailerAddr)
			continue
		case grpc.PeerCallOption:
			s.peers = append(s.peers, o.PeerAddr)
			continue
		case grpc.OnFinishCallOption:
			s.finish = append(s.finish, o.OnFinish)
			continue
		case grpc.ContentSubtypeCallOption, grpc.ForceCodecCallOption, grpc.ForceCodecV2CallOption, grpc.CustomCodecCallOption:
			ownCodec = true
		}
		s.passed = append(s.passed, o)
	}
	if codec := encoding.GetCodecV2(protocodec.Name); keyed && !ownCodec && isGRPCs(codec) {
		s.passed = append(s.passed, grpc.ForceCodecV2(deterministicCodec{codec}))
	}
	return s
}

// forAttempt returns the options of one attempt, which ends in a.
func (s *callOptions) forAttempt(a *clientAnswer) []grpc.CallOption {
	n := len(s.passed)
	opts := append(s.passed[:n:n], grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	if len(s.peers) > 0 {
		opts = append(opts, grpc.Peer(&a.peer))
	}
	return opts
}

// done gives the caller what its options ask for, from the last attempt.
func (s *callOptions) done(a *clientAnswer, err error) {
	for _, h := range s.headers {
		*h = a.header
	}
	for _, t := range s.trailers {
		*t = a.trailer
	}
	for _, p := range s.peers {
		*p = a.peer
	}
	for _, f := range s.finish {
		f(err)
	}
}

// refuseCall ends a call that is not sent.
func refuseCall(opts []grpc.CallOption, err error) error {
	for _, o := range opts {
		if o, ok := o.(grpc.OnFinishCallOption); ok {
			o.OnFinish(err)
		}
	}
	return err
}

// deterministicCodec is gRPC's own codec for protobuf, with maps in one order, so that a server that does not know a
// field sees the same unknown bytes in every attempt.
type deterministicCodec struct{ encoding.CodecV2 }

// isGRPCs says whether codec is gRPC's own: another one may not be replaced.
func isGRPCs(codec encoding.CodecV2) bool {
	t := reflect.TypeOf(codec)
	return t != nil && t.Kind() == reflect.Pointer && t.Elem().PkgPath() == "google.golang.org/grpc/encoding/proto"
}

// Marshal implements [encoding.CodecV2].
func (c deterministicCodec) Marshal(v any) (mem.BufferSlice, error) {
	m := protoMessage(v)
	if m == nil {
		return c.CodecV2.Marshal(v)
	}
	size := proto.Size(m)
	marshal := proto.MarshalOptions{Deterministic: true, UseCachedSize: true}
	if mem.IsBelowBufferPoolingThreshold(size) {
		b, err := marshal.Marshal(m)
		if err != nil {
			return nil, err
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	pool := mem.DefaultBufferPool()
	b := pool.Get(size)
	if _, err := marshal.MarshalAppend((*b)[:0], m); err != nil {
		pool.Put(b)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(b, pool)}, nil
}

// protoMessage returns nil for what gRPC's codec would refuse.
func protoMessage(v any) proto.Message {
	switch v := v.(type) {
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(v)
	case protoadapt.MessageV2:
		return v
	}
	return nil
}
