package boltstore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/oncerpc/oncerpc/store"
)

// Store keeps records in a bbolt file. It is made by [Open] or [New]; its methods may be called concurrently.
type Store struct {
	db          *bbolt.DB
	path        string
	borrowed    bool // the application closes it
	clock       clock
	salt        [16]byte
	incarnation uint64

	queue    queue
	group    group
	stop     chan struct{} // tells the committer to end
	stopped  chan struct{} // it has
	dead     chan struct{} // closed with fault
	fault    atomic.Pointer[error]
	closing  atomic.Bool
	closeMu  sync.Mutex
	isClosed bool

	// writing is held from before a transaction reads memory until after its effects are published. What is below is
	// changed under both locks, except that slots need only writing, and claims that are kept in memory alone need only
	// mu.
	writing gate
	mu      sync.RWMutex

	claims    map[store.ID]*claim
	busy      map[store.ID]*standing // what the transaction under way works on
	index     index
	segments  []*segment // by handle
	handles   []int      // free ones
	open      map[uint8]*segment
	expiring  expiring
	sweepFrom time.Time
	fullUntil time.Time // no claim is tried before
	lists     map[*listing]struct{}
	commits   uint64
	kept      int // records in segments
	released  int // of these

	slots      slots
	room       room
	durable    atomic.Int64 // the last transaction that is known to be
	operations atomic.Uint64
}

var (
	_ store.Store    = (*Store)(nil)
	_ store.Waiter   = (*Store)(nil)
	_ store.Lister   = (*Store)(nil)
	_ store.Resolver = (*Store)(nil)
)

// Begin claims c.ID, or tells what stands in the way, as [store.Store] says. Lease is ignored: one process uses the
// file. A duplicate costs no commit, nor does a claim that is Volatile, unless it takes over an abandoned one.
func (s *Store) Begin(ctx context.Context, c store.Claim) (store.Record, error) {
	r, err := s.begin(ctx, c)
	if err != nil {
		return store.Record{}, fmt.Errorf("boltstore: begin: %w", err)
	}
	return r, nil
}

func (s *Store) begin(ctx context.Context, c store.Claim) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	if err := s.refusal(true); err != nil {
		return store.Record{}, err
	}
	r, sure, err := s.look(c.ID)
	if err != nil || sure && stands(r, c) {
		return r, err
	}
	failpoint("begin.looked")
	if c.Volatile {
		if r, ok := s.claimInMemory(c); ok {
			failpoint("begin.claimed")
			return s.answer(r), nil
		}
	}
	failpoint("begin.asks")
	o := &op{kind: opBegin, id: c.ID, claim: c}
	if err := s.perform(ctx, o); err != nil {
		return store.Record{}, err
	}
	return s.answer(o.rec), nil
}

// Finish ends a claim, as [store.Store] says. It works until [Store.Close] has returned nil.
func (s *Store) Finish(ctx context.Context, id store.ID, token store.Token, e store.End) error {
	err := validate(e)
	if err == nil {
		err = s.perform(ctx, &op{kind: opFinish, id: id, token: token, end: e})
	}
	if errors.Is(err, store.ErrUnusable) {
		s.giveUp(id, token)
	}
	if err != nil {
		return fmt.Errorf("boltstore: finish: %w", err)
	}
	return nil
}

// giveUp notes that a run has ended whose end cannot be recorded: it does not keep Close from closing.
func (s *Store) giveUp(id store.ID, token store.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.claims[id]; c != nil && c.rec.HeldBy(token) {
		c.over = true
	}
}

// Resolve sets by hand what a crash or an ambiguous outcome left open, as [store.Resolver] says.
func (s *Store) Resolve(ctx context.Context, id store.ID, was, token store.Token, e store.End) error {
	err := validate(e)
	if err == nil {
		err = s.perform(ctx, &op{kind: opResolve, id: id, was: was, token: token, end: e})
	}
	if err != nil {
		return fmt.Errorf("boltstore: resolve: %w", err)
	}
	return nil
}

func validate(e store.End) error {
	switch e.State {
	case store.Done, store.Released, store.Abandoned:
		return nil
	}
	return fmt.Errorf("a run cannot end %v", e.State)
}

// Get returns the record as it stands, as [store.Store] says. An ID that was never claimed costs no transaction.
func (s *Store) Get(ctx context.Context, id store.ID) (store.Record, error) {
	r, err := s.get(ctx, id)
	if err != nil {
		return store.Record{}, fmt.Errorf("boltstore: get: %w", err)
	}
	return r, nil
}

func (s *Store) get(ctx context.Context, id store.ID) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	if err := s.refusal(false); err != nil {
		return store.Record{}, err
	}
	r, sure, err := s.look(id)
	if err != nil || sure {
		return r, err
	}
	o := &op{kind: opGet, id: id}
	if err := s.perform(ctx, o); err != nil {
		return store.Record{}, err
	}
	return s.answer(o.rec), nil
}

// Wait returns when token no longer holds the claim of id, as [store.Waiter] says. It is woken by the commit that ends
// the claim.
func (s *Store) Wait(ctx context.Context, id store.ID, token store.Token) error {
	if err := s.wait(ctx, id, token); err != nil {
		return fmt.Errorf("boltstore: wait: %w", err)
	}
	return nil
}

func (s *Store) wait(ctx context.Context, id store.ID, token store.Token) error {
	if err := s.refusal(false); err != nil {
		return err
	}
	ended := s.ended(id, token)
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.dead:
		return s.refusal(false)
	}
}

// ended returns a channel that is closed when token no longer runs, nil if that is so already.
func (s *Store) ended(id store.ID, token store.Token) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.claims[id]
	if c == nil || !c.rec.HeldBy(token) {
		return nil
	}
	if c.ended == nil {
		c.ended = make(chan struct{})
	}
	return c.ended
}

// refusal is the answer of a store that is latched or closed, or, to Begin, of one that closes; nil if it is neither.
func (s *Store) refusal(begin bool) error {
	if fault := s.fault.Load(); fault != nil {
		return *fault
	}
	if begin && s.closing.Load() {
		return errClosing
	}
	return nil
}

var (
	errClosing = fmt.Errorf("%w: it is closing", store.ErrUnusable)
	errClosed  = fmt.Errorf("%w: it is closed", store.ErrUnusable)
)

// look reads the record of an ID without the committer. sure: that is how it stands. What memory does not know of is
// not there yet, although bbolt may show it: a commit is readable before it is durable.
func (s *Store) look(id store.ID) (r store.Record, sure bool, err error) {
	var locs [4]location
	var places [4]place
	hash := s.hash(id)
	s.mu.RLock()
	if c := s.claims[id]; c != nil {
		r = c.rec
		s.mu.RUnlock()
		return s.answer(r), true, nil
	}
	found := places[:0]
	for _, loc := range s.index.find(tag(hash), locs[:0]) {
		found = append(found, place{s.segments[loc.handle()].number, loc.position()})
	}
	s.mu.RUnlock()
	r = store.Record{ID: id, Now: s.clock.now()}
	if len(found) == 0 {
		return r, true, nil
	}
	failpoint("look.found")
	err = s.view(func(tx *bbolt.Tx) error {
		r, sure = s.readFirst(tx, id, found)
		return nil
	})
	return r, sure, err
}

// place names a location for readers without a lock: unlike handles, the numbers of segments are never used again.
type place struct {
	segment  uint64
	position int
}

// readFirst returns the record of id at one of several places, absent if it is at none of them. It is not sure if one
// of them is gone or cannot be read.
func (s *Store) readFirst(tx *bbolt.Tx, id store.ID, places []place) (r store.Record, sure bool) {
	sure = true
	for _, p := range places {
		b := tx.Bucket(rootBucket).Bucket(segmentsBucket).Bucket(segmentName(p.segment))
		_, v := seekRecord(b, p.position)
		found, _, err := decodeRecord(v)
		switch {
		case err != nil:
			sure = false
		case found.ID == id:
			found.Now = s.clock.now()
			if expired(found.Expires, found.Now) {
				found = store.Record{ID: id, Now: found.Now}
			}
			return found, true
		}
	}
	return store.Record{ID: id, Now: s.clock.now()}, sure
}

// view is db.View, with panics turned into errors: of pages that make no sense, or that the system cannot read.
func (s *Store) view(fn func(*bbolt.Tx) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", store.ErrUnreadable, p)
		}
	}()
	err = s.db.View(fn)
	if errors.Is(err, bbolterrors.ErrDatabaseNotOpen) {
		return errClosed
	}
	return err
}

// answer is a record as the caller gets it: its own copy, with the time.
func (s *Store) answer(r store.Record) store.Record {
	r.Fingerprint = slices.Clone(r.Fingerprint)
	r.Outcome = slices.Clone(r.Outcome)
	r.Now = s.clock.now()
	return r
}

// hash is salted, so that nobody can choose IDs that collide in the index.
func (s *Store) hash(id store.ID) uint64 {
	var b [48]byte
	copy(b[:], s.salt[:])
	copy(b[16:], id[:])
	sum := sha256.Sum256(b[:])
	return binary.BigEndian.Uint64(sum[:])
}
