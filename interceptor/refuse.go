package interceptor

import (
	"context"
	"time"

	"google.golang.org/grpc"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// refuse makes the error of r, and puts its retry hint into the trailer.
func (s *Server) refuse(ctx context.Context, method string, r refusal, began time.Time) error {
	s.refused(ctx, method, r, began)
	if r.wait > 0 {
		_ = grpc.SetTrailer(ctx, pushback(r.wait)) // without a transport stream there is no trailer to set
	}
	return r.err(method)
}

func (c *call) refuse(r refusal) error {
	r.id = &c.id
	return c.s.refuse(c.ctx, c.p.method, r, c.began)
}

func (c *call) reused() error {
	return c.refuse(refusal{
		reason:  oncerpcv1.Reason_KEY_REUSED,
		message: "this idempotency key was used with another request: use a fresh key for another operation",
	})
}

func (c *call) outcomeUnknown() error {
	return c.refuse(refusal{
		reason:  oncerpcv1.Reason_OUTCOME_UNKNOWN,
		message: "a run of this call began and a crash hides how it ended: find out whether it took effect, then resolve its record",
	})
}

func (c *call) unreadable(why string) error {
	return c.refuse(refusal{
		reason:  oncerpcv1.Reason_RECORD_UNREADABLE,
		message: "there is a record of this call, and " + why + ": it was not run again",
	})
}

func (c *call) inProgress(age time.Duration) error {
	return c.refuse(refusal{
		reason:  oncerpcv1.Reason_IN_PROGRESS,
		message: "a call with this idempotency key is running: send it again later, with the same key",
		wait:    jitter(ageWait(age)),
	})
}

func (c *call) superseded(age time.Duration) error {
	return c.refuse(refusal{
		reason:  oncerpcv1.Reason_SUPERSEDED,
		message: "this run lost its claim to another: send the call again, with the same key, for that one's outcome",
		wait:    jitter(ageWait(age)),
	})
}

// storeUnavailable does not show cause to the caller: its text may tell of the server's insides.
func (c *call) storeUnavailable(cause error) error {
	c.s.storeFailed(c.ctx, c.p.method, c.id, cause)
	return c.refuse(refusal{
		reason:  oncerpcv1.Reason_STORE_UNAVAILABLE,
		message: "the idempotency store failed: send the call again, with the same key",
		wait:    jitter(storeWait),
	})
}

func (c *call) overloaded(why string, wait time.Duration) error {
	return c.refuse(refusal{
		reason:  oncerpcv1.Reason_OVERLOADED,
		message: why + ": send the call again later, with the same key",
		wait:    jitter(wait),
	})
}

// ageWait is the hint for calls that meet a run of some age: one that has taken long will take long.
func ageWait(age time.Duration) time.Duration {
	return min(max(age, minWait), maxWait)
}

func drainingRefusal() refusal {
	return refusal{
		reason:  oncerpcv1.Reason_DRAINING,
		message: "the server is shutting down: send the call again in a moment, with the same key",
		wait:    jitter(storeWait),
	}
}
