package interceptor

import (
	"context"
	"crypto/x509"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Scope tells who sends a call. Keys of different scopes never meet, and whoever is in a scope can have the responses
// to its keys: it must name the caller, or the tenant, whom authentication established, by something that stays the
// same from one retry to the next, such as a subject, and never a token that rotates.
//
// An error that is a gRPC status is the answer to the call. An empty scope is refused with SCOPE_MISSING. Scope is
// called once for each call with a key, concurrently.
type Scope func(context.Context) (string, error)

// SharedScope is a [Scope] that holds all callers: for a service whose callers may see each other's responses. It is
// always "shared".
func SharedScope(context.Context) (string, error) { return "shared", nil }

// MetadataScope returns a [Scope] that is the one value of the named request metadata; none, several and an empty one
// are refused with SCOPE_MISSING. Use it only for metadata that one's own gateway sets and takes off what callers send.
// It panics if name is empty.
func MetadataScope(name string) Scope {
	if name == "" {
		panic("oncerpc: MetadataScope without a name")
	}
	name = strings.ToLower(name)
	return func(ctx context.Context) (string, error) {
		values := metadata.ValueFromIncomingContext(ctx, name)
		if len(values) != 1 {
			return "", nil
		}
		return values[0], nil
	}
}

// PeerScope is a [Scope] for mutual TLS: the SPIFFE ID in the client's certificate, else the certificate's subject as a
// string in the manner of RFC 4514. Only a certificate that this server has verified counts; a caller without one is
// refused with SCOPE_MISSING, and so is one whose SPIFFE ID is not its certificate's only URI (SPIFFE X.509-SVID,
// section 2). Subjects are taken to be unique over all authorities whose client certificates the server accepts.
func PeerScope(ctx context.Context) (string, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return "", nil
	}
	return certificateScope(info.State.VerifiedChains[0][0]), nil
}

func certificateScope(leaf *x509.Certificate) string {
	for _, uri := range leaf.URIs {
		if strings.EqualFold(uri.Scheme, "spiffe") {
			if len(leaf.URIs) > 1 || uri.Host == "" {
				return ""
			}
			return uri.String()
		}
	}
	return leaf.Subject.String()
}
