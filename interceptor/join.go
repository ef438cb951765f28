package interceptor

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
)

// localRun is this process's run of an ID, if one is under way.
func (s *Server) localRun(id store.ID) *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
}

// register makes r findable, unless Drain's time is over.
func (s *Server) register(r *run) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cutOff {
		return false
	}
	s.runs[r.id] = r
	s.work++
	return true
}

func (s *Server) unregister(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[r.id] == r {
		delete(s.runs, r.id)
	}
	if r.callerless {
		s.callerless--
	}
	if r.timeout != nil {
		r.timeout.Stop()
	}
	s.workDone()
}

func (s *Server) overCallerless() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.callerless >= s.opts.callerless
}

// patience is how much longer this call may wait for another: the method's wait in all, and less than the caller's
// deadline, so that the answer still arrives.
func (c *call) patience() time.Duration {
	now := time.Now()
	if c.waitUntil.IsZero() {
		c.waitUntil = now.Add(c.p.wait)
		if deadline, ok := c.ctx.Deadline(); ok {
			left := deadline.Sub(now)
			if until := deadline.Add(-min(100*time.Millisecond, left/10)); until.Before(c.waitUntil) {
				c.waitUntil = until
			}
		}
	}
	return c.waitUntil.Sub(now)
}

// joinRun waits for a run of this process and takes its outcome.
func (c *call) joinRun(r *run) (any, error) {
	same, known := c.sameRequest(r.fingerprint)
	switch {
	case !known:
		return nil, c.unreadable("its fingerprint algorithm is not known to this server")
	case !same:
		return nil, c.reused()
	}
	if !c.s.addWaiter(&r.waiters) {
		return nil, c.overloaded("too many calls wait", storeWait)
	}
	defer c.s.removeWaiter(&r.waiters)
	over, err := c.await(r.settled, r.stalled)
	if err != nil {
		return nil, err
	}
	if over {
		return nil, c.inProgress(time.Since(r.began))
	}
	st, err := c.ended(r, StatusJoined)
	if err != nil {
		return nil, err
	}
	return c.answer(r.out, st, r.first)
}

// await waits for one of two events. over: the call has waited long enough, or the server is draining.
func (c *call) await(settled, stalled <-chan struct{}) (over bool, err error) {
	select {
	case <-settled:
		return false, nil
	case <-stalled:
		return false, nil
	default:
	}
	patience := c.patience()
	if patience <= 0 {
		return true, nil
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-settled:
		return false, nil
	case <-stalled:
		return false, nil
	case <-c.ctx.Done():
		c.left(0)
		return false, status.FromContextError(c.ctx.Err()).Err()
	case <-timer.C:
	case <-c.s.draining:
	}
	return true, nil
}

func (s *Server) addWaiter(perKey *int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addWaiterLocked(perKey)
}

func (s *Server) addWaiterLocked(perKey *int) bool {
	if *perKey >= s.opts.waitersPerKey || s.waiting >= s.opts.waitersInAll {
		return false
	}
	*perKey++
	s.waiting++
	return true
}

func (s *Server) removeWaiter(perKey *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*perKey--
	s.waiting--
}

// joinRecord answers a call that waited for a run elsewhere with what that ended with. It never runs the handler: the
// call gets the end of the run that it joined.
func (c *call) joinRecord(rec store.Record) (any, error) {
	if rec.State == store.Absent {
		return nil, c.inProgress(0)
	}
	if err := c.checkRecord(rec); err != nil {
		return nil, err
	}
	switch {
	case rec.State == store.Done:
		return c.replay(rec, StatusJoined)
	case rec.State == store.Released && len(rec.Outcome) > 0:
		return c.replay(rec, StatusReleased)
	case rec.State == store.Abandoned:
		return nil, c.outcomeUnknown()
	}
	return nil, c.inProgress(rec.Now.Sub(rec.Started))
}

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

// watch waits on the store for a run elsewhere. One watch serves all callers here of one ID.
type watch struct {
	waiters int // guarded by s.mu
	done    chan struct{}
	cancel  context.CancelFunc

	rec store.Record // set before done is closed
	err error
}

// watch waits until the run of rec has ended and returns the record as it then stands.
func (c *call) watch(rec store.Record) (store.Record, error) {
	s := c.s
	began := time.Now()
	s.mu.Lock()
	w := s.watches[c.id]
	fresh := w == nil
	if fresh {
		w = &watch{done: make(chan struct{})}
	}
	if !s.addWaiterLocked(&w.waiters) {
		s.mu.Unlock()
		return rec, c.overloaded("too many calls wait", storeWait)
	}
	if fresh {
		var ctx context.Context
		ctx, w.cancel = context.WithCancel(context.Background())
		s.watches[c.id] = w
		go s.watchRun(ctx, w, c.id, rec.Token)
	}
	s.mu.Unlock()
	defer s.leaveWatch(w, c.id)
	over, err := c.await(w.done, nil)
	switch {
	case err != nil:
		return rec, err
	case over:
		return rec, c.inProgress(rec.Now.Sub(rec.Started) + time.Since(began))
	case errors.Is(w.err, store.ErrUnreadable):
		return rec, c.unreadable("the store cannot read it")
	case w.err != nil:
		return rec, c.storeUnavailable(w.err)
	}
	return w.rec, nil
}

func (s *Server) leaveWatch(w *watch, id store.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.waiters--
	s.waiting--
	if w.waiters == 0 {
		s.dropWatch(w, id)
	}
}

// dropWatch is called with s.mu held.
func (s *Server) dropWatch(w *watch, id store.ID) {
	w.cancel()
	if s.watches[id] == w {
		delete(s.watches, id)
	}
}

// watchRun is the goroutine of a watch: it ends when the record is not running any more, or nobody waits.
func (s *Server) watchRun(ctx context.Context, w *watch, id store.ID, token store.Token) {
	defer close(w.done)
	for poll := 50 * time.Millisecond; ; poll = min(2*poll, time.Second) {
		if s.waiter != nil {
			w.err = s.waiter.Wait(ctx, id, token)
		} else {
			w.err = sleep(ctx, jitter(poll))
		}
		if w.err == nil {
			w.rec, w.err = s.store.Get(ctx, id)
		}
		if w.err != nil || w.rec.State != store.Running {
			break
		}
		if s.waiter != nil && w.rec.Token == token {
			// Woken for nothing: do not turn in circles.
			if w.err = sleep(ctx, jitter(poll)); w.err != nil {
				break
			}
		}
		token = w.rec.Token
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropWatch(w, id)
}
