package storetest

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

var waitCases = []testCase{
	{"wait_lasts_as_long_as_the_claim_is_held", func(c *check) {
		cl, _ := c.running()
		w := c.wait(cl)
		w.lasts()
		c.advance(lease / 2)
		w.lasts()
		c.held(cl)
		c.begin(c.retry(cl))
		c.lost(cl.ID, func() error { return c.store.Finish(c.ctx, cl.ID, c.token(), done("other")) })
		w.lasts()
	}},
	{"wait_ends_with_every_end", func(c *check) {
		for _, e := range []store.End{done("outcome"), ambiguous("unknown"), released("nothing happened"), abandoned()} {
			cl, _ := c.running()
			w := c.wait(cl)
			w.lasts()
			c.finish(cl, e)
			w.ends(nil)
		}
	}},
	{"wait_ends_when_the_claim_is_lost_at_once", func(c *check) {
		for _, e := range []store.End{released("nothing happened"), abandoned()} {
			cl, _ := c.running()
			w := c.wait(cl)
			w.lasts()
			next := c.takeover(cl, 2)
			require.NoError(c.t, c.store.Finish(c.ctx, cl.ID, cl.Token, e))
			c.held(next)
			w.ends(nil)
			c.wait(next).lasts()
		}
	}},
	{"wait_returns_at_once_when_the_claim_has_ended", func(c *check) {
		for _, e := range []store.End{done("outcome"), ambiguous("unknown"), released("nothing happened"), abandoned()} {
			cl, _ := c.ended(e)
			c.wait(cl).ends(nil)
		}
	}},
	{"wait_returns_at_once_under_a_token_that_holds_nothing", func(c *check) {
		c.wait(c.claim()).ends(nil)
		cl, _ := c.running()
		c.wait(c.retry(cl)).ends(nil)
		cl, _ = c.ended(abandoned())
		c.held(c.takeover(cl, 2))
		c.wait(cl).ends(nil)
		cl, was := c.ended(done("outcome"))
		c.advanceTo(was.Expires)
		c.wait(cl).ends(nil)
		c.held(c.retry(cl))
		c.wait(cl).ends(nil)
	}},
	{"wait_ends_with_its_context", func(c *check) {
		cl, _ := c.running()
		ctx, cancel := context.WithCancel(c.ctx)
		w := c.waitWithin(ctx, cl)
		other := c.wait(cl)
		w.lasts()
		cancel()
		w.ends(context.Canceled)
		other.lasts()
		ctx, cancel = context.WithCancel(c.ctx)
		cancel()
		c.waitWithin(ctx, cl).ends(context.Canceled)
		ctx, cancel = context.WithTimeout(c.ctx, patience/2)
		defer cancel()
		c.waitWithin(ctx, cl).ends(context.DeadlineExceeded)
	}},
	{"every_waiter_is_woken", func(c *check) {
		cl, _ := c.running()
		waits := make([]*waiting, 100)
		for i := range waits {
			waits[i] = c.wait(cl)
		}
		c.settle()
		c.finish(cl, done("outcome"))
		for _, w := range waits {
			w.ends(nil)
		}
	}},
	{"wait_is_not_ended_by_another_id", func(c *check) {
		cl, _ := c.running()
		w := c.wait(cl)
		w.lasts()
		c.ended(done("outcome"))
		c.ended(abandoned())
		w.lasts()
		c.finish(cl, done("outcome"))
		w.ends(nil)
	}},
	{"wait_does_not_miss_an_end_that_comes_with_it", func(c *check) {
		for range rounds {
			cl, _ := c.running()
			w := c.wait(cl)
			c.finish(cl, done("outcome"))
			w.ends(nil)
		}
	}},
	{"volatile_claim_is_waited_for", func(c *check) {
		c.waiter()
		cl := c.claim()
		cl.Volatile = true
		c.held(cl)
		w := c.wait(cl)
		w.lasts()
		c.finish(cl, done("outcome"))
		w.ends(nil)
	}},
	{"wait_ends_with_the_lease", func(c *check) {
		c.renewer()
		cl, _ := c.running()
		w := c.wait(cl)
		c.advance(lease - time.Second)
		w.lasts()
		c.advance(time.Second)
		w.ends(nil)
		c.state(store.Abandoned, cl.ID)
		c.wait(cl).ends(nil)
	}},
	{"wait_lasts_as_long_as_the_lease_is_renewed", func(c *check) {
		r := c.renewer()
		cl, _ := c.running()
		w := c.wait(cl)
		for range 5 {
			c.advance(lease / 2)
			require.NoError(c.t, r.Renew(c.ctx, cl.ID, cl.Token, lease))
			w.lasts()
		}
		c.advance(2 * lease)
		w.ends(nil)
		c.state(store.Abandoned, cl.ID)
	}},
}

// running claims a fresh ID.
func (c *check) running() (store.Claim, store.Record) {
	c.t.Helper()
	cl := c.claim()
	return cl, c.held(cl)
}

// waiting is a call of Wait under way.
type waiting struct {
	c        *check
	returned chan error
}

func (c *check) wait(cl store.Claim) *waiting { return c.waitWithin(c.ctx, cl) }

func (c *check) waitWithin(ctx context.Context, cl store.Claim) *waiting {
	s := c.waiter()
	w := &waiting{c, make(chan error, 1)}
	go func() { w.returned <- s.Wait(ctx, cl.ID, cl.Token) }()
	return w
}

// lasts requires that Wait has not returned.
func (w *waiting) lasts() {
	w.c.t.Helper()
	w.c.settle()
	select {
	case err := <-w.returned:
		require.FailNow(w.c.t, "Wait returned while the claim is held", "%v", err)
	default:
	}
}

// ends requires that Wait returns now, with the given error.
func (w *waiting) ends(want error) {
	w.c.t.Helper()
	select {
	case err := <-w.returned:
		require.ErrorIs(w.c.t, err, want)
	case <-time.After(patience):
		require.FailNow(w.c.t, "Wait does not return")
	}
}
