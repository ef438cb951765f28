package interceptor

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// oneCallOnly are names whose values belong to one call and not to its outcome.
var oneCallOnly = []string{"set-cookie", "authorization", "traceparent", "tracestate", "baggage", "date", "x-request-id"}

// mark puts md where the caller finds it: in the trailer, and on OK in the header too. A response header on an error
// would end gRPC's own retries. A handler that has sent its header leaves the marks in the trailer only.
func mark(ctx context.Context, ok bool, md metadata.MD) {
	if ok {
		_ = grpc.SetHeader(ctx, md) // fails if the header is sent: then the trailer has to do
	}
	_ = grpc.SetTrailer(ctx, md) // fails only without a transport stream
}

// kept is the part of a handler's metadata that is replayed.
func kept(md metadata.MD) []*oncerpcv1.Metadata {
	var names []string
	for name := range md {
		if !strings.HasPrefix(name, "grpc-") && !slices.Contains(oneCallOnly, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var out []*oncerpcv1.Metadata
	for _, name := range names {
		m := &oncerpcv1.Metadata{Key: name}
		for _, v := range md[name] {
			m.Values = append(m.Values, []byte(v))
		}
		out = append(out, m)
	}
	return out
}

func unkept(in []*oncerpcv1.Metadata) metadata.MD {
	md := make(metadata.MD, len(in))
	for _, m := range in {
		for _, v := range m.GetValues() {
			md.Append(m.GetKey(), string(v))
		}
	}
	return md
}

// sendable is md without what gRPC would refuse to send, what it reserves for itself, and names that are oncerpc's.
// grpc.SetHeader does not check: one bad value would break the answer, and its replays.
func sendable(md metadata.MD) metadata.MD {
	out := make(metadata.MD, len(md))
	for name, values := range md {
		name = strings.ToLower(name)
		if !validName(name) || reserved(name) {
			continue
		}
		for _, v := range values {
			if strings.HasSuffix(name, "-bin") || validValue(v) {
				out[name] = append(out[name], v)
			}
		}
	}
	return out
}

func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return name != ""
}

// validValue reports whether HTTP/2 carries v: no control characters, and no spaces that proxies would trim.
func validValue(v string) bool {
	for i := range len(v) {
		if v[i] < 0x20 || v[i] == 0x7f {
			return false
		}
	}
	return v == strings.Trim(v, " ")
}

func reserved(name string) bool {
	switch name {
	case "content-type", "user-agent", "te", "grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-encoding",
		"grpc-message-type", "grpc-timeout", "grpc-accept-encoding", "connection", "keep-alive", "proxy-connection",
		"transfer-encoding", "upgrade", MetadataKey, MetadataStatus, MetadataOutcome, MetadataFirstSeen,
		MetadataTruncated:
		return true
	}
	return false
}
