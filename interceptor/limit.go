package interceptor

import (
	"slices"
	"strings"
	"unicode/utf8"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

const (
	// maxHeaders bounds what a replay sends besides its response, as HPACK counts it (RFC 7541 section 4.1): clients in
	// other languages refuse more than 8 KiB, and the answer is then lost to every retry.
	maxHeaders = 6 << 10
	maxMessage = 1 << 10 // of a status message that has to be cut
	// marksSize is an upper bound of oncerpc's own marks and of what gRPC adds to every answer.
	marksSize = 512
	fieldSize = 32 // what HPACK adds to every name and value
)

// fit cuts an outcome's metadata and status to what is sent safely, and marks what is cut: details of the status first,
// then the end of its message, then the largest metadata. It returns the status to keep; nil is OK.
func fit(o *oncerpcv1.Outcome, st *spb.Status) *spb.Status {
	over := func() bool { return tooLarge(o, st) }
	if st != nil && over() && len(st.Details) > 0 {
		st.Details = nil
		o.DetailsDropped = true
	}
	if st != nil && over() && len(st.Message) > maxMessage {
		st.Message = cut(st.Message, maxMessage)
		o.MessageCut = true
	}
	for over() && len(o.Headers)+len(o.Trailers) > 0 {
		dropLargest(o)
		o.MetadataDropped = true
	}
	return st
}

// tooLarge reports whether an answer with o's metadata and st may not arrive.
func tooLarge(o *oncerpcv1.Outcome, st *spb.Status) bool {
	return marksSize+statusSize(st)+metadataSize(o.Headers)+metadataSize(o.Trailers) > maxHeaders
}

// cut shortens s to at most n bytes, at a character's end.
func cut(s string, n int) string {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func dropLargest(o *oncerpcv1.Outcome) {
	bySize := func(a, b *oncerpcv1.Metadata) int {
		return metadataSize([]*oncerpcv1.Metadata{a}) - metadataSize([]*oncerpcv1.Metadata{b})
	}
	list := &o.Headers
	if len(o.Headers) == 0 || len(o.Trailers) > 0 && bySize(slices.MaxFunc(o.Trailers, bySize), slices.MaxFunc(o.Headers, bySize)) > 0 {
		list = &o.Trailers
	}
	largest := slices.MaxFunc(*list, bySize)
	*list = slices.DeleteFunc(*list, func(m *oncerpcv1.Metadata) bool { return m == largest })
}

func metadataSize(list []*oncerpcv1.Metadata) int {
	n := 0
	for _, m := range list {
		for _, v := range m.GetValues() {
			size := len(v)
			if strings.HasSuffix(m.GetKey(), "-bin") {
				size = base64Size(size)
			}
			n += len(m.GetKey()) + size + fieldSize
		}
	}
	return n
}

// statusSize counts grpc-message, and grpc-status-details-bin if there are details.
func statusSize(st *spb.Status) int {
	if st == nil {
		return 0
	}
	n := len("grpc-message") + fieldSize
	for i := range len(st.Message) {
		if c := st.Message[i]; c < ' ' || c > '~' || c == '%' {
			n += 2 // percent-encoded
		}
		n++
	}
	if len(st.Details) > 0 {
		n += len("grpc-status-details-bin") + base64Size(proto.Size(st)) + fieldSize
	}
	return n
}

func base64Size(n int) int { return (n*4 + 2) / 3 }

// truncated is the value of [MetadataTruncated] for an outcome; empty if it is whole.
func truncated(o *oncerpcv1.Outcome) string {
	var parts []string
	if o.DetailsDropped {
		parts = append(parts, "details")
	}
	if o.MessageCut {
		parts = append(parts, "message")
	}
	if o.MetadataDropped {
		parts = append(parts, "metadata")
	}
	return strings.Join(parts, ",")
}
