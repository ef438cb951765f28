package interceptor

import (
	"context"
	"fmt"
	"time"
)

// enter counts a keyed call as work, unless the server is draining.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isDraining() {
		return false
	}
	s.work++
	return true
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workDone()
}

// workDone is called with s.mu held.
func (s *Server) workDone() {
	s.work--
	if s.work == 0 && s.isDraining() {
		select {
		case <-s.idle:
		default:
			close(s.idle)
		}
	}
}

func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// Drain prepares the server's end: from now on it refuses keyed calls (DRAINING) and answers those that wait for a run
// IN_PROGRESS, and it returns nil once every run has ended and its outcome is recorded. When ctx ends first, it cancels
// the contexts of the runs that are left with the cause [ErrDraining], gives them one second, answers the callers that
// remain IN_PROGRESS, and returns an error with the number of runs left; their outcomes are still recorded if they end
// before the process does. Call it before GracefulStop, and close the store after both.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	if !s.isDraining() {
		close(s.draining)
		if s.work == 0 {
			close(s.idle)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
		return nil
	case <-ctx.Done():
	}
	s.cancelRuns()
	grace := time.NewTimer(time.Second)
	defer grace.Stop()
	select {
	case <-s.idle:
		return nil
	case <-grace.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.expelled:
	default:
		close(s.expelled)
	}
	return fmt.Errorf("interceptor: drain: %d runs left, and %d claims to give back: %w", len(s.runs), s.releases, ctx.Err())
}

func (s *Server) cancelRuns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutOff = true
	for _, r := range s.runs {
		r.cancel(ErrDraining)
	}
}

func (s *Server) released() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releases--
	s.workDone()
}
