package boltstore

import "github.com/oncerpc/oncerpc/store"

// Stats are counts of a store, for metrics.
type Stats struct {
	// Running and Abandoned are the claims of these states.
	Running, Abandoned int
	// Kept is how many Done and Released records the file holds, expired ones that were not swept yet included.
	Kept int
	// Segments is how many buckets they lie in.
	Segments int
	// Commits is how many transactions were committed since the store was opened, Operations how many calls of Begin,
	// Finish, Resolve and Get went through the committer, and transactions of closures.
	Commits, Operations uint64
}

// Stats returns the counts as they stand.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := Stats{
		Kept:       s.index.len,
		Segments:   len(s.segments) - len(s.handles),
		Commits:    s.commits,
		Operations: s.operations.Load(),
	}
	for _, c := range s.claims {
		if c.rec.State == store.Running {
			st.Running++
		} else {
			st.Abandoned++
		}
	}
	return st
}
