package boltstore

import (
	"slices"

	"github.com/oncerpc/oncerpc/store"
)

// claimInMemory claims an ID of which there is no trace, for a run whose claim may vanish with the process. It is one
// step under the lock under which publish makes a durable commit known: whoever looks finds the claim, or the record
// that its end has written. ok is false if the committer has to decide: there may be a record, or the transaction under
// way works on this ID.
func (s *Store) claimInMemory(c store.Claim) (r store.Record, ok bool) {
	t := tag(s.hash(c.ID))
	fingerprint := slices.Clone(c.Fingerprint)
	var room [4]location
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.now()
	if s.refusal(true) != nil || now.Before(s.fullUntil) || !s.room.has(len(s.claims)+1) ||
		s.claims[c.ID] != nil || s.busy[c.ID] != nil || len(s.index.find(t, room[:0])) > 0 {
		return store.Record{}, false
	}
	r = store.Record{
		ID:          c.ID,
		Token:       c.Token,
		Owner:       c.Owner,
		Method:      c.Method,
		Fingerprint: fingerprint,
		State:       store.Running,
		Attempt:     1,
		First:       now,
		Started:     now,
	}
	s.claims[c.ID] = &claim{rec: r, volatile: true}
	return r, true
}
