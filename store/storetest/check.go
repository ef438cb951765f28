package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

const (
	lease     = 30 * time.Second    // of every claim, unless a case is about another
	retention = time.Hour           // of every end, likewise
	long      = 30 * 24 * time.Hour // longer than anything should last
	patience  = 5 * time.Second     // for what should happen at once; shorter than lease
)

// check is one case under way: the store, and what cases say of it.
type check struct {
	t       testingT
	ctx     context.Context
	store   store.Store
	subject Subject
	bubble  bool
	serial  atomic.Uint64
}

func newCheck(t testingT, s Subject, bubble bool) *check {
	return &check{t: t, ctx: t.Context(), store: s.Store, subject: s, bubble: bubble}
}

// advance lets d pass on the store's clock.
func (c *check) advance(d time.Duration) {
	if d <= 0 {
		return
	}
	if c.bubble {
		time.Sleep(d)
		return
	}
	c.subject.Advance(d)
}

// advanceTo lets time pass until the store's clock shows instant.
func (c *check) advanceTo(instant time.Time) {
	c.advance(instant.Sub(c.now()))
}

// now is the time on the store's clock.
func (c *check) now() time.Time {
	c.t.Helper()
	return c.get(c.id()).Now
}

// settle gives the goroutines of the case and of the store the time to do what they can do now.
func (c *check) settle() {
	if c.bubble {
		synctest.Wait()
		return
	}
	time.Sleep(20 * time.Millisecond) // outside a bubble nothing tells that they have
}

// power returns the power P of the store, or skips the case.
func power[P any](c *check, name string) P {
	p, ok := store.As[P](c.store)
	if !ok {
		c.t.Skip("the store is no store." + name)
	}
	return p
}

func (c *check) waiter() store.Waiter     { return power[store.Waiter](c, "Waiter") }
func (c *check) renewer() store.Renewer   { return power[store.Renewer](c, "Renewer") }
func (c *check) lister() store.Lister     { return power[store.Lister](c, "Lister") }
func (c *check) resolver() store.Resolver { return power[store.Resolver](c, "Resolver") }

// crash reopens the store, and returns when the claims that were running are abandoned: at once, or at the end of
// their leases on a store that has leases. It skips the case if the subject cannot be reopened.
func (c *check) crash() {
	if c.subject.Reopen == nil {
		c.t.Skip("the subject has no Reopen")
	}
	c.store = c.subject.Reopen()
	if _, leases := store.As[store.Renewer](c.store); leases {
		c.advance(lease)
	}
}

// id returns a fresh ID.
func (c *check) id() store.ID {
	return sha256.Sum256(binary.BigEndian.AppendUint64([]byte("storetest"), c.serial.Add(1)))
}

// token returns a fresh token.
func (c *check) token() store.Token {
	id := c.id()
	return store.Token(id[:16])
}

// claim returns a claim on a fresh ID.
func (c *check) claim() store.Claim {
	return store.Claim{
		ID:          c.id(),
		Token:       c.token(),
		Owner:       [8]byte{'o', 'w', 'n', 'e', 'r'},
		Method:      "/bank.v1.Payments/Charge",
		Fingerprint: []byte("fingerprint"),
		Lease:       lease,
	}
}

// retry returns what a retry of cl claims: the same under a fresh token.
func (c *check) retry(cl store.Claim) store.Claim {
	cl.Token = c.token()
	return cl
}

// takeover is a retry that may take over as long as there were fewer than below attempts.
func (c *check) takeover(cl store.Claim, below int) store.Claim {
	cl = c.retry(cl)
	cl.TakeoverBelow = below
	return cl
}

func done(outcome string) store.End {
	return store.End{State: store.Done, Outcome: []byte(outcome), Retention: retention}
}

func ambiguous(outcome string) store.End {
	return store.End{State: store.Done, Ambiguous: true, Outcome: []byte(outcome), Retention: retention}
}

func released(outcome string) store.End {
	return store.End{State: store.Released, Outcome: []byte(outcome), Retention: retention}
}

func abandoned() store.End { return store.End{State: store.Abandoned} }

// begin sends cl.
func (c *check) begin(cl store.Claim) store.Record {
	c.t.Helper()
	rec, err := c.store.Begin(c.ctx, cl)
	require.NoError(c.t, err)
	require.Equal(c.t, cl.ID, rec.ID)
	require.False(c.t, rec.Now.IsZero(), "Now is zero")
	return rec
}

// held sends cl and requires that it is held.
func (c *check) held(cl store.Claim) store.Record {
	c.t.Helper()
	rec := c.begin(cl)
	require.True(c.t, rec.HeldBy(cl.Token), "the claim is not held, the record is %v", rec.State)
	return rec
}

// refused sends cl and requires that it changes nothing and gets the record as it stands.
func (c *check) refused(cl store.Claim) {
	c.t.Helper()
	before := c.get(cl.ID)
	rec := c.begin(cl)
	require.False(c.t, rec.HeldBy(cl.Token), "the claim is held")
	c.equal(before, rec)
	c.equal(before, c.get(cl.ID))
}

// finish ends cl, and returns what it has become.
func (c *check) finish(cl store.Claim, e store.End) store.Record {
	c.t.Helper()
	require.NoError(c.t, c.store.Finish(c.ctx, cl.ID, cl.Token, e))
	return c.get(cl.ID)
}

// ended claims a fresh ID and ends it.
func (c *check) ended(e store.End) (store.Claim, store.Record) {
	c.t.Helper()
	cl := c.claim()
	c.held(cl)
	return cl, c.finish(cl, e)
}

// get reads the record of id.
func (c *check) get(id store.ID) store.Record {
	c.t.Helper()
	rec, err := c.store.Get(c.ctx, id)
	require.NoError(c.t, err)
	require.Equal(c.t, id, rec.ID)
	require.False(c.t, rec.Now.IsZero(), "Now is zero")
	return rec
}

// state requires that the record of id is in state s, and returns it.
func (c *check) state(s store.State, id store.ID) store.Record {
	c.t.Helper()
	rec := c.get(id)
	require.Equal(c.t, s.String(), rec.State.String())
	return rec
}

// lost requires that do answers ErrLost and leaves the record of id as it is.
func (c *check) lost(id store.ID, do func() error) {
	c.t.Helper()
	before := c.get(id)
	err := do()
	require.ErrorIs(c.t, err, store.ErrLost)
	for _, other := range []error{store.ErrFull, store.ErrUnreadable, store.ErrUnusable} {
		require.NotErrorIs(c.t, err, other)
	}
	c.equal(before, c.get(id))
}

// lostFinish requires that the token cannot end the record of id, however it tries.
func (c *check) lostFinish(id store.ID, token store.Token) {
	c.t.Helper()
	for _, e := range []store.End{done("late"), released("late"), abandoned()} {
		c.lost(id, func() error { return c.store.Finish(c.ctx, id, token, e) })
	}
}

// equal requires that two records are the same, but for the time of the answer.
func (c *check) equal(want, got store.Record) {
	c.t.Helper()
	require.Equal(c.t, plain(want), plain(got))
}

// plain is what counts in a record: instants without location and monotonic reading, nothing for empty bytes.
func plain(r store.Record) store.Record {
	if r.State == store.Absent {
		return store.Record{ID: r.ID}
	}
	r.Now = time.Time{}
	for _, t := range []*time.Time{&r.First, &r.Started, &r.Ended, &r.Expires} {
		*t = t.Round(0).UTC()
	}
	for _, b := range []*[]byte{&r.Fingerprint, &r.Outcome} {
		if len(*b) == 0 {
			*b = nil
		}
	}
	return r
}
