package interceptor

import (
	"google.golang.org/grpc/metadata"
)

// Names of gRPC metadata. MetadataKey is sent by clients; the others come back in the trailer, and on OK in the header
// too.
const (
	// MetadataKey carries the idempotency key of a call: exactly one value.
	MetadataKey = "idempotency-key"
	// MetadataStatus carries a [Status].
	MetadataStatus = "idempotency-status"
	// MetadataOutcome is "ambiguous" on an error that does not tell whether the effect happened.
	MetadataOutcome = "idempotency-outcome"
	// MetadataFirstSeen is when the key was first claimed (RFC 3339), on replays and joins.
	MetadataFirstSeen = "idempotency-first-seen"
	// MetadataTruncated lists, separated by commas, what of a stored outcome was too large to keep and is missing from
	// replays and joins: "details" (of the status), "message" (its end), "metadata" (some headers or trailers).
	MetadataTruncated = "idempotency-truncated"

	// metadataPushback is gRPC's own retry hint (gRFC A6): milliseconds to wait, negative for "do not retry".
	metadataPushback = "grpc-retry-pushback-ms"

	ambiguousValue = "ambiguous"
)

// Domain is the domain of the google.rpc.ErrorInfo on errors that oncerpc itself makes. Their reasons are the value
// names of oncerpc.v1.Reason.
const Domain = "github.com/oncerpc/oncerpc"

// Status says how the server came by its answer to a call with a key.
type Status string

// What servers say of a call. Errors made by oncerpc itself carry no status, except RESPONSE_NOT_RETAINED, which is a
// replay.
const (
	// StatusNone: the server said nothing.
	StatusNone Status = ""
	// StatusExecuted: the handler ran, and its outcome is kept.
	StatusExecuted Status = "executed"
	// StatusReplayed: the handler ran for an earlier call.
	StatusReplayed Status = "replayed"
	// StatusJoined: the handler ran for a call that was under way.
	StatusJoined Status = "joined"
	// StatusReleased: the handler ran and nothing happened; the key is free again.
	StatusReleased Status = "released"
	// StatusIgnored: the method is not guarded, and the key meant nothing.
	StatusIgnored Status = "ignored"
	// StatusUnrecorded: the handler ran, and its outcome could not be kept yet.
	StatusUnrecorded Status = "unrecorded"
)

// StatusOf returns what the server said of a call, from the call's trailer (or header, on OK).
func StatusOf(md metadata.MD) Status {
	if v := md.Get(MetadataStatus); len(v) > 0 {
		return Status(v[len(v)-1])
	}
	return StatusNone
}
