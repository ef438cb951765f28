package interceptor

import (
	"time"

	"google.golang.org/grpc/status"

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
