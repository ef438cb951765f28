package storetest_test

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

// A suite that nothing fails proves nothing: each of these stores breaks one rule, and the case named with it must
// notice.
func TestBrokenStores(t *testing.T) {
	for _, faults := range [][]fault{beginFaults, finishFaults, timeFaults, powerFaults, valueFaults, reopenFaults} {
		for _, f := range faults {
			t.Run(f.name, func(t *testing.T) {
				group, _, _ := strings.Cut(f.caughtBy, "/")
				caughtBy := slices.Sorted(maps.Keys(storetest.Failures(t, f.open, group)))
				require.Contains(t, caughtBy, f.caughtBy)
				t.Logf("caught by %v", caughtBy)
			})
		}
	}
}

func TestMemoryIsNotBroken(t *testing.T) {
	require.Empty(t, storetest.Failures(t, fault{}.open, ""))
}

type fault struct {
	name     string
	caughtBy string
	apply    func(s *broken)
}

func (f fault) open(t *testing.T) storetest.Subject {
	open, shut := context.WithCancel(context.Background())
	t.Cleanup(shut)
	s := f.on(open, new(storetest.Memory))
	return storetest.Subject{Store: s, Reopen: func() store.Store {
		m := s.Reopen()
		if s.reopen != nil {
			m = s.reopen(m)
		}
		s = f.on(open, m)
		return s
	}}
}

func (f fault) on(open context.Context, m *storetest.Memory) *broken {
	s := &broken{
		Memory: m, open: open, begin: m.Begin, finish: m.Finish, get: m.Get, wait: m.Wait, renew: m.Renew,
		list: m.List, resolve: m.Resolve, seen: func(r store.Record) store.Record { return r },
	}
	if f.apply != nil {
		f.apply(s)
	}
	return s
}

// broken is a Memory of which a fault has replaced something.
type broken struct {
	*storetest.Memory
	open    context.Context // until the test ends
	begin   func(context.Context, store.Claim) (store.Record, error)
	finish  func(context.Context, store.ID, store.Token, store.End) error
	get     func(context.Context, store.ID) (store.Record, error)
	wait    func(context.Context, store.ID, store.Token) error
	renew   func(context.Context, store.ID, store.Token, time.Duration) error
	list    func(context.Context, store.Query) iter.Seq2[store.Record, error]
	resolve func(context.Context, store.ID, store.Token, store.Token, store.End) error
	seen    func(store.Record) store.Record // what becomes of a record on its way out
	reopen  func(*storetest.Memory) *storetest.Memory
}

func (s *broken) Begin(ctx context.Context, c store.Claim) (store.Record, error) {
	r, err := s.begin(ctx, c)
	return s.seen(r), err
}

func (s *broken) Finish(ctx context.Context, id store.ID, token store.Token, e store.End) error {
	return s.finish(ctx, id, token, e)
}

func (s *broken) Get(ctx context.Context, id store.ID) (store.Record, error) {
	r, err := s.get(ctx, id)
	return s.seen(r), err
}

func (s *broken) Wait(ctx context.Context, id store.ID, token store.Token) error {
	return s.wait(ctx, id, token)
}

func (s *broken) Renew(ctx context.Context, id store.ID, token store.Token, lease time.Duration) error {
	return s.renew(ctx, id, token, lease)
}

func (s *broken) List(ctx context.Context, q store.Query) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		for r, err := range s.list(ctx, q) {
			if !yield(s.seen(r), err) {
				return
			}
		}
	}
}

func (s *broken) Resolve(ctx context.Context, id store.ID, was, token store.Token, e store.End) error {
	return s.resolve(ctx, id, was, token, e)
}

// now is the record of id as a store without the fault has it.
func (s *broken) now(id store.ID) store.Record {
	r, _ := s.Memory.Get(context.Background(), id)
	return r
}

// edit changes the record of id behind the store's back.
func (s *broken) edit(id store.ID, change func(r *store.Record)) {
	s.Edit(id, func(r *store.Record, _ *time.Time) { change(r) })
}

// beforeBegin makes do come before every Begin; it may change the claim, and sees the record that stands.
func (s *broken) beforeBegin(do func(c *store.Claim, was store.Record)) {
	s.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
		do(&c, s.now(c.ID))
		return s.Memory.Begin(ctx, c)
	}
}

// afterClaim makes do come after every Begin that claims; it may change the record, and sees what was there before.
func (s *broken) afterClaim(do func(r *store.Record, was store.Record)) {
	s.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
		was := s.now(c.ID)
		r, err := s.Memory.Begin(ctx, c)
		if !r.HeldBy(c.Token) || was.HeldBy(c.Token) {
			return r, err
		}
		s.edit(c.ID, func(r *store.Record) { do(r, was) })
		return s.now(c.ID), err
	}
}

// afterFinish makes do come after every Finish that ended something.
func (s *broken) afterFinish(do func(r *store.Record, e store.End)) {
	s.finish = func(ctx context.Context, id store.ID, token store.Token, e store.End) error {
		was := s.now(id)
		err := s.Memory.Finish(ctx, id, token, e)
		if err == nil && (was.State == store.Running || was.State == store.Abandoned) {
			s.edit(id, func(r *store.Record) { do(r, e) })
		}
		return err
	}
}

// beforeFinish makes do come before every Finish; its error is the answer, and it may change token and end.
func (s *broken) beforeFinish(do func(was store.Record, token *store.Token, e *store.End) error) {
	s.finish = func(ctx context.Context, id store.ID, token store.Token, e store.End) error {
		if err := do(s.now(id), &token, &e); err != nil {
			return err
		}
		return s.Memory.Finish(ctx, id, token, e)
	}
}
