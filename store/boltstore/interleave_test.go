//go:build oncerpc_failpoints

package boltstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// gates hold the first goroutine that comes to a point.
type gates struct {
	mu sync.Mutex
	at map[string]*gate
}

type gate struct{ reached, open chan struct{} }

var theGates = &gates{at: map[string]*gate{}}

// Failpoints are set before any store is opened.
var _ = func() bool {
	boltstore.Failpoint = theGates.pass
	return true
}()

func (g *gates) pass(point string) {
	g.mu.Lock()
	at := g.at[point]
	delete(g.at, point)
	g.mu.Unlock()
	if at != nil {
		close(at.reached)
		<-at.open
	}
}

func (g *gates) hold(point string) *gate {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := &gate{reached: make(chan struct{}), open: make(chan struct{})}
	g.at[point] = at
	return at
}

// forget opens a gate that nobody came to.
func (g *gates) forget(point string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.at, point)
}

// TestVolatileInterleavings holds the holder of a claim that is kept in memory at every step of its life, and meanwhile
// a duplicate at every step of its own: whatever the order, one of them runs, and the other is told of it.
func TestVolatileInterleavings(t *testing.T) {
	const outcome = "outcome"
	type result struct {
		rec store.Record
		err error
	}
	// live begins a claim, and if it is held ends it as way says. It returns what Begin said.
	live := func(s *boltstore.Store, c store.Claim, transact bool) result {
		rec, err := s.Begin(t.Context(), c)
		if err != nil || !rec.HeldBy(c.Token) {
			return result{rec, err}
		}
		if !transact {
			return result{rec, s.Finish(t.Context(), c.ID, c.Token, done(outcome))}
		}
		run := store.NewRun(s, c.ID, c.Token, func(any, error) (store.End, error) { return done(outcome), nil })
		_, err = boltstore.Transact(store.NewContext(t.Context(), run), s, func(*bbolt.Tx) (string, error) { return "", nil })
		return result{rec, err}
	}
	holderSteps := []string{"begin.looked", "begin.claimed", "begin.asks", "commit.applied", "commit.durable", "commit.published"}
	duplicateSteps := []string{"", "begin.looked", "look.found", "begin.asks", "begin.claimed"}
	for _, transact := range []bool{false, true} {
		for _, before := range []bool{false, true} { // whether a released record stands in the file
			for _, h := range holderSteps {
				for _, d := range duplicateSteps {
					s, _ := newStore(t)
					c := newClaim()
					c.Volatile = true
					if before {
						claim(t, s, c)
						require.NoError(t, s.Finish(t.Context(), c.ID, c.Token, store.End{State: store.Released, Retention: time.Hour}))
						c = again(c)
					}
					dup := again(c)
					first := theGates.hold(h)
					holder := make(chan result, 1)
					go func() { holder <- live(s, c, transact) }()
					held := false
					select {
					case <-first.reached:
						held = true
					case r := <-holder: // this life has no such step
						holder <- r
						theGates.forget(h)
					}
					var second *gate
					if d != "" {
						second = theGates.hold(d)
					}
					duplicate := make(chan result, 1)
					go func() { duplicate <- live(s, dup, transact) }()
					if second != nil {
						select {
						case <-second.reached:
						case r := <-duplicate:
							duplicate <- r
						case <-time.After(20 * time.Millisecond): // it waits for the holder's commit
						}
					}
					if held {
						close(first.open)
					}
					var a result
					select {
					case a = <-holder:
					case <-time.After(20 * time.Millisecond): // it waits for the duplicate's claim or commit
					}
					if second != nil {
						theGates.forget(d)
						close(second.open)
					}
					b := <-duplicate
					if a.rec.ID == (store.ID{}) {
						a = <-holder
					}
					name := []any{"transact %v, released before %v, holder at %q, duplicate at %q: %v and %v", transact, before, h, d, a, b}
					require.NoError(t, a.err, name...)
					require.NoError(t, b.err, name...)
					require.NotEqual(t, a.rec.HeldBy(c.Token), b.rec.HeldBy(dup.Token), name...)
					winner, loser := c, b.rec
					if b.rec.HeldBy(dup.Token) {
						winner, loser = dup, a.rec
					}
					require.Equal(t, winner.Token, loser.Token, name...)
					require.Contains(t, []store.State{store.Running, store.Done}, loser.State, name...)
					if loser.State == store.Done {
						require.Equal(t, outcome, string(loser.Outcome), name...)
					}
					rec, err := s.Get(t.Context(), c.ID)
					require.NoError(t, err)
					require.Equal(t, outcome, string(rec.Outcome), name...)
					require.NoError(t, s.Close())
				}
			}
		}
	}
}
