package storetest

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

var beginCases = []testCase{
	{"unknown_id_is_absent", func(c *check) {
		c.state(store.Absent, c.id())
	}},
	{"first_begin_claims", func(c *check) {
		cl := c.claim()
		before := c.now()
		rec := c.held(cl)
		c.equal(store.Record{
			ID: cl.ID, Token: cl.Token, Owner: cl.Owner, Method: cl.Method, Fingerprint: cl.Fingerprint,
			State: store.Running, Attempt: 1, First: rec.Started, Started: rec.Started,
		}, rec)
		require.False(c.t, rec.Started.Before(before), "Started lies before the call")
		require.False(c.t, rec.Started.After(rec.Now), "Started lies after the answer")
	}},
	{"claim_is_what_get_returns", func(c *check) {
		cl := c.claim()
		rec := c.held(cl)
		c.advance(time.Second)
		c.equal(rec, c.get(cl.ID))
	}},
	{"now_is_when_the_store_answered", func(c *check) {
		cl := c.claim()
		before := c.held(cl)
		c.advance(time.Minute)
		passed := c.get(cl.ID).Now.Sub(before.Now)
		require.InDelta(c.t, time.Minute, passed, float64(10*time.Second))
	}},
	{"second_begin_gets_the_running_record", func(c *check) {
		cl := c.claim()
		c.held(cl)
		c.refused(c.retry(cl))
	}},
	{"begin_sent_again_is_held_and_changes_nothing", func(c *check) {
		cl := c.claim()
		rec := c.held(cl)
		c.advance(time.Second)
		c.equal(rec, c.held(cl))
		c.equal(rec, c.get(cl.ID))
	}},
	{"begin_sent_again_after_the_end_is_not_held", func(c *check) {
		cl, _ := c.ended(done("outcome"))
		c.refused(cl)
	}},
	{"begin_sent_again_after_a_takeover_is_not_held", func(c *check) {
		cl, _ := c.ended(abandoned())
		c.held(c.takeover(cl, 2))
		c.refused(cl)
		cl.TakeoverBelow = 3
		c.refused(cl)
	}},
	{"begin_sent_again_after_another_claimed_the_release_is_not_held", func(c *check) {
		cl, _ := c.ended(released("nothing happened"))
		c.held(c.retry(cl))
		c.refused(cl)
	}},
	{"begin_on_done_gets_the_outcome", func(c *check) {
		cl, _ := c.ended(done("outcome"))
		c.refused(c.retry(cl))
		require.Equal(c.t, "outcome", string(c.begin(c.retry(cl)).Outcome))
	}},
	{"released_is_claimed_with_its_first_and_attempt", func(c *check) {
		cl, was := c.ended(released("nothing happened"))
		c.advance(time.Second)
		next := c.retry(cl)
		rec := c.held(next)
		require.Equal(c.t, 1, rec.Attempt)
		require.True(c.t, rec.First.Equal(was.First), "First has changed")
		require.True(c.t, rec.Started.After(was.Started), "Started is that of the run before")
		c.equal(rec, c.get(cl.ID))
	}},
	{"outcome_of_a_release_is_gone_once_it_is_claimed", func(c *check) {
		cl, _ := c.ended(released("nothing happened"))
		next := c.retry(cl)
		rec := c.held(next)
		require.Empty(c.t, rec.Outcome)
		require.True(c.t, rec.Ended.IsZero(), "Ended is not zero")
		require.True(c.t, rec.Expires.IsZero(), "Expires is not zero")
		rec = c.finish(next, abandoned())
		require.Empty(c.t, rec.Outcome)
	}},
	{"other_fingerprint_gets_the_running_record", func(c *check) {
		cl := c.claim()
		c.held(cl)
		c.refused(c.otherRequest(cl))
	}},
	{"other_fingerprint_gets_the_done_record", func(c *check) {
		cl, _ := c.ended(done("outcome"))
		c.refused(c.otherRequest(cl))
	}},
	{"other_fingerprint_does_not_claim_a_release", func(c *check) {
		cl, _ := c.ended(released("nothing happened"))
		c.refused(c.otherRequest(cl))
		c.held(c.retry(cl))
	}},
	{"other_fingerprint_does_not_take_over", func(c *check) {
		cl, _ := c.ended(abandoned())
		c.refused(c.otherRequest(cl))
		c.held(c.takeover(cl, 2))
	}},
	{"fingerprints_are_compared_as_bytes", func(c *check) {
		cl, _ := c.ended(released("nothing happened"))
		for _, fingerprint := range []string{"", "f", "fingerprin", "fingerprint\x00", "fingerprint2", "Fingerprint", "fingerprinT", "gingerprint"} {
			other := c.retry(cl)
			other.Fingerprint = []byte(fingerprint)
			c.refused(other)
		}
		c.held(c.retry(cl))
	}},
	{"fingerprint_may_be_any_bytes", func(c *check) {
		for _, fingerprint := range [][]byte{nil, {0}, {0, 0}, {0xff, 0xfe}, bytes.Repeat([]byte{0xff}, 1000)} {
			cl := c.claim()
			cl.Fingerprint = fingerprint
			c.held(cl)
			c.finish(cl, released("nothing happened"))
			c.held(c.retry(cl))
		}
	}},
	{"empty_fingerprint_is_nil", func(c *check) {
		cl := c.claim()
		cl.Fingerprint = nil
		c.held(cl)
		c.finish(cl, released("nothing happened"))
		cl = c.retry(cl)
		cl.Fingerprint = []byte{}
		c.held(cl)
	}},
	{"owner_and_method_are_not_compared", func(c *check) {
		cl := c.claim()
		c.held(cl)
		other := c.retry(cl)
		other.Owner, other.Method = [8]byte{1}, "/other.Service/Method"
		c.refused(other)
		c.finish(cl, released("nothing happened"))
		c.held(other)
	}},
	{"ids_are_told_apart_by_every_byte", func(c *check) {
		base := c.id()
		claims := map[store.ID]store.Claim{base: c.claim()}
		for i := range base {
			first, last := base, base
			first[i] ^= 0x80
			last[i] ^= 0x01
			claims[first], claims[last] = c.claim(), c.claim()
		}
		for _, b := range []byte{0x00, 0xff} {
			id := store.ID(bytes.Repeat([]byte{b}, len(store.ID{})))
			id[31] ^= 0x01
			claims[id] = c.claim()
		}
		for id, cl := range claims {
			cl.ID = id
			c.held(cl)
			c.finish(cl, done(id.String()))
		}
		for id := range claims {
			require.Equal(c.t, id.String(), string(c.state(store.Done, id).Outcome))
		}
	}},
	{"thousand_ids_are_kept_apart", func(c *check) {
		claims := make([]store.Claim, 1000)
		for i := range claims {
			claims[i] = c.claim()
		}
		parallel(claims, func(cl store.Claim) error {
			if _, err := c.store.Begin(c.ctx, cl); err != nil {
				return err
			}
			return c.store.Finish(c.ctx, cl.ID, cl.Token, done(cl.ID.String()))
		}, func(err error) { require.NoError(c.t, err) })
		for _, cl := range claims {
			rec := c.state(store.Done, cl.ID)
			require.Equal(c.t, cl.Token, rec.Token)
			require.Equal(c.t, cl.ID.String(), string(rec.Outcome))
		}
	}},
}

// otherRequest is a claim on the same ID for another request, with every permission.
func (c *check) otherRequest(cl store.Claim) store.Claim {
	cl = c.takeover(cl, 100)
	cl.Fingerprint = []byte("another fingerprint")
	return cl
}

// parallel calls do for all items, 50 at a time, then verify with each result.
func parallel[T, R any](items []T, do func(T) R, verify func(R)) {
	results := make([]R, len(items))
	var all sync.WaitGroup
	n := (len(items) + 49) / 50
	at := 0
	for some := range slices.Chunk(items, n) {
		from := at
		at += len(some)
		all.Go(func() {
			for i, item := range some {
				results[from+i] = do(item)
			}
		})
	}
	all.Wait()
	for _, r := range results {
		verify(r)
	}
}
