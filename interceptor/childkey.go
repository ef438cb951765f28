package interceptor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"google.golang.org/grpc"
)

const childTag = "oncerpc/child/1\x00"

// ChildKey derives the key of a downstream call from the guarded call under way and a name: the same on every re-run of
// the handler, different for every name and every call. Give each downstream call of a handler a name of its own.
// Outside a guarded call it is a fresh random key.
func ChildKey(ctx context.Context, name string) string {
	r, _ := ctx.Value(runKey{}).(*run)
	if r == nil {
		return randomUUID()
	}
	b := append([]byte(childTag), r.id[:]...)
	sum := sha256.Sum256(appendPrefixed(b, name))
	return hex.EncodeToString(sum[:16])
}

// Child gives a call the key [ChildKey] of its context and a name, so that a handler's downstream call is made once
// however often the handler runs:
//
//	ledger.Post(ctx, entry, interceptor.Child("post-entry"))
//
// Like [Key], it needs a [Client] on the connection.
func Child(name string) grpc.CallOption { return childCallOption{name: name} }

type childCallOption struct {
	grpc.EmptyCallOption

	name string
}
