package interceptor

import (
	"context"
	"errors"
	"time"

	"github.com/oncerpc/oncerpc/store"
)

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
