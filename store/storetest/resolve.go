package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

var resolveCases = []testCase{
	{"abandoned_is_resolved", func(c *check) {
		r := c.resolver()
		for _, e := range []store.End{done("resolved"), ambiguous("still unknown"), released("nothing happened")} {
			cl := c.claim()
			running := c.held(cl)
			c.finish(cl, abandoned())
			c.advance(time.Second)
			by := c.retry(cl)
			require.NoError(c.t, r.Resolve(c.ctx, cl.ID, cl.Token, by.Token, e))
			c.isResolved(running, by.Token, e)
		}
	}},
	{"ambiguous_is_resolved", func(c *check) {
		r := c.resolver()
		for _, e := range []store.End{done("resolved"), released("nothing happened")} {
			cl := c.claim()
			running := c.held(cl)
			c.finish(cl, ambiguous("unknown"))
			c.advance(time.Second)
			by := c.retry(cl)
			require.NoError(c.t, r.Resolve(c.ctx, cl.ID, cl.Token, by.Token, e))
			c.isResolved(running, by.Token, e)
		}
	}},
	{"attempts_outlast_resolve", func(c *check) {
		r := c.resolver()
		cl, _ := c.ended(abandoned())
		next := c.takeover(cl, 2)
		c.held(next)
		c.finish(next, abandoned())
		require.NoError(c.t, r.Resolve(c.ctx, cl.ID, next.Token, c.token(), released("nothing happened")))
		require.Equal(c.t, 2, c.held(c.retry(cl)).Attempt)
	}},
	{"resolved_answers_later_calls", func(c *check) {
		r := c.resolver()
		cl, _ := c.ended(abandoned())
		require.NoError(c.t, r.Resolve(c.ctx, cl.ID, cl.Token, c.token(), done("resolved")))
		c.refused(cl)
		c.refused(c.takeover(cl, 100))
		c.refused(c.otherRequest(cl))
	}},
	{"resolved_release_is_claimed", func(c *check) {
		r := c.resolver()
		cl, was := c.ended(ambiguous("unknown"))
		require.NoError(c.t, r.Resolve(c.ctx, cl.ID, cl.Token, c.token(), released("nothing happened")))
		c.refused(c.otherRequest(cl))
		rec := c.held(c.retry(cl))
		require.Equal(c.t, 1, rec.Attempt)
		require.True(c.t, rec.First.Equal(was.First), "First has changed")
	}},
	{"resolve_sent_again_changes_nothing", func(c *check) {
		r := c.resolver()
		for _, open := range []store.End{abandoned(), ambiguous("unknown")} {
			cl, _ := c.ended(open)
			token := c.token()
			require.NoError(c.t, r.Resolve(c.ctx, cl.ID, cl.Token, token, done("resolved")))
			rec := c.get(cl.ID)
			c.advance(time.Second)
			require.NoError(c.t, r.Resolve(c.ctx, cl.ID, cl.Token, token, done("other")))
			c.equal(rec, c.get(cl.ID))
		}
	}},
	{"resolve_happens_once", func(c *check) {
		r := c.resolver()
		for _, open := range []store.End{abandoned(), ambiguous("unknown")} {
			cl, _ := c.ended(open)
			token := c.token()
			require.NoError(c.t, r.Resolve(c.ctx, cl.ID, cl.Token, token, done("resolved")))
			c.lostResolve(cl.ID, cl.Token)
			c.lostResolve(cl.ID, token)
		}
	}},
	{"token_that_was_resolved_is_lost", func(c *check) {
		r := c.resolver()
		for _, open := range []store.End{abandoned(), ambiguous("unknown")} {
			for _, e := range []store.End{done("resolved"), released("nothing happened")} {
				cl, _ := c.ended(open)
				require.NoError(c.t, r.Resolve(c.ctx, cl.ID, cl.Token, c.token(), e))
				c.lostFinish(cl.ID, cl.Token)
				if w, ok := store.As[store.Renewer](c.store); ok {
					c.lost(cl.ID, func() error { return w.Renew(c.ctx, cl.ID, cl.Token, lease) })
				}
			}
		}
	}},
	{"only_abandoned_and_ambiguous_are_resolved", func(c *check) {
		c.resolver()
		id := c.id()
		c.lostResolve(id, c.token())
		c.lostResolve(id, store.Token{})
		cl, _ := c.running()
		c.lostResolve(cl.ID, cl.Token)
		c.held(cl)
		for _, e := range []store.End{done("outcome"), released("nothing happened")} {
			cl, _ := c.ended(e)
			c.lostResolve(cl.ID, cl.Token)
		}
	}},
	{"resolve_under_another_token_is_lost", func(c *check) {
		c.resolver()
		for _, open := range []store.End{abandoned(), ambiguous("unknown")} {
			cl, _ := c.ended(open)
			c.lostResolve(cl.ID, c.token())
			c.lostResolve(cl.ID, store.Token{})
		}
		cl, _ := c.ended(abandoned())
		next := c.takeover(cl, 2)
		c.held(next)
		c.lostResolve(cl.ID, cl.Token)
		c.finish(next, abandoned())
		c.lostResolve(cl.ID, cl.Token)
	}},
	{"resolve_of_an_expired_record_is_lost", func(c *check) {
		c.resolver()
		cl, was := c.ended(ambiguous("unknown"))
		c.advanceTo(was.Expires)
		c.lostResolve(cl.ID, cl.Token)
	}},
	{"resolved_expires", func(c *check) {
		r := c.resolver()
		cl, _ := c.ended(abandoned())
		c.advance(2 * retention)
		require.NoError(c.t, r.Resolve(c.ctx, cl.ID, cl.Token, c.token(), done("resolved")))
		rec := c.get(cl.ID)
		for _, instant := range []time.Time{rec.Expires.Add(-1), rec.Expires} {
			c.advanceTo(instant)
			c.presentUntilExpires(rec)
		}
	}},
	{"lease_that_ended_is_resolved", func(c *check) {
		c.renewer()
		r := c.resolver()
		cl, running := c.running()
		c.advance(lease)
		by := c.retry(cl)
		require.NoError(c.t, r.Resolve(c.ctx, cl.ID, cl.Token, by.Token, done("resolved")))
		c.isResolved(running, by.Token, done("resolved"))
		c.lostFinish(cl.ID, cl.Token)
	}},
}

// isResolved requires that the run of running was ended by Resolve with e, just now.
func (c *check) isResolved(running store.Record, token store.Token, e store.End) {
	c.t.Helper()
	running.Token = token
	rec := c.get(running.ID)
	want := running
	want.State, want.Ambiguous, want.Outcome = e.State, e.Ambiguous, e.Outcome
	want.Ended, want.Expires = rec.Ended, rec.Expires
	c.equal(want, rec)
	require.False(c.t, rec.Ended.Before(running.Started), "Ended lies before Started")
	require.False(c.t, rec.Ended.After(rec.Now), "Ended lies after the answer")
	require.InDelta(c.t, e.Retention, rec.Expires.Sub(rec.Now), float64(patience))
}

// lostResolve requires that the record of id cannot be resolved under the token was.
func (c *check) lostResolve(id store.ID, was store.Token) {
	c.t.Helper()
	for _, e := range []store.End{done("resolved"), released("nothing happened")} {
		c.lost(id, func() error { return c.resolver().Resolve(c.ctx, id, was, c.token(), e) })
	}
}
