package interceptor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"
)

// Bounds of a key's length in bytes. The lower one is that of the default format only: it keeps counters and order
// numbers out.
const (
	minKey = 16
	maxKey = 255
)

// WithKeyFormat sets the rule that keys must follow, in place of the default: 16 to 255 visible ASCII characters
// without comma, quote or backslash. [UUIDKey] is ready to use; nil is the default. Whatever the rule, a key is neither
// empty nor longer than 255 bytes.
//
// f must be safe for concurrent use. The text of its error goes to the caller of the RPC and into its logs, so it must
// not contain the key. Servers and their clients need the same rule.
func WithKeyFormat(f func(key string) error) Option {
	return commonOption(func(o *commonOptions) { o.keyFormat = f })
}

// UUIDKey is a format for [WithKeyFormat]: a UUID of any version in its text form of 36 characters (RFC 9562), except
// the nil UUID, which is what a forgotten one looks like. Upper and lower case are different keys.
func UUIDKey(key string) error {
	const form = "the key must be a UUID, hexadecimal digits as 8-4-4-4-12"
	if len(key) != 36 {
		return fmt.Errorf("%s; this one has %d characters", form, len(key))
	}
	zero := true
	for i := range len(key) {
		switch c := key[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return errors.New(form + "; this one lacks a hyphen")
			}
		case '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F':
			zero = zero && c == '0'
		default:
			return errors.New(form + "; this one has a character that is no hexadecimal digit")
		}
	}
	if zero {
		return errors.New("the key is the nil UUID; make a new UUID for every operation")
	}
	return nil
}

// KeyFor makes a key of what names an operation in the business, such as KeyFor("charge", order.ID): the same parts
// give the same key in every process and release, other parts another one. Begin with the operation's name, so that
// charging and refunding an order do not share a key.
//
// The key is 32 hexadecimal digits: the first 16 bytes of the SHA-256 of the parts, each preceded by its length as 8
// bytes, big-endian. It panics if there are no parts.
func KeyFor(parts ...string) string {
	if len(parts) == 0 {
		panic("oncerpc: KeyFor without parts")
	}
	var b []byte
	for _, part := range parts {
		b = appendPrefixed(b, part)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// checkKey says what is wrong with a key, without showing it. format is the rule, nil for the default.
func checkKey(key string, format func(string) error) error {
	switch {
	case key == "":
		return errors.New("the key is empty; leave it out, or make one for every operation")
	case len(key) > maxKey:
		return fmt.Errorf("the key has %d bytes; %d are allowed", len(key), maxKey)
	case format != nil:
		return format(key)
	case len(key) < minKey:
		return fmt.Errorf("the key has %d characters and needs at least %d; use a UUID, or KeyFor to make a key of a short name",
			len(key), minKey)
	}
	for i := range len(key) {
		switch c := key[i]; {
		case c <= ' ' || c >= 0x7f:
			return errors.New("the key has a space or a character that is not visible ASCII; use a UUID, or KeyFor")
		case c == ',' || c == '"' || c == '\\':
			return errors.New("the key has a comma, quote or backslash, which proxies change; use a UUID, or KeyFor")
		}
	}
	return nil
}

// unquote takes the quotes off a value that is a string in the sense of structured fields (RFC 9651), as gateways hand
// on the HTTP header Idempotency-Key. Any other value is returned as it is.
func unquote(value string) (string, error) {
	inner, quoted := strings.CutPrefix(value, `"`)
	if !quoted {
		return value, nil
	}
	end := strings.IndexAny(inner, `"\`)
	if end == len(inner)-1 && end >= 0 && inner[end] == '"' {
		return inner[:end], nil
	}
	var b strings.Builder
	for i := 0; i < len(inner); i++ {
		switch c := inner[i]; {
		case c < ' ' || c >= 0x7f:
			return "", errors.New("the quoted key has a character that is not ASCII text")
		case c == '"' && i == len(inner)-1:
			return b.String(), nil
		case c == '"':
			return "", errors.New("something follows the key's closing quote; send the quoted key alone")
		case c == '\\':
			i++
			if i == len(inner) || inner[i] != '"' && inner[i] != '\\' {
				return "", errors.New("the quoted key has a backslash that escapes nothing")
			}
			b.WriteByte(inner[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", errors.New("the key's closing quote is missing")
}

// callKey returns the key of an incoming call, from its metadata or from the request's key field, and "" if it has
// none.
func callKey(ctx context.Context, p *policy, req any, format func(string) error) (string, error) {
	field, err := p.fieldKey(req)
	if err != nil {
		return "", err
	}
	values := metadata.ValueFromIncomingContext(ctx, MetadataKey)
	if len(values) == 0 {
		if field == "" {
			return "", nil
		}
		if err := checkKey(field, format); err != nil {
			return "", err
		}
		return field, nil
	}
	if len(values) > 1 {
		return "", fmt.Errorf("%s was sent %d times; send one key", MetadataKey, len(values))
	}
	key, err := unquote(values[0])
	if err != nil {
		return "", err
	}
	if err := checkKey(key, format); err != nil {
		return "", err
	}
	if field != "" && field != key {
		return "", fmt.Errorf("%s and the request's key field differ; send one of them, or the same key in both", MetadataKey)
	}
	return key, nil
}
