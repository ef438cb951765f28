package boltstore

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
)

// TransactRepeatable is [Transact] for throughput: closures that are called at the same time share one commit. fn may
// run more than once, since one that fails takes the transaction down in which others have run before it; then those
// run again. So fn must touch nothing but its tx, and what it leaves elsewhere must come from its last run. It sees what
// the closures before it wrote; those commit if it does.
//
// fn runs in its caller's goroutine, one closure at a time. Do not rely on either. A panic or an exit goes on in the
// goroutine of the closure's own caller, and touches no other.
func TransactRepeatable[T any](ctx context.Context, s *Store, fn func(tx *bbolt.Tx) (T, error)) (T, error) {
	return transact(ctx, fn, s.together)
}

// together runs a closure in a transaction that others may share.
func (s *Store) together(c *closure) error {
	m := &member{closure: c, orders: make(chan order, 1), reports: make(chan report, 1)}
	for {
		// Each run is a transaction to the guarded call: one that panics is then known to be rolled back, although an
		// earlier run came to its end.
		err := c.guarded(s, func() error { return m.turn(s) })
		if err != errAgain { //nolint:errorlint // ours alone
			m.resign()
			return err
		}
	}
}

// member is a closure of a group. Its goroutine and the leader's take turns: an order is answered by a report, until an
// order tells how it ends.
type member struct {
	closure *closure
	state   atomic.Uint32 // opQueued, opTaken or opWithdrawn
	orders  chan order
	reports chan report
	held    *order // arrived and not carried out
	runs    int    // the leader's count
}

// order tells a member to run its closure in tx, or, if tx is nil, how it ended.
type order struct {
	tx  *bbolt.Tx
	err error
}

// report is what a run came to.
type report struct {
	kind reportKind
	op   *op // of a run that passed
}

type reportKind uint8

const (
	runFailed  reportKind = iota // its writes must go
	runPassed                    // it waits for what becomes of them
	runSkipped                   // it wrote nothing
)

// errAgain ends a run that was rolled back because of another.
var errAgain = errors.New("to be run again")

// turn carries out the next order. It joins a group first, if the member has not.
func (m *member) turn(s *Store) error {
	o := m.held
	m.held = nil
	if o == nil {
		next, err := m.join(s)
		if err != nil {
			return err
		}
		o = &next
		if o.tx == nil {
			return o.err
		}
		if err := m.closure.ctx.Err(); err != nil {
			m.reports <- report{kind: runSkipped}
			return err
		}
	}
	if err := m.run(o.tx); err != nil {
		return err
	}
	next := <-m.orders
	if next.tx == nil {
		return next.err
	}
	m.held = &next
	return errAgain
}

// run runs the closure and reports, also if it panics or exits.
func (m *member) run(tx *bbolt.Tx) (err error) {
	r := report{kind: runFailed}
	defer func() { m.reports <- r }()
	o, err := m.closure.run(tx)
	if err == nil {
		r = report{kind: runPassed, op: o}
	}
	return err
}

// resign answers an order that the guarded call did not let through.
func (m *member) resign() {
	if m.held != nil {
		m.reports <- report{kind: runSkipped}
	}
}

// join waits for the first order, or for the end of the context, as long as no leader has taken the member.
func (m *member) join(s *Store) (order, error) {
	ctx := m.closure.ctx
	if err := ctx.Err(); err != nil {
		return order{}, err
	}
	s.group.add(s, m)
	select {
	case o := <-m.orders:
		return o, nil
	case <-ctx.Done():
		if m.state.CompareAndSwap(opQueued, opWithdrawn) {
			return order{}, ctx.Err()
		}
		return <-m.orders, nil
	}
}

// group holds the closures that wait for a leader. There is one while any wait.
type group struct {
	mu      sync.Mutex
	waiting []*member
	led     bool
}

// groupSize bounds what one commit has to wait for.
const groupSize = 256

func (g *group) add(s *Store, m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, m)
	if !g.led {
		g.led = true
		go s.lead()
	}
}

// take takes the next members. If there are none, the leader is none any more.
func (g *group) take() []*member {
	g.mu.Lock()
	defer g.mu.Unlock()
	var taken []*member
	for len(g.waiting) > 0 && len(taken) < groupSize {
		if m := g.waiting[0]; m.state.CompareAndSwap(opQueued, opTaken) {
			taken = append(taken, m)
		}
		g.waiting[0] = nil
		g.waiting = g.waiting[1:]
	}
	g.led = len(taken) > 0
	return taken
}

// lead has the closures that wait run and committed, until none waits. Like the committer it lets those who are about
// to ask go first.
func (s *Store) lead() {
	for s.leadOnce() {
		runtime.Gosched()
	}
}

func (s *Store) leadOnce() bool {
	s.writing.Lock()
	defer s.writing.Unlock()
	members := s.group.take()
	if len(members) == 0 {
		return false
	}
	late, left, err := s.leadGroup(members)
	for i, m := range left {
		if i == 0 {
			m.closure.late = late // one of them has registered it
		}
		m.orders <- order{err: err}
	}
	return true
}

// leadGroup commits what can be committed of a group. left are those that have to be told err, the others have left.
//
// A closure that fails costs no commit, and as few runs of others as can be: after the first failure each one that has
// not run yet runs alone, and is rolled back. Those that have passed then run together.
func (s *Store) leadGroup(members []*member) (late func(), left []*member, err error) {
	if err := s.refusal(false); err != nil {
		return nil, members, err
	}
	for len(members) > 0 {
		started := time.Now()
		t, err := s.transaction()
		if err != nil {
			return nil, members, err
		}
		passed, rest, ops, failed := s.runAll(t.tx, members)
		if !failed {
			if len(passed) == 0 {
				t.rollback()
				return nil, nil, nil
			}
			err := s.commitWith(t, ops, started)
			return t.late, passed, err
		}
		t.rollback()
		members = passed
		for i, m := range rest {
			ok, err := s.runAlone(m)
			if err != nil {
				return nil, append(members, rest[i:]...), err
			}
			if ok {
				members = append(members, m)
			}
		}
	}
	return nil, nil, nil
}

// runAll runs closures one after another in tx, until one has failed; rest have not run then.
func (s *Store) runAll(tx *bbolt.Tx, members []*member) (passed, rest []*member, ops []*op, failed bool) {
	passed = make([]*member, 0, len(members))
	for i, m := range members {
		r := s.order(m, tx)
		switch r.kind {
		case runFailed:
			return passed, members[i+1:], nil, true
		case runPassed:
			passed = append(passed, m)
			if r.op != nil {
				ops = append(ops, r.op)
			}
		}
	}
	return passed, nil, ops, false
}

// runAlone runs a closure that has not run yet, to see whether it passes. One that has is kept as it is.
func (s *Store) runAlone(m *member) (passed bool, err error) {
	if m.runs > 0 {
		return true, nil
	}
	t, err := s.transaction()
	if err != nil {
		return false, err
	}
	defer t.rollback()
	return s.order(m, t.tx).kind == runPassed, nil
}

// order has a member run its closure. One that has passed without holding its claim any more is told so, and has failed.
func (s *Store) order(m *member, tx *bbolt.Tx) report {
	m.runs++
	m.orders <- order{tx: tx}
	r := <-m.reports
	if r.kind != runPassed || r.op == nil {
		return r
	}
	s.mu.RLock()
	c := s.claims[r.op.id]
	held := c != nil && c.rec.HeldBy(r.op.token)
	s.mu.RUnlock()
	if !held {
		m.orders <- order{err: store.ErrLost}
		return report{kind: runFailed}
	}
	return r
}
