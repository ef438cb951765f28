package storetest

import (
	"context"
	"errors"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

const (
	rounds = 10
	racers = 32
)

var raceCases = []testCase{
	{"one_of_many_first_begins_is_held", func(c *check) {
		for range rounds {
			c.oneIsHeld(c.claim())
		}
	}},
	{"one_of_many_begins_on_a_release_is_held", func(c *check) {
		for range rounds {
			cl, _ := c.ended(released("nothing happened"))
			c.oneIsHeld(cl)
		}
	}},
	{"one_of_many_takeovers_is_held", func(c *check) {
		for range rounds {
			cl, _ := c.ended(abandoned())
			cl.TakeoverBelow = 2
			require.Equal(c.t, 2, c.oneIsHeld(cl).Attempt)
		}
	}},
	{"one_of_many_begins_on_an_expired_record_is_held", func(c *check) {
		for range rounds {
			cl, was := c.ended(done("outcome"))
			c.advanceTo(was.Expires)
			require.Equal(c.t, 1, c.oneIsHeld(cl).Attempt)
		}
	}},
	{"one_of_many_requests_is_held", func(c *check) {
		for range rounds {
			var held []store.Claim
			cl := c.claim()
			claims := c.rivals(cl)
			for i := range claims {
				claims[i].Fingerprint = []byte{byte(i)}
			}
			for i, rec := range c.beginAll(claims) {
				if rec.HeldBy(claims[i].Token) {
					held = append(held, claims[i])
				}
			}
			require.Len(c.t, held, 1)
			rec := c.get(cl.ID)
			require.Equal(c.t, held[0].Fingerprint, rec.Fingerprint)
			require.Equal(c.t, held[0].Token, rec.Token)
		}
	}},
	{"begin_sent_many_times_claims_once", func(c *check) {
		for range rounds {
			cl, _ := c.ended(abandoned())
			cl = c.takeover(cl, 100)
			claims := make([]store.Claim, racers)
			for i := range claims {
				claims[i] = cl
			}
			for _, rec := range c.beginAll(claims) {
				require.True(c.t, rec.HeldBy(cl.Token))
				require.Equal(c.t, 2, rec.Attempt)
			}
		}
	}},
	{"one_of_many_different_ends_is_kept", func(c *check) {
		for range rounds {
			cl := c.claim()
			running := c.held(cl)
			ends := []store.End{done("one"), ambiguous("two"), released("three")}
			errs := race(len(ends), func(i int) error { return c.store.Finish(c.ctx, cl.ID, cl.Token, ends[i]) })
			require.NoError(c.t, errors.Join(errs...))
			rec := c.get(cl.ID)
			for _, e := range ends {
				if string(e.Outcome) == string(rec.Outcome) {
					c.isEndOf(running, e, rec)
					running.ID = store.ID{}
				}
			}
			require.Zero(c.t, running.ID, "the outcome is none of those given: %q", rec.Outcome)
			c.equal(rec, c.finish(cl, done("late")))
		}
	}},
	{"late_finish_or_takeover_wins_and_not_both", func(c *check) {
		for range rounds {
			cl, _ := c.ended(abandoned())
			next := c.takeover(cl, 2)
			var rec store.Record
			errs := race(2, func(i int) (err error) {
				if i == 0 {
					return c.store.Finish(c.ctx, cl.ID, cl.Token, done("late"))
				}
				rec, err = c.store.Begin(c.ctx, next)
				return err
			})
			require.NoError(c.t, errs[1])
			if rec.HeldBy(next.Token) {
				require.ErrorIs(c.t, errs[0], store.ErrLost)
				c.equal(rec, c.get(cl.ID))
				continue
			}
			require.NoError(c.t, errs[0])
			require.Equal(c.t, store.Done.String(), rec.State.String())
			c.equal(rec, c.get(cl.ID))
		}
	}},
	{"late_finish_or_resolve_wins_and_not_both", func(c *check) {
		r := c.resolver()
		for range rounds {
			cl, _ := c.ended(abandoned())
			token := c.token()
			errs := race(2, func(i int) error {
				if i == 0 {
					return c.store.Finish(c.ctx, cl.ID, cl.Token, done("finish"))
				}
				return r.Resolve(c.ctx, cl.ID, cl.Token, token, done("resolve"))
			})
			winner, loser, outcome := errs[0], errs[1], "finish"
			if winner != nil {
				winner, loser, outcome = loser, winner, "resolve"
			}
			require.NoError(c.t, winner)
			require.ErrorIs(c.t, loser, store.ErrLost)
			require.Equal(c.t, outcome, string(c.state(store.Done, cl.ID).Outcome))
		}
	}},
	{"ids_do_not_disturb_each_other", func(c *check) {
		claims := make([]store.Claim, 200)
		for i := range claims {
			claims[i] = c.claim()
		}
		parallel(claims, func(cl store.Claim) error { return c.life(c.ctx, cl) }, func(err error) { require.NoError(c.t, err) })
		for _, cl := range claims {
			rec := c.state(store.Done, cl.ID)
			require.Equal(c.t, cl.ID.String(), string(rec.Outcome))
			require.Equal(c.t, 2, rec.Attempt)
		}
	}},
}

// oneIsHeld sends cl many times at once, each under a token of its own, and returns the record of the one that is held.
func (c *check) oneIsHeld(cl store.Claim) store.Record {
	c.t.Helper()
	var held []store.Record
	claims := c.rivals(cl)
	records := c.beginAll(claims)
	for i, rec := range records {
		if rec.HeldBy(claims[i].Token) {
			held = append(held, rec)
		}
	}
	require.Len(c.t, held, 1, "claims held at once")
	for _, rec := range records {
		c.equal(held[0], rec)
	}
	c.equal(held[0], c.get(cl.ID))
	return held[0]
}

func (c *check) rivals(cl store.Claim) []store.Claim {
	claims := make([]store.Claim, racers)
	for i := range claims {
		claims[i] = c.retry(cl)
	}
	return claims
}

func (c *check) beginAll(claims []store.Claim) []store.Record {
	c.t.Helper()
	records := make([]store.Record, len(claims))
	errs := race(len(claims), func(i int) (err error) {
		records[i], err = c.store.Begin(c.ctx, claims[i])
		return err
	})
	require.NoError(c.t, errors.Join(errs...))
	return records
}

// life leads a record through an abandoned and a released run to an outcome.
func (c *check) life(ctx context.Context, cl store.Claim) error {
	cl.TakeoverBelow = 2
	for _, e := range []store.End{abandoned(), released("nothing happened"), done(cl.ID.String())} {
		cl.Token = c.token()
		rec, err := c.store.Begin(ctx, cl)
		if err != nil {
			return err
		}
		if !rec.HeldBy(cl.Token) {
			return errors.New("a claim that nobody else wants is not held")
		}
		if err := c.store.Finish(ctx, cl.ID, cl.Token, e); err != nil {
			return err
		}
	}
	return nil
}

// race calls do n times at once.
func race(n int, do func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-start
			errs[i] = do(i)
		})
	}
	close(start)
	all.Wait()
	return errs
}
