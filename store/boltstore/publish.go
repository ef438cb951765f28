package boltstore

import (
	"container/heap"
	"time"
)

// publish makes the effects of a transaction that is durable, or wrote nothing, known to readers, and wakes those who
// waited for the claims that ended. took is how long the transaction was.
func (s *Store) publish(fx *effects, took time.Duration) {
	if fx.wrote {
		failpoint("commit.durable")
		defer failpoint("commit.published")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = nil
	for id, st := range fx.ids {
		if !st.changed {
			continue
		}
		old := s.claims[id]
		if st.claim == nil {
			delete(s.claims, id)
		} else {
			s.claims[id] = st.claim
		}
		if old != nil && old.ended != nil && (st.claim == nil || !st.claim.rec.HeldBy(old.rec.Token)) {
			close(old.ended)
		}
	}
	for _, slot := range fx.freed {
		s.slots.release(slot)
	}
	s.publishSegments(fx)
	for _, c := range fx.changes {
		s.count(c)
		if c.add {
			s.index.add(c.tag, c.loc)
		} else {
			s.index.remove(c.tag, c.loc)
			for l := range s.lists {
				l.lose(c.id, c.loc)
			}
		}
	}
	if fx.dropped != nil {
		failpoint("sweep.durable")
		s.forget(fx.dropped, fx.droppedKeys)
		s.sweepFrom = s.clock.now().Add(sweepPace * took)
	}
	if fx.wrote {
		s.isDurable(int64(fx.id))
		s.commits++
	}
}

// count counts a record that has come or gone.
func (s *Store) count(c change) {
	n, released := 1, 0
	switch {
	case c.odd:
		return
	case !c.add:
		n = -1
	}
	if c.released {
		released = n
	}
	seg := s.segments[c.loc.handle()]
	seg.kept, s.kept = seg.kept+n, s.kept+n
	seg.keptReleased, s.released = seg.keptReleased+released, s.released+released
}

// publishSegments makes new, grown and sealed segments known.
func (s *Store) publishSegments(fx *effects) {
	s.handles = s.handles[:len(s.handles)-len(fx.handles)]
	for range fx.fresh {
		s.segments = append(s.segments, nil)
	}
	for handle, seg := range fx.touched {
		s.segments[handle] = seg
	}
	for stream, seg := range fx.open {
		s.open[stream] = seg
		if seg == nil {
			delete(s.open, stream)
		}
	}
	for _, seg := range fx.sealed {
		heap.Push(&s.expiring, seg)
	}
}

// forget takes a dropped segment out of memory.
func (s *Store) forget(seg *segment, entries []entry) {
	for _, e := range entries {
		s.index.remove(tag(e.hash), at(seg.handle, e.position))
	}
	s.kept, s.released = s.kept-seg.kept, s.released-seg.keptReleased
	s.segments[seg.handle] = nil
	s.handles = append(s.handles, seg.handle)
	if s.open[seg.stream] == seg {
		delete(s.open, seg.stream)
	} else {
		heap.Remove(&s.expiring, 0)
	}
}

// discard forgets the effects of a transaction that was rolled back.
func (fx *effects) discard() {
	fx.s.mu.Lock()
	fx.s.busy = nil
	fx.s.mu.Unlock()
	for _, slot := range fx.taken {
		fx.s.slots.release(slot)
	}
}

// sweepPace is how many times as long as the last drop took the store waits before the next.
const sweepPace = 10

// firstExpiring returns the segment whose records are all expired first, or nil.
func (s *Store) firstExpiring() (first *segment) {
	if len(s.expiring) > 0 {
		first = s.expiring[0]
	}
	for _, seg := range s.open {
		if first == nil || seg.latest < first.latest {
			first = seg
		}
	}
	return first
}
