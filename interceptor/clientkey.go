package interceptor

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// Key gives a call its idempotency key, so that a later call, also by another process, can be a retry of it. [KeyFor]
// makes one of business identifiers. Without Key a guarded call gets a key of its own, the same for all its attempts.
//
// Of several Keys the last one counts, and it takes the place of a key in the outgoing metadata. On a connection
// without a [Client] the option means nothing.
func Key(key string) grpc.CallOption { return keyCallOption{key: key} }

type keyCallOption struct {
	grpc.EmptyCallOption

	key string
}

// key finds or makes the key of a call. It is empty for a call that carries none.
func (c *Client) key(ctx context.Context, method string, p *policy, req any, opts []grpc.CallOption) (string, error) {
	key, explicit := explicitKey(ctx, opts)
	if !explicit {
		switch values := metadata.ValueFromOutgoingContext(ctx, MetadataKey); len(values) {
		case 0:
		case 1:
			key, explicit = values[0], true
		default:
			return "", invalidKey(method, "the outgoing metadata has several keys for one call; set one, or give the call interceptor.Key")
		}
	}
	if !explicit && !p.guarded {
		return "", nil
	}
	key, err := unquote(key)
	if err != nil {
		return "", invalidKey(method, err.Error())
	}
	if p.guarded {
		switch field := p.requestKey(req); {
		case !explicit && field == "":
			return c.freshKey(method)
		case !explicit:
			key = field
		case field != "" && field != key:
			return "", invalidKey(method, "the call's key differs from the request's key field; leave one of them out")
		}
	}
	if err := checkKey(key, c.options.common.keyFormat); err != nil {
		return "", invalidKey(method, err.Error())
	}
	return key, nil
}

// freshKey makes the key of a call that has none.
func (c *Client) freshKey(method string) (string, error) {
	key := randomUUID()
	if c.options.common.keyFormat == nil {
		return key, nil
	}
	if err := checkKey(key, c.options.common.keyFormat); err != nil {
		return "", invalidKey(method, "the key format refuses the random UUID of a call without a key; give the call interceptor.Key")
	}
	return key, nil
}

func invalidKey(method, message string) error {
	return refusal{reason: oncerpcv1.Reason_KEY_INVALID, message: message}.err(method)
}

func explicitKey(ctx context.Context, opts []grpc.CallOption) (key string, ok bool) {
	for _, o := range opts {
		switch o := o.(type) {
		case keyCallOption:
			key, ok = o.key, true
		case childCallOption:
			key, ok = ChildKey(ctx, o.name), true
		}
	}
	return key, ok
}

// randomUUID returns a UUID of version 4 (RFC 9562).
func randomUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	var s [36]byte
	hex.Encode(s[:8], b[:4])
	hex.Encode(s[9:13], b[4:6])
	hex.Encode(s[14:18], b[6:8])
	hex.Encode(s[19:23], b[8:10])
	hex.Encode(s[24:], b[10:])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}

// withKey makes key the one value of its name in the outgoing metadata.
func withKey(ctx context.Context, key string) context.Context {
	if len(metadata.ValueFromOutgoingContext(ctx, MetadataKey)) == 0 {
		return metadata.AppendToOutgoingContext(ctx, MetadataKey, key)
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	md.Set(MetadataKey, key)
	return metadata.NewOutgoingContext(ctx, md)
}
