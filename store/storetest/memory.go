package storetest

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/oncerpc/oncerpc/store"
)

// Memory is a store in memory that has leases and every power. The zero value is an empty store, ready to use, and
// several servers may share one. Its clock is time.Now, so that in a testing/synctest bubble it passes by time.Sleep.
//
// A claim is abandoned when its lease has ended; a claim without a lease is not, before [Memory.Reopen]. A Memory has
// no room to run out of and nothing to close.
type Memory struct {
	mu      sync.Mutex
	records map[store.ID]*memoryRecord
}

var (
	_ store.Store    = (*Memory)(nil)
	_ store.Waiter   = (*Memory)(nil)
	_ store.Renewer  = (*Memory)(nil)
	_ store.Lister   = (*Memory)(nil)
	_ store.Resolver = (*Memory)(nil)
)

// memoryRecord is never changed once it is in the map: a change puts another in its place.
type memoryRecord struct {
	store.Record               // its State is the one last written, see stateAt
	leaseEnd     time.Time     // of a Running record; zero: it has no end
	volatile     bool          // a claim that vanishes with the process
	before       *memoryRecord // what was there before a volatile claim
	replaced     chan struct{} // closed when another takes its place
}

// Begin implements [store.Store].
func (m *Memory) Begin(ctx context.Context, c store.Claim) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	r := m.find(c.ID, now)
	if r == nil {
		m.claim(c, 1, now, now)
		return m.view(c.ID, now), nil
	}
	state := r.stateAt(now)
	switch {
	case !bytes.Equal(r.Fingerprint, c.Fingerprint):
	case state == store.Released:
		m.claim(c, r.Attempt, r.First, now)
	case state == store.Abandoned && r.Attempt < c.TakeoverBelow:
		m.claim(c, r.Attempt+1, r.First, now)
	}
	return m.view(c.ID, now), nil
}

// Finish implements [store.Store].
func (m *Memory) Finish(ctx context.Context, id store.ID, token store.Token, e store.End) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	r := m.find(id, now)
	switch {
	case r == nil || r.Token != token:
		return store.ErrLost
	case r.State == store.Done || r.State == store.Released:
		return nil
	case e.State == store.Abandoned && r.stateAt(now) == store.Abandoned:
		return nil
	}
	return m.end(*r, e, now)
}

// Get implements [store.Store].
func (m *Memory) Get(ctx context.Context, id store.ID) (store.Record, error) {
	if err := ctx.Err(); err != nil {
		return store.Record{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.view(id, time.Now()), nil
}

// Wait implements [store.Waiter].
func (m *Memory) Wait(ctx context.Context, id store.ID, token store.Token) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		held, replaced, leaseEnded := m.watch(id, token)
		if !held {
			return nil
		}
		select {
		case <-replaced:
		case <-leaseEnded:
		case <-ctx.Done():
		}
	}
}

// Renew implements [store.Renewer].
func (m *Memory) Renew(ctx context.Context, id store.ID, token store.Token, lease time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	r := m.find(id, now)
	if r == nil || r.Token != token || r.State != store.Running {
		return store.ErrLost
	}
	if end := now.Add(lease); !r.leaseEnd.IsZero() && r.leaseEnd.Before(end) {
		renewed := *r
		renewed.leaseEnd = end
		m.put(renewed)
	}
	return nil
}

// List implements [store.Lister].
func (m *Memory) List(ctx context.Context, q store.Query) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		m.mu.Lock()
		ids := slices.Collect(maps.Keys(m.records))
		m.mu.Unlock()
		for _, id := range ids {
			r, err := m.Get(ctx, id)
			if err != nil {
				yield(store.Record{}, err)
				return
			}
			if q.Match(r) && !yield(r, nil) {
				return
			}
		}
	}
}

// Resolve implements [store.Resolver].
func (m *Memory) Resolve(ctx context.Context, id store.ID, was, token store.Token, e store.End) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	r := m.find(id, now)
	if r == nil {
		return store.ErrLost
	}
	if r.Token == token {
		return nil
	}
	open := r.stateAt(now) == store.Abandoned || r.State == store.Done && r.Ambiguous
	if r.Token != was || !open {
		return store.ErrLost
	}
	resolved := *r
	resolved.Token = token
	return m.end(resolved, e, now)
}

// Reopen returns what a store would hold that is opened after m's crash: running claims are abandoned, volatile ones
// have never been. It leaves m as it is, and the two share nothing from then on.
func (m *Memory) Reopen() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	reopened := new(Memory)
	for _, r := range m.records {
		if r.volatile {
			r = r.before
		}
		if r == nil {
			continue
		}
		kept := *r
		if kept.State == store.Running {
			kept.leaseEnd = time.Now()
		}
		reopened.put(kept)
	}
	return reopened
}

// find returns the record of id, nil if there is none at now.
func (m *Memory) find(id store.ID, now time.Time) *memoryRecord {
	r := m.records[id]
	if r == nil || !r.Expires.IsZero() && !now.Before(r.Expires) {
		return nil
	}
	return r
}

// view is the record of id as a caller sees it at now, with bytes of its own.
func (m *Memory) view(id store.ID, now time.Time) store.Record {
	r := m.find(id, now)
	if r == nil {
		return store.Record{ID: id, Now: now}
	}
	seen := r.Record
	seen.State = r.stateAt(now)
	seen.Now = now
	seen.Fingerprint = bytes.Clone(r.Fingerprint)
	seen.Outcome = bytes.Clone(r.Outcome)
	return seen
}

func (r *memoryRecord) stateAt(now time.Time) store.State {
	if r.State == store.Running && !r.leaseEnd.IsZero() && !now.Before(r.leaseEnd) {
		return store.Abandoned
	}
	return r.State
}

func (m *Memory) claim(c store.Claim, attempt int, first, now time.Time) {
	r := memoryRecord{
		Record: store.Record{
			ID: c.ID, Token: c.Token, Owner: c.Owner, Method: c.Method, Fingerprint: bytes.Clone(c.Fingerprint),
			State: store.Running, Attempt: attempt, First: first, Started: now,
		},
		volatile: c.Volatile,
	}
	if c.Lease > 0 {
		r.leaseEnd = now.Add(c.Lease)
	}
	if c.Volatile {
		r.before = m.find(c.ID, now)
		if r.before != nil && r.before.volatile {
			r.before = r.before.before
		}
	}
	m.put(r)
}

// end puts r ended by e.
func (m *Memory) end(r memoryRecord, e store.End, now time.Time) error {
	switch e.State {
	case store.Done, store.Released:
		r.Expires = now.Add(e.Retention)
	case store.Abandoned:
		r.Expires = time.Time{}
	default:
		return errors.New("storetest: no run ends " + e.State.String())
	}
	r.State, r.Ambiguous, r.Outcome = e.State, e.Ambiguous, bytes.Clone(e.Outcome)
	r.Ended, r.leaseEnd, r.volatile, r.before = now, time.Time{}, false, nil
	m.put(r)
	return nil
}

func (m *Memory) put(r memoryRecord) {
	if m.records == nil {
		m.records = make(map[store.ID]*memoryRecord)
	}
	if old := m.records[r.ID]; old != nil {
		close(old.replaced)
	}
	r.replaced = make(chan struct{})
	m.records[r.ID] = &r
}

// watch reports whether token holds the claim of id, and if so, the channels that say when to look again.
func (m *Memory) watch(id store.ID, token store.Token) (held bool, replaced <-chan struct{}, leaseEnded <-chan time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	r := m.find(id, now)
	if r == nil || r.Token != token || r.stateAt(now) != store.Running {
		return false, nil, nil
	}
	if !r.leaseEnd.IsZero() {
		leaseEnded = time.After(r.leaseEnd.Sub(now))
	}
	return true, r.replaced, leaseEnded
}
