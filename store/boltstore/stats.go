package boltstore

import (
	"os"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
)

// Stats are counts of a store, for metrics. The bytes are those of the whole file, with what an application keeps in it
// beside the records.
type Stats struct {
	// Running and Abandoned are the claims of these states.
	Running, Abandoned int
	// Released and Done are the records of these states, those that have expired and were not swept yet included. A
	// record that cannot be read counts as one of them.
	Released, Done int
	// Segments is how many ranges they lie in. Each is dropped as a whole.
	Segments int
	// Size is how large the file is, and MaxSize the bound set by [WithMaxSize], 0 if there is none.
	Size, MaxSize int64
	// Live is how much of Size is in use, in whole pages, and Free how much is there to be written before the file
	// grows. They are 0 on a store that is closed, and Free is what lies behind the last page alone on a database of
	// the application that has NoStatistics set.
	Live, Free int64
	// Commits is how many transactions were committed since the store was opened, Operations how many calls of Begin,
	// Finish, Resolve and Get went through the committer, or were committed with a closure: Operations ÷ Commits is how
	// many share one. Calls that needed no transaction do not count.
	Commits, Operations uint64
}

// Stats returns the counts as they stand. It costs about as much as looking for a record, and a look at each claim.
func (s *Store) Stats() Stats {
	st := s.counts()
	var pages bbolt.Stats
	var used, page int64
	err := s.view(func(tx *bbolt.Tx) error {
		pages, used, page = s.db.Stats(), tx.Size(), int64(s.db.Info().PageSize)
		return nil
	})
	info, statErr := os.Stat(s.path)
	if err != nil || statErr != nil {
		return st
	}
	st.Size = max(info.Size(), used)
	st.Live = used - page*int64(pages.FreePageN+pages.PendingPageN)
	st.Free = st.Size - st.Live
	return st
}

func (s *Store) counts() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st := Stats{
		Released:   s.released,
		Done:       s.kept - s.released,
		Segments:   len(s.segments) - len(s.handles),
		MaxSize:    s.room.max,
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
