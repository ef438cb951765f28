package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

var renewCases = []testCase{
	{"claim_is_abandoned_from_the_end_of_its_lease_on", func(c *check) {
		c.renewer()
		cl, rec := c.running()
		for _, d := range []time.Duration{lease / 2, lease - 1, lease, lease + time.Second, long} {
			c.advanceTo(rec.Started.Add(d))
			c.runningUntil(rec, rec.Started.Add(lease))
		}
		c.refused(c.retry(cl))
	}},
	{"every_claim_has_its_own_lease", func(c *check) {
		c.renewer()
		var records []store.Record
		leases := []time.Duration{time.Hour, time.Second, time.Minute}
		for _, d := range leases {
			cl := c.claim()
			cl.Lease = d
			records = append(records, c.held(cl))
		}
		for _, passed := range []time.Duration{time.Second - 1, time.Second, time.Minute - 1, time.Minute, time.Hour} {
			c.advanceTo(records[0].Started.Add(passed))
			for i, rec := range records {
				c.runningUntil(rec, rec.Started.Add(leases[i]))
			}
		}
	}},
	{"claim_without_a_lease_stands", func(c *check) {
		r := c.renewer()
		cl := c.claim()
		cl.Lease = 0
		rec := c.held(cl)
		require.NoError(c.t, r.Renew(c.ctx, cl.ID, cl.Token, lease))
		c.advance(long)
		c.equal(rec, c.get(cl.ID))
		c.refused(c.takeover(cl, 100))
	}},
	{"begin_sent_again_does_not_renew", func(c *check) {
		c.renewer()
		cl, rec := c.running()
		c.advance(lease / 2)
		c.equal(rec, c.held(cl))
		c.advanceTo(rec.Started.Add(lease))
		c.state(store.Abandoned, cl.ID)
		c.refused(cl)
	}},
	{"lease_that_ended_permits_a_takeover", func(c *check) {
		r := c.renewer()
		cl, was := c.running()
		c.refused(c.takeover(cl, 100))
		c.advance(lease)
		c.refused(c.takeover(cl, 1))
		c.refused(c.otherRequest(cl))
		next := c.takeover(cl, 2)
		rec := c.held(next)
		require.Equal(c.t, 2, rec.Attempt)
		require.True(c.t, rec.First.Equal(was.First), "First has changed")
		c.lostFinish(cl.ID, cl.Token)
		c.lost(cl.ID, func() error { return r.Renew(c.ctx, cl.ID, cl.Token, lease) })
		c.runningUntil(rec, rec.Started.Add(lease))
		c.advance(lease / 2)
		c.equal(rec, c.get(cl.ID))
		c.advanceTo(rec.Started.Add(lease))
		c.runningUntil(rec, rec.Started.Add(lease))
	}},
	{"claim_on_a_release_has_its_own_lease", func(c *check) {
		c.renewer()
		cl, _ := c.ended(released("nothing happened"))
		c.advance(lease)
		rec := c.held(c.retry(cl))
		for _, d := range []time.Duration{lease - 1, lease} {
			c.advanceTo(rec.Started.Add(d))
			c.runningUntil(rec, rec.Started.Add(lease))
		}
		c.advance(2 * retention)
		c.state(store.Abandoned, cl.ID)
	}},
	{"finish_after_the_lease_ended_is_accepted", func(c *check) {
		c.renewer()
		for _, e := range []store.End{done("outcome"), ambiguous("unknown"), released("nothing happened")} {
			cl, rec := c.running()
			c.advance(2 * lease)
			c.state(store.Abandoned, cl.ID)
			c.isEndOf(rec, e, c.finish(cl, e))
		}
	}},
	{"abandoning_after_the_lease_ended_is_accepted", func(c *check) {
		c.renewer()
		cl, _ := c.running()
		c.advance(2 * lease)
		require.Equal(c.t, store.Abandoned.String(), c.finish(cl, abandoned()).State.String())
		c.refused(c.retry(cl))
	}},
	{"ended_claim_outlasts_its_lease", func(c *check) {
		c.renewer()
		for _, e := range []store.End{done("outcome"), released("nothing happened"), abandoned()} {
			cl, rec := c.ended(e)
			c.advance(2 * lease)
			c.equal(rec, c.get(cl.ID))
		}
	}},
	{"renewed_lease_counts_from_the_renewal", func(c *check) {
		r := c.renewer()
		cl, rec := c.running()
		for range 5 {
			c.advance(lease - time.Second)
			require.NoError(c.t, r.Renew(c.ctx, cl.ID, cl.Token, lease))
			c.equal(rec, c.get(cl.ID))
		}
		c.advance(lease - time.Second)
		c.equal(rec, c.get(cl.ID))
		c.advance(lease)
		c.state(store.Abandoned, cl.ID)
	}},
	{"renewal_does_not_shorten_a_lease", func(c *check) {
		r := c.renewer()
		cl, rec := c.running()
		require.NoError(c.t, r.Renew(c.ctx, cl.ID, cl.Token, lease/10))
		c.advance(lease / 2)
		c.equal(rec, c.get(cl.ID))
		c.advance(lease)
		c.state(store.Abandoned, cl.ID)
	}},
	{"renewal_revives_a_claim_that_nobody_took_over", func(c *check) {
		r := c.renewer()
		cl, rec := c.running()
		c.advance(2 * lease)
		c.state(store.Abandoned, cl.ID)
		require.NoError(c.t, r.Renew(c.ctx, cl.ID, cl.Token, lease))
		c.equal(rec, c.get(cl.ID))
		c.refused(c.takeover(cl, 100))
		c.advance(lease / 2)
		c.isEndOf(rec, done("outcome"), c.finish(cl, done("outcome")))
	}},
	{"renewal_of_what_is_not_held_is_lost", func(c *check) {
		r := c.renewer()
		renew := func(cl store.Claim) {
			c.lost(cl.ID, func() error { return r.Renew(c.ctx, cl.ID, cl.Token, lease) })
		}
		renew(c.claim())
		cl, _ := c.running()
		renew(c.retry(cl))
		c.advance(lease)
		renew(c.retry(cl))
		for _, e := range []store.End{done("outcome"), ambiguous("unknown"), released("nothing happened"), abandoned()} {
			cl, _ := c.ended(e)
			renew(cl)
			renew(c.retry(cl))
		}
		cl, was := c.ended(done("outcome"))
		c.advanceTo(was.Expires)
		renew(cl)
	}},
}

// runningUntil requires that the running record rec is as it was, or abandoned if the store says that its lease, which
// ends at end, is over.
func (c *check) runningUntil(rec store.Record, end time.Time) {
	c.t.Helper()
	now := c.get(rec.ID)
	if !now.Now.Before(end) {
		rec.State = store.Abandoned
	}
	c.equal(rec, now)
}
