package storetest

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

var contextCases = []testCase{
	{"withdrawn_begin_claims_nothing", func(c *check) {
		c.withdrawn(func(ctx context.Context) error {
			cl := c.claim()
			_, err := c.store.Begin(ctx, cl)
			c.state(store.Absent, cl.ID)
			return err
		})
	}},
	{"withdrawn_takeover_claims_nothing", func(c *check) {
		c.withdrawn(func(ctx context.Context) error {
			cl, rec := c.ended(abandoned())
			_, err := c.store.Begin(ctx, c.takeover(cl, 2))
			c.equal(rec, c.get(cl.ID))
			return err
		})
	}},
	{"withdrawn_finish_changes_nothing", func(c *check) {
		c.withdrawn(func(ctx context.Context) error {
			cl := c.claim()
			rec := c.held(cl)
			err := c.store.Finish(ctx, cl.ID, cl.Token, done("outcome"))
			c.equal(rec, c.get(cl.ID))
			c.finish(cl, done("outcome"))
			return err
		})
	}},
	{"withdrawn_get_returns_the_error", func(c *check) {
		c.withdrawn(func(ctx context.Context) error {
			cl, _ := c.ended(done("outcome"))
			_, err := c.store.Get(ctx, cl.ID)
			return err
		})
	}},
	{"withdrawn_renew_changes_nothing", func(c *check) {
		r := c.renewer()
		c.withdrawn(func(ctx context.Context) error {
			cl := c.claim()
			c.held(cl)
			err := r.Renew(ctx, cl.ID, cl.Token, 10*lease)
			c.advance(lease)
			c.state(store.Abandoned, cl.ID)
			return err
		})
	}},
	{"withdrawn_resolve_changes_nothing", func(c *check) {
		r := c.resolver()
		c.withdrawn(func(ctx context.Context) error {
			cl, rec := c.ended(abandoned())
			err := r.Resolve(ctx, cl.ID, cl.Token, c.token(), done("outcome"))
			c.equal(rec, c.get(cl.ID))
			return err
		})
	}},
	{"withdrawn_list_yields_the_error_and_ends", func(c *check) {
		l := c.lister()
		c.ended(done("one"))
		c.ended(done("two"))
		c.withdrawn(func(ctx context.Context) error {
			var errs []error
			for rec, err := range l.List(ctx, store.Query{}) {
				require.Error(c.t, err, "yielded %v", rec.State)
				errs = append(errs, err)
			}
			require.Len(c.t, errs, 1)
			return errs[0]
		})
	}},
	{"claim_outlives_the_context_of_its_begin", func(c *check) {
		cl := c.claim()
		ctx, cancel := context.WithCancel(c.ctx)
		rec, err := c.store.Begin(ctx, cl)
		require.NoError(c.t, err)
		cancel()
		c.settle()
		c.equal(rec, c.get(cl.ID))
		c.finish(cl, done("outcome"))
		c.refused(c.retry(cl))
	}},
	{"begin_cancelled_on_its_way_is_whole_or_nothing", func(c *check) {
		for range 50 {
			cl := c.claim()
			c.cancelledOnItsWay(func(ctx context.Context) error {
				_, err := c.store.Begin(ctx, cl)
				return err
			})
			if rec := c.get(cl.ID); rec.State != store.Absent {
				require.True(c.t, rec.HeldBy(cl.Token))
			}
			require.Equal(c.t, 1, c.held(cl).Attempt)
			c.refused(c.retry(cl))
		}
	}},
	{"finish_cancelled_on_its_way_is_whole_or_nothing", func(c *check) {
		for range 50 {
			cl := c.claim()
			running := c.held(cl)
			c.cancelledOnItsWay(func(ctx context.Context) error {
				return c.store.Finish(ctx, cl.ID, cl.Token, done("outcome"))
			})
			if rec := c.get(cl.ID); rec.State == store.Done {
				c.isEndOf(running, done("outcome"), rec)
			} else {
				c.equal(running, rec)
			}
			c.isEndOf(running, done("outcome"), c.finish(cl, done("outcome")))
		}
	}},
}

// withdrawn requires that do returns the error of a context that has ended before.
func (c *check) withdrawn(do func(ctx context.Context) error) {
	c.t.Helper()
	cancelled, cancel := context.WithCancel(c.ctx)
	cancel()
	require.ErrorIs(c.t, do(cancelled), context.Canceled)
	late, cancel := context.WithDeadline(c.ctx, time.Now().Add(-time.Second))
	defer cancel()
	require.ErrorIs(c.t, do(late), context.DeadlineExceeded)
}

// cancelledOnItsWay cancels do's context while it may be under way. Only the context's error may come of it.
func (c *check) cancelledOnItsWay(do func(ctx context.Context) error) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- do(ctx) }()
	cancel()
	if err := <-result; err != nil {
		require.ErrorIs(c.t, err, context.Canceled)
	}
}
