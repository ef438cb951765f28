package interceptor

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

const (
	// longestHint is what a server's longer hint is taken as.
	longestHint = time.Minute
	// shortestFreeWait keeps attempts that count against nothing from becoming a busy loop.
	shortestFreeWait = 10 * time.Millisecond
)

// clientCall is one logical call. Its attempts carry one key and never overlap.
type clientCall struct {
	client     *Client
	conn       *clientConn
	key        string // empty: an idempotent method's call
	idempotent bool   // a retry needs no key
	ignored    bool   // by this program's policy keys mean nothing
	method     string
	reply      any
	opts       callOptions
}

// clientAnswer is how one attempt ended. Every attempt has its own, because gRPC leaves header and trailer as they are
// when no stream was made.
type clientAnswer struct {
	err     error
	status  *status.Status
	header  metadata.MD
	trailer metadata.MD
	peer    peer.Peer
}

// do sends the call until an answer is final.
func (c *clientCall) do(ctx context.Context, send func(context.Context, []grpc.CallOption) error) error {
	_, patient := ctx.Deadline()
	waits := backoff{base: c.client.options.backoffBase, limit: c.client.options.backoffCap}
	counted := 0
	for attempt := 1; ; attempt++ {
		a := c.attempt(ctx, send)
		c.learn(ctx, attempt, a)
		if a.err == nil {
			c.conn.budget.success()
			return c.end(a, nil)
		}
		resetReply(c.reply)
		free := patient && a.unfinished()
		if !free {
			counted++
		}
		if !c.mayRetry(ctx, a, free) || counted >= c.client.options.attempts {
			return c.end(a, a.err)
		}
		wait := waits.next(a)
		if free {
			wait = max(wait, shortestFreeWait)
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait {
			return c.end(a, a.err)
		}
		wait = min(wait, longestHint)
		c.client.observe(ctx, Event{
			Kind: EventRetry, Method: c.method, Attempt: attempt, Code: a.status.Code(), Duration: wait,
		})
		if err := sleep(ctx, wait); errors.Is(err, context.Canceled) {
			return c.end(a, &cancelledError{last: a.err})
		} else if err != nil || !c.retryHarmless() {
			return c.end(a, a.err)
		}
	}
}

// attempt sends the call once.
func (c *clientCall) attempt(ctx context.Context, send func(context.Context, []grpc.CallOption) error) *clientAnswer {
	if d := c.client.options.attemptTimeout; d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	a := new(clientAnswer)
	a.err = send(ctx, c.opts.forAttempt(a))
	st, ok := status.FromError(a.err)
	if !ok {
		st = status.FromContextError(a.err)
	}
	a.status = st
	return a
}

// learn takes from an answer whether the method is guarded where this connection leads. An error without a status may
// come from anybody on the way and tells nothing.
func (c *clientCall) learn(ctx context.Context, attempt int, a *clientAnswer) {
	if c.key == "" {
		return
	}
	said := StatusOf(a.trailer)
	if said == StatusNone && a.err == nil {
		said = StatusOf(a.header)
	}
	switch {
	case said == StatusIgnored:
		c.conn.unguarded.Store(c.method, nil)
		c.client.observe(ctx, Event{Kind: EventIgnored, Method: c.method, Attempt: attempt, Code: a.status.Code()})
	case said != StatusNone:
		c.conn.unguarded.Delete(c.method)
	case a.err == nil:
		c.conn.unguarded.Store(c.method, nil)
		c.client.observe(ctx, Event{
			Kind: EventUnguarded, Method: c.method, Attempt: attempt, Code: a.status.Code(), Hint: hintUnguarded,
		})
	}
}

// mayRetry says whether an answer allows another attempt, and takes it out of the budget unless it is free.
func (c *clientCall) mayRetry(ctx context.Context, a *clientAnswer, free bool) bool {
	if !a.retryable(c.client.options.attemptTimeout > 0 && ctx.Err() == nil) {
		return false
	}
	if !c.retryHarmless() {
		return false
	}
	if !free && !c.conn.budget.failure() {
		return false
	}
	_, how := pushbackOf(a.trailer)
	return how != pushbackStop
}

// retryHarmless is false once an answer, perhaps to another call, has shown that nobody guards the method.
func (c *clientCall) retryHarmless() bool {
	if c.idempotent || c.ignored {
		return c.idempotent
	}
	_, unguarded := c.conn.unguarded.Load(c.method)
	return !unguarded
}

// end gives the caller its answer.
func (c *clientCall) end(a *clientAnswer, err error) error {
	if err != nil && c.key != "" {
		err = withErrorKey(err, c.key)
	}
	c.opts.done(a, err)
	return err
}

// unfinished says that the call with this key goes on elsewhere, and its outcome is on its way.
func (a *clientAnswer) unfinished() bool {
	if a.status.Code() != codes.Aborted {
		return false
	}
	switch ReasonOf(a.err) {
	case oncerpcv1.Reason_IN_PROGRESS, oncerpcv1.Reason_SUPERSEDED:
		return true
	default:
		return false
	}
}

// retryable says whether the same call sent again could end otherwise. A code alone says so only where its sender may
// not have run the call at all.
func (a *clientAnswer) retryable(timedOut bool) bool {
	said := StatusOf(a.trailer)
	if said == StatusReplayed || len(a.trailer.Get(MetadataOutcome)) > 0 {
		return false
	}
	nothingHappened := said == StatusReleased || ReasonOf(a.err) == oncerpcv1.Reason_OVERLOADED
	switch a.status.Code() {
	case codes.Unavailable:
		return true
	case codes.DeadlineExceeded:
		return timedOut
	case codes.Aborted:
		return nothingHappened || a.unfinished()
	case codes.ResourceExhausted:
		return nothingHappened
	default:
		return false
	}
}

// backoff decides the waits of one call.
type backoff struct {
	base, limit time.Duration
	inRow       int // waits without a hint since the last hint
}

// next returns the wait after a: the server's hint, else a random one that doubles.
func (b *backoff) next(a *clientAnswer) time.Duration {
	if wait, how := pushbackOf(a.trailer); how == pushbackWait {
		b.inRow = 0
		return wait
	}
	if wait, ok := retryInfoOf(a.status); ok {
		b.inRow = 0
		return wait
	}
	upper := b.base
	for range b.inRow {
		if upper >= b.limit/2 { // doubling could overflow
			upper = b.limit
			break
		}
		upper *= 2
	}
	b.inRow++
	return time.Duration(rand.Float64() * float64(upper))
}

type pushbackKind int

const (
	pushbackNone pushbackKind = iota
	pushbackWait
	pushbackStop // negative, malformed or repeated: do not retry (gRFC A6)
)

func pushbackOf(trailer metadata.MD) (time.Duration, pushbackKind) {
	values := trailer.Get(metadataPushback)
	if len(values) == 0 {
		return 0, pushbackNone
	}
	ms, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil || ms < 0 || len(values) > 1 {
		return 0, pushbackStop
	}
	const most = int64(time.Duration(1<<63-1) / time.Millisecond)
	return time.Duration(min(ms, most)) * time.Millisecond, pushbackWait
}

func retryInfoOf(st *status.Status) (time.Duration, bool) {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok && info.GetRetryDelay() != nil {
			return max(info.GetRetryDelay().AsDuration(), 0), true
		}
	}
	return 0, false
}

// sleep waits, or returns the error of a context that ends before.
func sleep(ctx context.Context, wait time.Duration) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// resetReply empties a reply that a failed attempt may have filled: not every codec does that itself.
func resetReply(reply any) {
	if m := protoMessage(reply); m != nil && m.ProtoReflect().IsValid() {
		proto.Reset(m)
	}
}
