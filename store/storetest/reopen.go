package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

var reopenCases = []testCase{
	{"ends_outlast_a_crash", func(c *check) {
		for _, e := range []store.End{done("outcome"), ambiguous("unknown"), released("nothing happened"), {State: store.Abandoned, Outcome: []byte("panic")}} {
			cl, rec := c.ended(e)
			c.crash()
			c.equal(rec, c.get(cl.ID))
			c.refused(c.otherRequest(cl))
			c.equal(rec, c.finish(cl, e))
			c.lostFinish(cl.ID, c.token())
		}
	}},
	{"running_is_abandoned_by_a_crash", func(c *check) {
		cl, rec := c.running()
		c.crash()
		rec.State = store.Abandoned
		c.equal(rec, c.get(cl.ID))
		c.refused(c.retry(cl))
		c.refused(cl)
		require.Equal(c.t, 2, c.held(c.takeover(cl, 2)).Attempt)
		c.lostFinish(cl.ID, cl.Token)
	}},
	{"token_outlasts_a_crash", func(c *check) {
		for _, e := range []store.End{done("outcome"), released("nothing happened")} {
			cl, rec := c.running()
			c.crash()
			c.isEndOf(rec, e, c.finish(cl, e))
		}
	}},
	{"abandoned_outlasts_a_second_crash", func(c *check) {
		running, was := c.running()
		ended, rec := c.ended(abandoned())
		c.crash()
		_, other := c.running()
		c.crash()
		was.State, other.State = store.Abandoned, store.Abandoned
		c.equal(was, c.get(running.ID))
		c.equal(rec, c.get(ended.ID))
		c.equal(other, c.get(other.ID))
		c.finish(running, done("outcome"))
		c.crash()
		require.Equal(c.t, "outcome", string(c.state(store.Done, running.ID).Outcome))
	}},
	{"takeover_outlasts_a_crash", func(c *check) {
		cl, was := c.running()
		c.crash()
		next := c.takeover(cl, 2)
		c.held(next)
		c.crash()
		rec := c.state(store.Abandoned, cl.ID)
		require.Equal(c.t, 2, rec.Attempt)
		require.Equal(c.t, next.Token, rec.Token)
		require.True(c.t, rec.First.Equal(was.First), "First has changed")
		c.lostFinish(cl.ID, cl.Token)
		c.refused(c.takeover(cl, 2))
		require.Equal(c.t, 3, c.held(c.takeover(cl, 3)).Attempt)
	}},
	{"run_on_a_release_is_abandoned_by_a_crash", func(c *check) {
		cl, was := c.ended(released("nothing happened"))
		c.advance(time.Second)
		next := c.retry(cl)
		rec := c.held(next)
		c.crash()
		rec.State = store.Abandoned
		c.equal(rec, c.get(cl.ID))
		c.refused(c.retry(cl))
		c.advanceTo(was.Expires)
		c.equal(rec, c.get(cl.ID))
	}},
	{"run_on_an_expired_record_is_abandoned_by_a_crash", func(c *check) {
		cl, was := c.ended(done("outcome"))
		c.advanceTo(was.Expires)
		rec := c.held(c.retry(cl))
		c.crash()
		rec.State = store.Abandoned
		c.equal(rec, c.get(cl.ID))
	}},
	{"expiry_outlasts_a_crash", func(c *check) {
		_, rec := c.ended(done("outcome"))
		c.advance(retention / 2)
		c.crash()
		for _, instant := range []time.Time{rec.Expires.Add(-1), rec.Expires} {
			c.advanceTo(instant)
			c.presentUntilExpires(rec)
		}
		c.state(store.Absent, rec.ID)
		c.crash()
		c.state(store.Absent, rec.ID)
	}},
	{"resolved_outlasts_a_crash", func(c *check) {
		c.resolver()
		cl, _ := c.running()
		open, _ := c.ended(ambiguous("unknown"))
		c.crash()
		r := c.resolver()
		token := c.token()
		for _, was := range []store.Claim{cl, open} {
			require.NoError(c.t, r.Resolve(c.ctx, was.ID, was.Token, token, done("resolved")))
		}
		c.crash()
		for _, was := range []store.Claim{cl, open} {
			rec := c.state(store.Done, was.ID)
			require.Equal(c.t, token, rec.Token)
			require.Equal(c.t, "resolved", string(rec.Outcome))
			require.False(c.t, rec.Ambiguous)
			c.lostFinish(was.ID, was.Token)
			c.lostResolve(was.ID, was.Token)
			require.NoError(c.t, c.resolver().Resolve(c.ctx, was.ID, was.Token, token, done("other")))
			c.equal(rec, c.get(was.ID))
		}
	}},
	{"volatile_claim_is_gone_or_abandoned_after_a_crash", func(c *check) {
		fresh := c.claim()
		free, rec := c.ended(released("nothing happened"))
		next := c.retry(free)
		fresh.Volatile, next.Volatile = true, true
		running := map[store.ID]store.Record{fresh.ID: c.held(fresh), free.ID: c.held(next)}
		former := map[store.ID]store.Record{fresh.ID: {ID: fresh.ID}, free.ID: rec}
		c.crash()
		for _, cl := range []store.Claim{fresh, next} {
			want := running[cl.ID]
			want.State = store.Abandoned
			got := c.get(cl.ID)
			if got.State != store.Abandoned {
				want = former[cl.ID]
				c.equal(want, got)
				c.lostFinish(cl.ID, cl.Token)
				c.held(c.retry(cl))
				continue
			}
			c.equal(want, got)
		}
	}},
	{"end_of_a_volatile_claim_outlasts_a_crash", func(c *check) {
		for _, e := range []store.End{done("outcome"), ambiguous("unknown"), released("nothing happened"), abandoned()} {
			cl := c.claim()
			cl.Volatile = true
			c.held(cl)
			rec := c.finish(cl, e)
			c.crash()
			c.equal(rec, c.get(cl.ID))
		}
	}},
	{"many_records_outlast_a_crash", func(c *check) {
		claims := make([]store.Claim, 200)
		for i := range claims {
			claims[i] = c.claim()
		}
		parallel(claims, func(cl store.Claim) error { return c.life(c.ctx, cl) }, func(err error) { require.NoError(c.t, err) })
		before := make(map[store.ID]store.Record)
		for _, cl := range claims {
			before[cl.ID] = c.get(cl.ID)
		}
		_, running := c.running()
		c.crash()
		for id, rec := range before {
			c.equal(rec, c.get(id))
		}
		running.State = store.Abandoned
		c.equal(running, c.get(running.ID))
		if _, ok := store.As[store.Lister](c.store); ok {
			require.Len(c.t, c.list(store.Query{}), len(claims)+1)
			c.listed(store.Query{State: store.Abandoned}, running)
		}
	}},
	{"wait_after_a_crash_returns_at_once", func(c *check) {
		c.waiter()
		cl, _ := c.running()
		c.crash()
		c.wait(cl).ends(nil)
	}},
}
