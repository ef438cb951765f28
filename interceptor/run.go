package interceptor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/store"
)

// HandlerPanic is what [Server.Unary] panics with when a guarded handler panicked, once the run's outcome is recorded:
// the handler ran in a goroutine of its own, and a recovery interceptor outside would not see where.
type HandlerPanic struct {
	Value any    // what the handler panicked with
	Stack []byte // of the handler
}

// Error tells value and stack, so that a recovery that prints the panic's value shows both.
func (p *HandlerPanic) Error() string {
	return fmt.Sprintf("handler panicked: %v\n\n%s", p.Value, p.Stack)
}

// Unwrap returns the value if it is an error.
func (p *HandlerPanic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// Attempt returns how many runs of the guarded call under way have begun, this one included: more than 1 after a crash
// under the policy RERUN, when the handler should find out what an earlier run has done. Outside a guarded call it is 0.
func Attempt(ctx context.Context) int {
	r, _ := ctx.Value(runKey{}).(*run)
	if r == nil {
		return 0
	}
	return r.attempt
}

type runKey struct{}

// run is one execution of a handler, from the moment its claim is held until its end is settled with the store. Its
// goroutine outlives the RPC if it has to.
type run struct {
	s           *Server
	p           *policy
	reconciles  bool // the function that runs is not the handler, but asks what became of it
	id          store.ID
	token       store.Token
	fingerprint []byte
	first       time.Time // on the store's clock
	attempt     int
	claimed     time.Time       // here, before the store was asked for the claim
	began       time.Time       // here
	ctx         context.Context // the handler's
	recorder    *recorder       // nil without a transport stream
	cancel      context.CancelCauseFunc
	commit      *store.Run

	// Guarded by s.mu.
	waiters    int
	callerless bool
	timeout    *time.Timer // set when a caller without a deadline has left

	ended   chan struct{} // closed when the handler has returned and its outcome is known here
	stalled chan struct{} // closed when the outcome is still not recorded after settlePatience
	settled chan struct{} // closed when the store has taken the outcome, or never will

	// Set before ended is closed.
	resp    any
	err     error // the handler's
	panic   *HandlerPanic
	out     outcome
	unknown bool // a transaction ended so that nobody knows whether it committed
	// What the handler returned is put aside for the outcome that its transaction committed, which is put.
	overruled bool
	put       outcome
	undecided bool // reconciling told nothing: the record stays abandoned

	result error // of the store, set before settled is closed
}

// start runs the handler for a claim that is held, and answers the caller.
func (c *call) start(rec store.Record, handler grpc.UnaryHandler) (any, error) {
	if c.ctx.Err() != nil {
		c.left(0)
		c.s.releaseLater(store.Claim{ID: rec.ID, Token: rec.Token}, c.p.retention)
		return nil, status.FromContextError(c.ctx.Err()).Err()
	}
	r := &run{
		s: c.s, p: c.p, reconciles: c.reconciling, id: c.id, token: rec.Token, fingerprint: c.fingerprint,
		first: rec.First, attempt: rec.Attempt, claimed: c.asked, began: time.Now(),
		ended: make(chan struct{}), stalled: make(chan struct{}), settled: make(chan struct{}),
	}
	if stream := grpc.ServerTransportStreamFromContext(c.ctx); stream != nil {
		r.recorder = &recorder{ServerTransportStream: stream}
	}
	r.commit = store.NewRun(c.s.store, r.id, r.token, r.encode)
	r.ctx = r.context(c.ctx)
	if !c.s.register(r) {
		r.cancel(ErrDraining)
		c.s.releaseLater(store.Claim{ID: rec.ID, Token: rec.Token}, c.p.retention)
		return nil, c.refuse(drainingRefusal())
	}
	c.ran = r.attempt
	go r.execute(c.req, handler)
	select {
	case <-r.settled:
	case <-r.stalled:
	case <-c.ctx.Done():
		r.callerLeft(c.ctx)
		c.left(r.attempt)
		return nil, status.FromContextError(c.ctx.Err()).Err()
	case <-c.s.expelled:
		r.callerLeft(c.ctx)
		return nil, c.inProgress(time.Since(r.began))
	}
	return c.executed(r)
}

// context is the handler's: the RPC's values without its end. It ends at the later of the caller's deadline and the
// method's timeout; without a deadline, the timeout counts from when the caller leaves.
func (r *run) context(rpc context.Context) context.Context {
	ctx := context.WithoutCancel(rpc)
	if r.recorder != nil {
		ctx = grpc.NewContextWithServerTransportStream(ctx, r.recorder)
	}
	ctx = context.WithValue(store.NewContext(ctx, r.commit), runKey{}, r)
	ctx, r.cancel = context.WithCancelCause(ctx)
	deadline, ok := rpc.Deadline()
	if !ok {
		return ctx
	}
	if end := r.began.Add(r.p.timeout); end.After(deadline) {
		deadline = end
	}
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, ErrTimeout)
	outer := r.cancel
	r.cancel = func(cause error) { outer(cause); cancel() }
	return ctx
}

// callerLeft is called by the RPC's goroutine when it answers before the run's end.
func (r *run) callerLeft(rpc context.Context) {
	if r.recorder != nil {
		r.recorder.leave()
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.runs[r.id] != r {
		return // settled meanwhile
	}
	r.callerless = true
	r.s.callerless++
	if _, ok := rpc.Deadline(); !ok {
		r.timeout = time.AfterFunc(r.p.timeout, func() { r.cancel(ErrTimeout) })
	}
}

// execute runs the handler and settles its end. It is the run's goroutine.
func (r *run) execute(req any, handler grpc.UnaryHandler) {
	if r.s.renewer != nil && r.p.lease > 0 {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel() // when the run is settled
		go r.renew(ctx)
	}
	err := error(errNoReturn{"the handler exited without returning"})
	var resp any
	defer func() { r.conclude(resp, err) }() // also when the handler calls runtime.Goexit
	func() {
		defer func() {
			if v := recover(); v != nil {
				r.panic = &HandlerPanic{Value: v, Stack: debug.Stack()}
				err = errNoReturn{"handler panicked"}
			}
		}()
		resp, err = handler(r.ctx, req)
	}()
}

// conclude finds out what the run ended with and has it recorded.
func (r *run) conclude(resp any, err error) {
	e, committed, unknown := r.commit.Ended()
	if r.recorder != nil {
		r.recorder.close()
	}
	switch {
	case unknown:
		r.unknown = true
	case committed:
		r.overruled, r.out = true, r.put
	case r.reconciles && !r.decided(resp, err):
		if r.panic != nil {
			r.tell(EventPanic, codes.Internal, "")
		}
		r.undecided, r.panic = true, nil
		e = store.End{State: store.Abandoned}
	default:
		e = r.settle(resp, err)
	}
	r.tellEnd(committed)
	r.cancel(context.Canceled) // as gRPC does when a handler has returned; recording its end may take long
	close(r.ended)
	if unknown {
		r.over()
		r.finished(store.ErrUnusable)
		return
	}
	if committed {
		r.finished(nil)
		return
	}
	stall := time.AfterFunc(settlePatience, func() { close(r.stalled) })
	defer stall.Stop()
	r.finished(r.s.untilSettled(func(ctx context.Context) error {
		err := r.s.store.Finish(ctx, r.id, r.token, e)
		if err != nil && !errors.Is(err, store.ErrLost) {
			r.s.storeFailed(ctx, r.p.method, r.id, err)
		}
		return err
	}))
}

// over tells the store that a run has ended of which it could not say whether its transaction committed: a store that is
// latched can be closed then. If it did commit, this changes nothing.
func (r *run) over() {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	_ = r.s.store.Finish(ctx, r.id, r.token, store.End{State: store.Abandoned}) // nothing better is known afterwards
}

// tellEnd tells observers of ends that somebody should look at.
func (r *run) tellEnd(committed bool) {
	if r.panic != nil {
		r.tell(EventPanic, codes.Internal, "")
	}
	switch {
	case r.unknown || r.undecided || r.reconciles:
	case r.out.class == classAmbiguous:
		r.tell(EventAmbiguous, statusCode(r.err), hintAmbiguous)
	case r.p.inTransaction && r.err == nil && !committed:
		r.tell(EventOutsideTransaction, codes.OK, hintOutside)
	}
}

// settle turns the handler's return into what is recorded.
func (r *run) settle(resp any, err error) store.End {
	if err != nil {
		resp = nil
	}
	r.resp, r.err = resp, err
	out, e, encodeErr := r.encodeOutcome(resp, err)
	if encodeErr != nil {
		// The effect may have happened, and its answer cannot be given to anybody.
		r.resp, r.err = nil, errNoReturn{"the response cannot be kept: " + encodeErr.Error()}
		out, e, _ = r.encodeOutcome(nil, r.err) // an error without details can always be encoded
	}
	r.out = out
	return e
}

// encode is how a store with transactions learns what to record.
func (r *run) encode(resp any, err error) (store.End, error) {
	out, _, encodeErr := r.encodeOutcome(resp, err)
	if encodeErr != nil {
		return store.End{}, encodeErr
	}
	out.class = classFinal // it is committed together with its effect
	r.put = out
	return out.end(r.p)
}

func (r *run) encodeOutcome(resp any, err error) (out outcome, e store.End, encodeErr error) {
	defer func() {
		if recover() != nil {
			encodeErr = errors.New("marshalling panicked") // with what may hold anything
		}
	}()
	var header, trailer metadata.MD
	if r.recorder != nil {
		header, trailer, _ = r.recorder.recorded()
	}
	out, encodeErr = r.s.newOutcome(r.p, resp, err, header, trailer)
	if encodeErr != nil {
		return out, e, encodeErr
	}
	e, encodeErr = out.end(r.p)
	return out, e, encodeErr
}

// finished ends the run.
func (r *run) finished(result error) {
	r.result = result
	r.s.unregister(r) // first: a call that comes after an answer has to find what the store says, not this run
	close(r.settled)
}
