package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

var expireCases = []testCase{
	{"done_is_absent_from_expires_on", func(c *check) { c.expires(done("outcome")) }},
	{"ambiguous_is_absent_from_expires_on", func(c *check) { c.expires(ambiguous("unknown")) }},
	{"released_is_absent_from_expires_on", func(c *check) { c.expires(released("nothing happened")) }},
	{"begin_claims_from_expires_on", func(c *check) {
		cl, was := c.ended(done("outcome"))
		c.advanceTo(was.Expires.Add(-1))
		next := c.retry(cl)
		if rec := c.begin(next); rec.HeldBy(next.Token) { // a clock that does not stand still
			require.False(c.t, rec.Now.Before(was.Expires), "claimed before Expires")
			return
		}
		c.advanceTo(was.Expires)
		c.held(c.retry(next))
	}},
	{"expired_record_is_claimed_as_a_first_attempt", func(c *check) {
		cl, _ := c.ended(abandoned())
		cl = c.takeover(cl, 2)
		c.held(cl)
		was := c.finish(cl, done("outcome"))
		require.Equal(c.t, 2, was.Attempt)
		c.advanceTo(was.Expires)
		next := c.retry(cl)
		next.Owner, next.Method = [8]byte{1}, "/other.Service/Method"
		rec := c.held(next)
		c.equal(store.Record{
			ID: next.ID, Token: next.Token, Owner: next.Owner, Method: next.Method, Fingerprint: next.Fingerprint,
			State: store.Running, Attempt: 1, First: rec.Started, Started: rec.Started,
		}, rec)
		require.False(c.t, rec.Started.Before(was.Expires), "Started is that of the expired record")
		c.equal(rec, c.get(cl.ID))
	}},
	{"expired_record_with_another_fingerprint_is_claimed", func(c *check) {
		for _, e := range []store.End{done("outcome"), released("nothing happened")} {
			cl, was := c.ended(e)
			c.advanceTo(was.Expires)
			next := c.retry(cl)
			next.Fingerprint = []byte("another fingerprint")
			require.Equal(c.t, 1, c.held(next).Attempt)
			c.refused(c.retry(cl))
		}
	}},
	{"token_of_an_expired_record_is_lost", func(c *check) {
		cl, was := c.ended(done("outcome"))
		c.advanceTo(was.Expires)
		c.lostFinish(cl.ID, cl.Token)
		c.held(c.retry(cl))
		c.lostFinish(cl.ID, cl.Token)
	}},
	{"retention_counts_from_the_end", func(c *check) {
		cl := c.claim()
		cl.Lease = 0
		running := c.held(cl)
		c.advance(2 * retention)
		c.isEndOf(running, done("outcome"), c.finish(cl, done("outcome")))
		c.advance(retention / 2)
		c.state(store.Done, cl.ID)
	}},
	{"retention_of_zero_is_over_at_once", func(c *check) {
		cl := c.claim()
		c.held(cl)
		require.NoError(c.t, c.store.Finish(c.ctx, cl.ID, cl.Token, store.End{State: store.Done}))
		c.state(store.Absent, cl.ID)
		c.held(c.retry(cl))
	}},
	{"every_record_has_its_own_retention", func(c *check) {
		var records []store.Record
		for _, kept := range []time.Duration{time.Hour, time.Second, 100 * 365 * 24 * time.Hour, 48 * time.Hour, time.Minute, time.Hour + 1} {
			e := done("outcome")
			e.Retention = kept
			_, rec := c.ended(e)
			records = append(records, rec)
		}
		for _, passed := range []time.Duration{time.Second, time.Minute, time.Hour, 48 * time.Hour, long} {
			c.advanceTo(records[0].Ended.Add(passed))
			for _, rec := range records {
				c.presentUntilExpires(rec)
			}
		}
		c.state(store.Done, records[2].ID)
	}},
	{"running_does_not_expire", func(c *check) {
		cl := c.claim()
		cl.Lease = 0
		rec := c.held(cl)
		c.advance(long)
		c.equal(rec, c.get(cl.ID))
		c.refused(c.takeover(cl, 100))
		c.isEndOf(rec, done("outcome"), c.finish(cl, done("outcome")))
	}},
	{"abandoned_does_not_expire", func(c *check) {
		cl, rec := c.ended(store.End{State: store.Abandoned, Retention: retention})
		c.advance(long)
		c.equal(rec, c.get(cl.ID))
		c.refused(c.retry(cl))
		c.refused(c.otherRequest(cl))
		require.Equal(c.t, 2, c.held(c.takeover(cl, 2)).Attempt)
	}},
	{"run_outlasts_the_release_that_it_claimed", func(c *check) {
		cl, _ := c.ended(released("nothing happened"))
		next := c.retry(cl)
		next.Lease = 0
		rec := c.held(next)
		c.advance(2 * retention)
		c.equal(rec, c.get(cl.ID))
		c.refused(c.retry(next))
	}},
	{"abandoned_outlasts_the_release_that_it_claimed", func(c *check) {
		cl, _ := c.ended(released("nothing happened"))
		next := c.retry(cl)
		c.held(next)
		rec := c.finish(next, abandoned())
		c.advance(2 * retention)
		c.equal(rec, c.get(cl.ID))
	}},
	{"lease_is_ignored_by_a_store_without_renewal", func(c *check) {
		if _, ok := store.As[store.Renewer](c.store); ok {
			c.t.Skip("the store has leases")
		}
		cl := c.claim()
		rec := c.held(cl)
		c.advance(10 * lease)
		c.equal(rec, c.get(cl.ID))
		c.refused(c.takeover(cl, 100))
	}},
}

// expires requires that a record ended by e is there until the instant before Expires, and not from Expires on.
func (c *check) expires(e store.End) {
	_, rec := c.ended(e)
	for _, instant := range []time.Time{rec.Ended.Add(retention / 2), rec.Expires.Add(-1), rec.Expires, rec.Expires.Add(time.Second)} {
		c.advanceTo(instant)
		c.presentUntilExpires(rec)
	}
	c.state(store.Absent, rec.ID)
}

// presentUntilExpires requires that rec is there as it was, or absent if the store says that Expires has come.
func (c *check) presentUntilExpires(rec store.Record) {
	c.t.Helper()
	now := c.get(rec.ID)
	if now.Now.Before(rec.Expires) {
		c.equal(rec, now)
		return
	}
	require.Equal(c.t, store.Absent.String(), now.State.String(), "%v after Expires", now.Now.Sub(rec.Expires))
}
