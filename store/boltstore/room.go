package boltstore

import (
	"errors"
	"fmt"
	"sync/atomic"

	"go.etcd.io/bbolt"
)

const (
	defaultMaxSize = 10 << 30
	leastMaxSize   = 1 << 20
)

// WithMaxSize bounds how large the file may grow, in bytes. The default is 10 GiB, and no bound for a database of the
// application. It panics if bytes is less than 1 MiB.
//
// Begin answers [store.ErrFull] instead of claiming when a sixteenth of the bound, at least 512 KiB, or what the claims
// that are held will need to end, would no longer be free. Space of records that have expired is free once they are
// swept. What ends a claim is never refused for the bound: the file outgrows it rather than lose an outcome, if calls
// that run at the same time end with outcomes that the reserve has no room for, if outcomes are so large, a hundred
// KiB and more, that no free pages lie side by side for them, or if what the application writes with [Transact] takes it.
// A file that is larger already stays as large.
func WithMaxSize(bytes int64) Option {
	if bytes < leastMaxSize {
		panic(fmt.Sprintf("boltstore: WithMaxSize: %d bytes are less than 1 MiB", bytes))
	}
	return maxSize(bytes)
}

type maxSize int64

func (m maxSize) apply(o *options) { o.maxSize = int64(m) }

// room tells how many more claims the file has room for, and sets the steps in which it grows. It changes within write
// transactions alone.
type room struct {
	max     int64        // 0: there is no bound
	grows   bool         // the steps are the store's to set
	left    atomic.Int64 // what claims may take, those that stand included, as of the last transaction
	outcome atomic.Int64 // about how large the records of ended claims are at present
}

const (
	leastReserve = 512 << 10
	firstOutcome = 1 << 10
	leastStep    = 256 << 10
	mostStep     = 16 << 20
)

// measure finds out what is left.
func (r *room) measure(tx *bbolt.Tx) error {
	if r.max == 0 {
		return nil
	}
	db := tx.DB()
	st := db.Stats()
	if st.TxN == 0 {
		return errors.New("WithMaxSize: the database has NoStatistics set, so that nobody knows what is free in it")
	}
	free := st.FreePageN
	if st.OpenTxN == 0 {
		free += st.PendingPageN // else readers may hold it
	}
	used := tx.Size() - int64(free)*int64(db.Info().PageSize)
	r.left.Store(r.max - used - max(r.max/16, leastReserve))
	return nil
}

// claim is what a claim and its end may take: pages are not full, and a page is written anew before the old one is free.
func (r *room) claim() int64 { return 2 * (r.outcome.Load() + 256) }

// has reports whether there is room for n claims, those that stand included.
func (r *room) has(n int) bool {
	return r.max == 0 || int64(n)*r.claim() <= r.left.Load()
}

// ended notes how large the record of a claim that ended is.
func (r *room) ended(bytes int) {
	was := r.outcome.Load()
	r.outcome.Store(was + (int64(bytes)-was)/64)
}

// prepare sets the step in which the file grows, if the commit of tx makes it grow: in proportion, so that a small store
// is a small file; close to the bound less and less. bytes is about what the commit writes.
func (r *room) prepare(tx *bbolt.Tx, bytes int64) {
	if !r.grows {
		return
	}
	step := min(max(tx.Size()/16, leastStep), mostStep)
	if r.max > 0 {
		step = max(min(step, (r.max-tx.Size()-bytes)/2), 0)
	}
	tx.DB().AllocSize = int(step) &^ (pageSize - 1)
}
