package interceptor

import (
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
)

// ReasonOf returns why oncerpc itself answered a call with err, and REASON_UNSPECIFIED if it did not: the error is the
// handler's, gRPC's, or nil.
func ReasonOf(err error) oncerpcv1.Reason {
	if err == nil {
		return oncerpcv1.Reason_REASON_UNSPECIFIED
	}
	st, ok := status.FromError(err)
	if !ok {
		return oncerpcv1.Reason_REASON_UNSPECIFIED
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return oncerpcv1.Reason(oncerpcv1.Reason_value[info.GetReason()])
		}
	}
	return oncerpcv1.Reason_REASON_UNSPECIFIED
}

// refusal is an answer that oncerpc makes itself.
type refusal struct {
	reason  oncerpcv1.Reason
	message string
	id      *store.ID     // nil where there is none yet
	wait    time.Duration // hint when to send the call again; 0: none
}

// codeOf is the status code of each reason.
var codeOf = map[oncerpcv1.Reason]codes.Code{
	oncerpcv1.Reason_KEY_MISSING:           codes.InvalidArgument,
	oncerpcv1.Reason_KEY_INVALID:           codes.InvalidArgument,
	oncerpcv1.Reason_SCOPE_MISSING:         codes.Unauthenticated,
	oncerpcv1.Reason_KEY_REUSED:            codes.FailedPrecondition,
	oncerpcv1.Reason_OUTCOME_UNKNOWN:       codes.FailedPrecondition,
	oncerpcv1.Reason_RESPONSE_NOT_RETAINED: codes.FailedPrecondition,
	oncerpcv1.Reason_RECORD_UNREADABLE:     codes.FailedPrecondition,
	oncerpcv1.Reason_STREAM_UNSUPPORTED:    codes.InvalidArgument,
	oncerpcv1.Reason_IN_PROGRESS:           codes.Aborted,
	oncerpcv1.Reason_SUPERSEDED:            codes.Aborted,
	oncerpcv1.Reason_STORE_UNAVAILABLE:     codes.Unavailable,
	oncerpcv1.Reason_DRAINING:              codes.Unavailable,
	oncerpcv1.Reason_OVERLOADED:            codes.ResourceExhausted,
}

// err makes the status of r for a call of method.
func (r refusal) err(method string) error {
	info := &errdetails.ErrorInfo{
		Domain:   Domain,
		Reason:   r.reason.String(),
		Metadata: map[string]string{"method": method},
	}
	if r.id != nil {
		info.Metadata["id"] = prefix(*r.id)
	}
	st := status.New(codeOf[r.reason], "oncerpc: "+r.message)
	with, err := st.WithDetails(info)
	if err == nil && r.wait > 0 {
		with, err = with.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(r.wait)})
	}
	if err != nil {
		return st.Err()
	}
	return with.Err()
}

// prefix is the part of an ID that may be shown.
func prefix(id store.ID) string { return hex.EncodeToString(id[:4]) }

// pushback is gRPC's retry hint: wait this long, or, negative, do not retry.
func pushback(wait time.Duration) metadata.MD {
	if wait < 0 {
		return metadata.Pairs(metadataPushback, "-1")
	}
	return metadata.Pairs(metadataPushback, strconv.FormatInt(wait.Milliseconds(), 10))
}

// jitter spreads wait by ±20 %, as gRFC A6 does with its backoff.
func jitter(wait time.Duration) time.Duration {
	return time.Duration(float64(wait) * (0.8 + 0.4*rand.Float64()))
}

// ErrDraining is the cause with which [Server.Drain] cancels the runs that are left when its time is over.
var ErrDraining = errors.New("oncerpc: server is draining")

// ErrSuperseded is the cause with which a run is cancelled when another run has taken over its claim.
var ErrSuperseded = errors.New("oncerpc: claim lost to another run")

// ErrTimeout is the cause with which a run is cancelled when the method's timeout has passed.
var ErrTimeout = errors.New("oncerpc: the method's timeout has passed")
