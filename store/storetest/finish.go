package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

var finishCases = []testCase{
	{"done_is_what_every_later_call_gets", func(c *check) {
		cl := c.claim()
		running := c.held(cl)
		c.advance(time.Second)
		rec := c.finish(cl, done("outcome"))
		c.isEndOf(running, done("outcome"), rec)
		c.advance(time.Minute)
		c.refused(c.takeover(cl, 100))
		c.refused(c.otherRequest(cl))
		c.lostFinish(cl.ID, c.token())
		c.equal(rec, c.get(cl.ID))
	}},
	{"ambiguous_is_kept", func(c *check) {
		cl := c.claim()
		running := c.held(cl)
		c.isEndOf(running, ambiguous("unknown"), c.finish(cl, ambiguous("unknown")))
		c.refused(c.retry(cl))
	}},
	{"released_keeps_outcome_and_fingerprint", func(c *check) {
		cl := c.claim()
		running := c.held(cl)
		c.advance(time.Second)
		c.isEndOf(running, released("nothing happened"), c.finish(cl, released("nothing happened")))
	}},
	{"abandoned_keeps_its_outcome_and_when_it_ended", func(c *check) {
		cl := c.claim()
		running := c.held(cl)
		c.advance(time.Second)
		e := store.End{State: store.Abandoned, Outcome: []byte("panic"), Retention: retention}
		c.isEndOf(running, e, c.finish(cl, e))
	}},
	{"finish_sent_again_changes_nothing", func(c *check) {
		for _, e := range []store.End{done("outcome"), ambiguous("unknown"), released("nothing happened")} {
			cl, rec := c.ended(e)
			c.advance(time.Second)
			c.equal(rec, c.finish(cl, e))
			for _, other := range []store.End{done("other"), ambiguous("other"), released("other"), abandoned()} {
				other.Retention = 2 * retention
				c.equal(rec, c.finish(cl, other))
			}
		}
	}},
	{"abandoning_again_changes_nothing", func(c *check) {
		cl, rec := c.ended(store.End{State: store.Abandoned, Outcome: []byte("panic")})
		c.advance(time.Second)
		c.equal(rec, c.finish(cl, store.End{State: store.Abandoned, Outcome: []byte("other")}))
	}},
	{"abandoned_is_ended_by_its_token", func(c *check) {
		for _, e := range []store.End{done("outcome"), ambiguous("unknown"), released("nothing happened")} {
			cl := c.claim()
			running := c.held(cl)
			c.finish(cl, abandoned())
			c.advance(time.Second)
			rec := c.finish(cl, e)
			c.isEndOf(running, e, rec)
			c.advance(time.Second)
			c.equal(rec, c.finish(cl, done("other")))
		}
	}},
	{"finish_of_nothing_is_lost", func(c *check) {
		c.lostFinish(c.id(), c.token())
	}},
	{"finish_under_another_token_is_lost", func(c *check) {
		cl := c.claim()
		c.held(cl)
		c.lostFinish(cl.ID, c.token())
		c.lostFinish(cl.ID, store.Token{})
		for _, e := range []store.End{done("outcome"), ambiguous("unknown"), released("nothing happened"), abandoned()} {
			cl, _ := c.ended(e)
			c.lostFinish(cl.ID, c.token())
			c.lostFinish(cl.ID, store.Token{})
		}
	}},
	{"token_of_a_refused_begin_is_lost", func(c *check) {
		cl := c.claim()
		c.held(cl)
		second := c.retry(cl)
		c.begin(second)
		c.lostFinish(cl.ID, second.Token)
	}},
	{"token_of_another_id_is_lost", func(c *check) {
		one, two := c.claim(), c.claim()
		c.held(one)
		c.held(two)
		c.lostFinish(one.ID, two.Token)
	}},
	{"token_of_a_release_is_lost_once_it_is_claimed", func(c *check) {
		cl, _ := c.ended(released("nothing happened"))
		next := c.retry(cl)
		c.held(next)
		c.lostFinish(cl.ID, cl.Token)
		c.finish(next, done("outcome"))
		c.lostFinish(cl.ID, cl.Token)
	}},
	{"release_can_be_claimed_and_released_again", func(c *check) {
		cl, was := c.ended(released("0"))
		for range 5 {
			cl = c.retry(cl)
			c.held(cl)
			rec := c.finish(cl, released("again"))
			require.Equal(c.t, store.Released, rec.State)
			require.Equal(c.t, "again", string(rec.Outcome))
			require.True(c.t, rec.First.Equal(was.First), "First has changed")
		}
		cl = c.retry(cl)
		c.held(cl)
		c.finish(cl, done("outcome"))
		c.refused(c.retry(cl))
	}},
	{"volatile_claim_is_like_any_other", func(c *check) {
		cl := c.claim()
		cl.Volatile = true
		running := c.held(cl)
		c.equal(running, c.get(cl.ID))
		c.equal(running, c.held(cl))
		c.refused(c.retry(cl))
		c.refused(c.otherRequest(cl))
		c.lostFinish(cl.ID, c.token())
		rec := c.finish(cl, released("nothing happened"))
		c.isEndOf(running, released("nothing happened"), rec)
		c.refused(c.otherRequest(cl))
		next := c.retry(cl)
		require.True(c.t, c.held(next).First.Equal(running.First), "First has changed")
		c.lostFinish(cl.ID, cl.Token)
		c.finish(next, abandoned())
		cl = c.takeover(next, 2)
		require.Equal(c.t, 2, c.held(cl).Attempt)
		c.finish(cl, done("outcome"))
		c.refused(c.retry(cl))
	}},
}

// isEndOf requires that rec is what a running record becomes by e, just now.
func (c *check) isEndOf(running store.Record, e store.End, rec store.Record) {
	c.t.Helper()
	require.False(c.t, rec.Ended.Before(running.Started), "Ended lies before Started")
	require.False(c.t, rec.Ended.Before(rec.Now.Add(-patience)), "Ended lies before the call")
	require.False(c.t, rec.Ended.After(rec.Now), "Ended lies after the answer")
	want := running
	want.State, want.Ambiguous, want.Outcome, want.Ended = e.State, e.Ambiguous, e.Outcome, rec.Ended
	if e.State != store.Abandoned {
		want.Expires = rec.Ended.Add(e.Retention)
	}
	c.equal(want, rec)
}
