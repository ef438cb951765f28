package interceptor

import (
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
)

// executed answers the caller for whom the run was made.
func (c *call) executed(r *run) (any, error) {
	if r.panic != nil {
		panic(r.panic)
	}
	recorded := StatusExecuted
	if r.reconciles {
		recorded = StatusReplayed // it is the outcome of an earlier run
	}
	st, err := c.ended(r, recorded)
	switch {
	case err != nil:
		return nil, err
	case r.overruled || r.reconciles:
		return c.answer(r.out, st, r.firstSeen())
	}
	return c.give(r, st)
}

// firstSeen is the time to show to the caller for whom the run was made: only one that looked at an earlier run has one.
func (r *run) firstSeen() time.Time {
	if r.reconciles {
		return r.first
	}
	return time.Time{}
}

// ended tells the status under which the outcome of a run goes out that is settled or stalled; recorded is the one it
// has if all went well. An error is the answer instead of the outcome.
func (c *call) ended(r *run, recorded Status) (Status, error) {
	result := errUnsettled
	select {
	case <-r.settled:
		result = r.result
	default:
	}
	switch {
	case r.unknown:
		return StatusNone, c.storeUnavailable(result)
	case errors.Is(result, store.ErrLost):
		return StatusNone, c.superseded(time.Since(r.began))
	case r.undecided:
		return StatusNone, c.outcomeUnknown()
	case result != nil && r.p.rerun:
		// A crash now would have it run again: no outcome may be seen before one is recorded.
		return StatusNone, c.inProgress(time.Since(r.began))
	case result != nil:
		return StatusUnrecorded, nil
	case r.out.class == classReleased:
		return StatusReleased, nil
	}
	return recorded, nil
}

var errUnsettled = errors.New("interceptor: outcome is not recorded yet")

// give sends the handler's own answer.
func (c *call) give(r *run, st Status) (any, error) {
	resp, err := r.resp, r.err
	if r.recorder != nil {
		header, trailer, sent := r.recorder.recorded()
		if !sent {
			_ = grpc.SetHeader(c.ctx, header)
		}
		_ = grpc.SetTrailer(c.ctx, trailer)
	}
	mark(c.ctx, err == nil, r.out.marks(st, time.Time{}))
	c.answered(st, statusCode(err), r.attempt)
	if err == nil {
		if isNil(resp) {
			return c.p.response(nil)
		}
		return resp, nil
	}
	own := status.FromProto(ownStatus(err))
	if st != StatusUnrecorded && r.out.stopsRetries(own.Code()) {
		_ = grpc.SetTrailer(c.ctx, pushback(-1))
	}
	return nil, &handlerError{status: own, err: err}
}

// statusCode is the code that goes out for a handler's error.
func statusCode(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	return statusOf(err).Code()
}

// handlerError is what a handler returned, with the status that goes out for it.
type handlerError struct {
	status *status.Status
	err    error
}

func (e *handlerError) Error() string              { return e.err.Error() }
func (e *handlerError) Unwrap() error              { return e.err }
func (e *handlerError) GRPCStatus() *status.Status { return e.status }

// replay answers with a stored outcome.
func (c *call) replay(rec store.Record, st Status) (any, error) {
	o, err := outcomeOf(rec.State, rec.Ambiguous, rec.Outcome)
	if err != nil {
		return nil, c.unreadable("its outcome is corrupt")
	}
	return c.answer(o, st, rec.First)
}

// answer gives a caller its own copy of an outcome.
func (c *call) answer(o outcome, st Status, first time.Time) (any, error) {
	if o.msg.ResponseDropped && o.whole == nil {
		mark(c.ctx, false, o.marks(StatusReplayed, first))
		return nil, c.refuse(refusal{
			reason:  oncerpcv1.Reason_RESPONSE_NOT_RETAINED,
			message: "this call has succeeded, and its response was too large to keep: read the result where it was written",
		})
	}
	resp, failed, err := o.answer()
	if err != nil {
		return nil, c.unreadable(err.Error())
	}
	_ = grpc.SetHeader(c.ctx, unkept(o.msg.Headers)) // fails only if an outer interceptor has sent the header
	_ = grpc.SetTrailer(c.ctx, unkept(o.msg.Trailers))
	mark(c.ctx, failed == nil, o.marks(st, first))
	c.answered(st, failed.Code(), c.ran)
	if failed == nil {
		return resp, nil
	}
	switch {
	case o.class == classReleased:
		var wait time.Duration
		failed, wait = o.withRetryInfo(failed)
		_ = grpc.SetTrailer(c.ctx, pushback(wait))
	case st != StatusUnrecorded && o.stopsRetries(failed.Code()):
		_ = grpc.SetTrailer(c.ctx, pushback(-1))
	}
	return nil, failed.Err()
}
