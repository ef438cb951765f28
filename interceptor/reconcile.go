package interceptor

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/oncerpc/oncerpc/store"
)

// Reconcile finds out what became of a run whose end a crash hides: it asks the system that the handler called. rec is
// the abandoned record and req the retry's request, equal to the lost one. A response says that the run succeeded with
// it; [Final] says that it failed with an error; [NoEffect] says that nothing happened, so that the next call runs.
// Anything else, a nil response included, says that it cannot tell.
type Reconcile func(ctx context.Context, rec store.Record, req proto.Message) (proto.Message, error)

// WithReconcile has f asked before a call of a method is answered OUTCOME_UNKNOWN. f runs under a claim, so one at a
// time for a key over all servers, and calls with that key wait for it as for a run. Its context ends as a handler's
// does. What it returns becomes the outcome of the key, under the terms of [Reconcile]; when it cannot tell, panics or
// fails otherwise, the record stays as it is and the next retry asks again. It panics if f is nil or the method has one
// already; [NewServer] panics if the method is not linked into the program.
func WithReconcile(fullMethod string, f Reconcile) ServerOption {
	if f == nil {
		panic("interceptor: WithReconcile: no function")
	}
	return serverOption(func(o *serverOptions) {
		if o.reconcile == nil {
			o.reconcile = make(map[string]Reconcile)
		}
		if o.reconcile[fullMethod] != nil {
			panic(fmt.Sprintf("interceptor: WithReconcile: method %s has two", fullMethod))
		}
		o.reconcile[fullMethod] = f
	})
}

func (c *call) reconciler() Reconcile { return c.s.opts.reconcile[c.p.method] }

// startReconcile asks what became of the run whose claim this call has taken over.
func (c *call) startReconcile(rec store.Record) (any, error) {
	f := c.reconciler()
	abandoned := rec
	abandoned.State, abandoned.Attempt = store.Abandoned, rec.Attempt-1
	return c.start(rec, func(ctx context.Context, _ any) (any, error) {
		resp, err := f(ctx, abandoned, c.req)
		if isNil(resp) {
			return nil, err
		}
		return resp, err
	})
}

// decided reports whether what a reconcile function returned tells what became of the run.
func (r *run) decided(resp any, err error) bool {
	if _, _, encodeErr := r.encodeOutcome(resp, err); encodeErr != nil {
		return false
	}
	if err == nil {
		return resp != nil
	}
	_, stated := statedClass(err)
	return stated
}
