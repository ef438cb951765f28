package storetest_test

import (
	"context"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, openMemory)
}

func TestStoreWithoutPowers(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		s := openMemory(t)
		reopen := s.Reopen
		return storetest.Subject{Store: plain{s.Store}, Reopen: func() store.Store { return plain{reopen()} }}
	})
}

func TestStoreWithAClockOfItsOwn(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Subject {
		s := &skewed{Memory: new(storetest.Memory), skew: -20 * 365 * 24 * time.Hour}
		return storetest.Subject{Store: s, Advance: s.advance}
	})
}

func BenchmarkMemory(b *testing.B) {
	storetest.Benchmark(b, func(*testing.B) store.Store { return new(storetest.Memory) })
}

func openMemory(*testing.T) storetest.Subject {
	m := new(storetest.Memory)
	return storetest.Subject{Store: m, Reopen: func() store.Store {
		m = m.Reopen()
		return m
	}}
}

// plain is a store of one process, which has no powers and no leases.
type plain struct{ s store.Store }

func (p plain) Begin(ctx context.Context, c store.Claim) (store.Record, error) {
	c.Lease = 0
	return p.s.Begin(ctx, c)
}

func (p plain) Finish(ctx context.Context, id store.ID, token store.Token, e store.End) error {
	return p.s.Finish(ctx, id, token, e)
}

func (p plain) Get(ctx context.Context, id store.ID) (store.Record, error) { return p.s.Get(ctx, id) }

// skewed is a Memory whose clock is not time.Now. It goes ahead by moving every record back.
type skewed struct {
	*storetest.Memory
	mu   sync.Mutex
	skew time.Duration
}

func (s *skewed) advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skew += d
	for _, id := range s.IDs() {
		s.Edit(id, func(r *store.Record, leaseEnd *time.Time) {
			for _, t := range []*time.Time{&r.First, &r.Started, &r.Ended, &r.Expires, leaseEnd} {
				if !t.IsZero() {
					*t = t.Add(-d)
				}
			}
		})
	}
}

func (s *skewed) Begin(ctx context.Context, c store.Claim) (store.Record, error) {
	r, err := s.Memory.Begin(ctx, c)
	return s.seen(r), err
}

func (s *skewed) Get(ctx context.Context, id store.ID) (store.Record, error) {
	r, err := s.Memory.Get(ctx, id)
	return s.seen(r), err
}

func (s *skewed) List(ctx context.Context, q store.Query) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		for r, err := range s.Memory.List(ctx, q) {
			if !yield(s.seen(r), err) {
				return
			}
		}
	}
}

func (s *skewed) seen(r store.Record) store.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range []*time.Time{&r.First, &r.Started, &r.Ended, &r.Expires, &r.Now} {
		if !t.IsZero() {
			*t = t.Add(s.skew)
		}
	}
	return r
}
