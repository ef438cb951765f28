package storetest

import (
	"bytes"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

var valueCases = []testCase{
	{"fingerprint_given_to_begin_is_not_kept", func(c *check) {
		cl := c.claim()
		given := c.retry(cl)
		given.Fingerprint = bytes.Clone(cl.Fingerprint)
		rec := c.held(given)
		clear(given.Fingerprint)
		c.equal(rec, c.get(cl.ID))
		c.finish(given, released("nothing happened"))
		c.refused(c.takeover(given, 100))
		c.held(c.retry(cl))
	}},
	{"outcome_given_to_finish_is_not_kept", func(c *check) {
		for _, e := range []store.End{done("outcome"), released("nothing happened"), {State: store.Abandoned, Outcome: []byte("panic")}} {
			want := string(e.Outcome)
			cl := c.claim()
			c.held(cl)
			require.NoError(c.t, c.store.Finish(c.ctx, cl.ID, cl.Token, e))
			clear(e.Outcome)
			require.Equal(c.t, want, string(c.get(cl.ID).Outcome))
		}
	}},
	{"outcome_given_to_finish_sent_again_is_not_kept", func(c *check) {
		cl, rec := c.ended(done("outcome"))
		e := done("outcome")
		require.NoError(c.t, c.store.Finish(c.ctx, cl.ID, cl.Token, e))
		clear(e.Outcome)
		c.equal(rec, c.get(cl.ID))
	}},
	{"outcome_given_to_resolve_is_not_kept", func(c *check) {
		r := c.resolver()
		cl, _ := c.ended(abandoned())
		e := done("outcome")
		require.NoError(c.t, r.Resolve(c.ctx, cl.ID, cl.Token, c.token(), e))
		clear(e.Outcome)
		require.Equal(c.t, "outcome", string(c.get(cl.ID).Outcome))
	}},
	{"record_given_by_begin_is_not_shared", func(c *check) {
		cl := c.claim()
		rec := c.held(cl)
		clear(rec.Fingerprint)
		require.Equal(c.t, "fingerprint", string(cl.Fingerprint), "the record shares the bytes of its claim")
		c.unshared(cl.ID, func() store.Record { return c.held(cl) })
		c.finish(cl, done("outcome"))
		c.unshared(cl.ID, func() store.Record { return c.begin(c.retry(cl)) })
	}},
	{"record_given_by_get_is_not_shared", func(c *check) {
		for _, e := range []store.End{done("outcome"), released("nothing happened"), {State: store.Abandoned, Outcome: []byte("panic")}} {
			cl, _ := c.ended(e)
			c.unshared(cl.ID, func() store.Record { return c.get(cl.ID) })
		}
	}},
	{"record_given_by_list_is_not_shared", func(c *check) {
		c.lister()
		cl, _ := c.ended(done("outcome"))
		c.unshared(cl.ID, func() store.Record { return c.list(store.Query{})[cl.ID] })
	}},
	{"outcome_may_be_any_bytes", func(c *check) {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		for _, outcome := range [][]byte{nil, {}, {0}, {0, 0, 0}, {0xff}, every} {
			for _, state := range []store.State{store.Done, store.Released, store.Abandoned} {
				_, rec := c.ended(store.End{State: state, Outcome: outcome, Retention: retention})
				require.Equal(c.t, state.String(), rec.State.String())
				require.Equal(c.t, string(outcome), string(rec.Outcome))
			}
		}
	}},
	{"outcome_may_be_of_any_size_to_5_mib", func(c *check) {
		for _, size := range []int{1, 127, 128, 255, 256, 4000, 4095, 4096, 4097, 8191, 8192, 65535, 65536, 65537, 1 << 20, 5 << 20} {
			outcome := bytes.Repeat([]byte("0123456789abcdef!"), size/17+1)[:size]
			cl, rec := c.ended(store.End{State: store.Done, Outcome: outcome, Retention: retention})
			require.True(c.t, bytes.Equal(outcome, rec.Outcome), "%d bytes came back as %d others", size, len(rec.Outcome))
			rec = c.begin(c.retry(cl))
			require.True(c.t, bytes.Equal(outcome, rec.Outcome), "%d bytes came back as %d others", size, len(rec.Outcome))
		}
	}},
	{"owner_and_method_are_stored", func(c *check) {
		methods := []string{"", "/a.B/C", "/ä.Ö/ü\x00", "/" + strings.Repeat("long.", 200) + "Service/Method"}
		for i, method := range methods {
			for _, owner := range [][8]byte{{}, {0, 0, 0, 0, 0, 0, 0, 1}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, byte(i)}} {
				cl := c.claim()
				cl.Owner, cl.Method = owner, method
				for _, rec := range []store.Record{c.held(cl), c.get(cl.ID), c.finish(cl, done("outcome")), c.begin(c.retry(cl))} {
					require.Equal(c.t, owner, rec.Owner)
					require.Equal(c.t, method, rec.Method)
				}
			}
		}
	}},
}

// unshared requires that a caller may write to the record that read returns.
func (c *check) unshared(id store.ID, read func() store.Record) {
	c.t.Helper()
	want := c.get(id)
	want.Fingerprint, want.Outcome = bytes.Clone(want.Fingerprint), bytes.Clone(want.Outcome)
	for range 2 {
		got := read()
		clear(got.Fingerprint)
		clear(got.Outcome)
		_ = append(got.Fingerprint, "more"...)
		_ = append(got.Outcome, "more"...)
		c.equal(want, c.get(id))
		c.equal(want, read())
	}
}
