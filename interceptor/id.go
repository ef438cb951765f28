package interceptor

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"github.com/oncerpc/oncerpc/store"
)

// Domain tags: a digest made for one purpose is never one made for another.
const (
	idTag    = "oncerpc/id/1\x00"
	ownerTag = "oncerpc/owner/1\x00"
)

// identity makes the digests under which records are kept. With a secret, nobody who reads the store can try out keys
// and scopes. It is safe for concurrent use.
type identity struct{ secret []byte }

// id names the record of a scope and key.
func (i identity) id(scope, key string) store.ID {
	b := make([]byte, 0, 512) // the largest key and a usual scope
	b = append(b, idTag...)
	b = appendPrefixed(b, scope)
	b = appendPrefixed(b, key)
	return i.digest(b)
}

// owner is the digest by which a scope's records are found.
func (i identity) owner(scope string) [8]byte {
	b := make([]byte, 0, 256)
	b = append(b, ownerTag...)
	b = appendPrefixed(b, scope)
	sum := i.digest(b)
	return [8]byte(sum[:8])
}

func (i identity) digest(b []byte) [sha256.Size]byte {
	if len(i.secret) == 0 {
		return sha256.Sum256(b)
	}
	mac := hmac.New(sha256.New, i.secret)
	mac.Write(b)
	return [sha256.Size]byte(mac.Sum(nil))
}

// appendPrefixed appends s with its length before it, so that neighbours cannot be cut differently.
func appendPrefixed[S ~string | ~[]byte](b []byte, s S) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}
