package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

var takeoverCases = []testCase{
	{"abandoned_is_not_claimed_without_permission", func(c *check) {
		cl, _ := c.ended(abandoned())
		c.refused(c.takeover(cl, 0))
		c.refused(c.takeover(cl, 1))
	}},
	{"takeover_counts_an_attempt_and_keeps_first", func(c *check) {
		cl, was := c.ended(abandoned())
		c.advance(time.Second)
		next := c.takeover(cl, 2)
		rec := c.held(next)
		require.Equal(c.t, 2, rec.Attempt)
		require.True(c.t, rec.First.Equal(was.First), "First has changed")
		require.True(c.t, rec.Started.After(was.Started), "Started is that of the run before")
		require.True(c.t, rec.Ended.IsZero(), "Ended is not zero")
		require.True(c.t, rec.Expires.IsZero(), "Expires is not zero")
		require.Empty(c.t, rec.Outcome)
		c.equal(rec, c.get(cl.ID))
	}},
	{"takeover_goes_on_below_the_count_and_no_further", func(c *check) {
		cl, was := c.ended(abandoned())
		for attempt := 2; attempt <= 5; attempt++ {
			c.refused(c.takeover(cl, attempt-1))
			cl = c.takeover(cl, attempt)
			require.Equal(c.t, attempt, c.held(cl).Attempt)
			rec := c.finish(cl, abandoned())
			require.Equal(c.t, attempt, rec.Attempt)
			require.True(c.t, rec.First.Equal(was.First), "First has changed")
		}
		c.refused(c.takeover(cl, 5))
	}},
	{"takeover_sent_again_counts_once", func(c *check) {
		cl, _ := c.ended(abandoned())
		next := c.takeover(cl, 100)
		c.equal(c.held(next), c.held(next))
		require.Equal(c.t, 2, c.get(cl.ID).Attempt)
	}},
	{"running_and_done_are_not_taken_over", func(c *check) {
		cl := c.claim()
		c.held(cl)
		c.refused(c.takeover(cl, 100))
		c.finish(cl, done("outcome"))
		c.refused(c.takeover(cl, 100))
		cl, _ = c.ended(ambiguous("unknown"))
		c.refused(c.takeover(cl, 100))
	}},
	{"release_keeps_the_attempts", func(c *check) {
		cl, _ := c.ended(abandoned())
		cl = c.takeover(cl, 2)
		c.held(cl)
		c.finish(cl, released("nothing happened"))
		cl = c.retry(cl)
		require.Equal(c.t, 2, c.held(cl).Attempt)
		c.finish(cl, abandoned())
		c.refused(c.takeover(cl, 2))
		require.Equal(c.t, 3, c.held(c.takeover(cl, 3)).Attempt)
	}},
	{"done_keeps_the_attempts", func(c *check) {
		cl, was := c.ended(abandoned())
		cl = c.takeover(cl, 2)
		c.held(cl)
		rec := c.finish(cl, done("outcome"))
		require.Equal(c.t, 2, rec.Attempt)
		require.True(c.t, rec.First.Equal(was.First), "First has changed")
	}},
	{"token_that_was_taken_over_is_lost", func(c *check) {
		for _, e := range []store.End{{}, done("outcome"), released("nothing happened"), abandoned()} {
			cl, _ := c.ended(abandoned())
			next := c.takeover(cl, 2)
			c.held(next)
			if e.State != store.Absent {
				c.finish(next, e)
			}
			c.lostFinish(cl.ID, cl.Token)
		}
	}},
}
