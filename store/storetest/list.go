package storetest

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

var listCases = []testCase{
	{"empty_store_lists_nothing", func(c *check) {
		require.Empty(c.t, c.list(store.Query{}))
	}},
	{"list_yields_every_record_as_get_returns_it", func(c *check) {
		c.lister()
		c.listed(store.Query{}, c.everyState()...)
	}},
	{"query_chooses_by_state", func(c *check) {
		c.lister()
		records := c.everyState()
		for _, s := range []store.State{store.Running, store.Abandoned, store.Released, store.Done} {
			c.listed(store.Query{State: s}, records...)
		}
	}},
	{"query_chooses_the_ambiguous", func(c *check) {
		c.lister()
		records := c.everyState()
		c.listed(store.Query{Ambiguous: true}, records...)
		c.listed(store.Query{Ambiguous: true, State: store.Done}, records...)
		c.listed(store.Query{Ambiguous: true, State: store.Running}, records...)
	}},
	{"query_chooses_by_owner_and_method", func(c *check) {
		c.lister()
		var records []store.Record
		owners, methods := [][8]byte{{}, {1}, {0, 0, 0, 0, 0, 0, 0, 1}}, []string{"", "/a.B/C", "/a.B/CD", "/A.B/C"}
		for _, owner := range owners {
			for _, method := range methods {
				for _, e := range []store.End{{}, done("outcome"), ambiguous("unknown")} {
					cl := c.claim()
					cl.Owner, cl.Method = owner, method
					rec := c.held(cl)
					if e.State != store.Absent {
						rec = c.finish(cl, e)
					}
					records = append(records, rec)
				}
			}
		}
		for _, owner := range append(owners, [8]byte{2}) {
			for _, method := range append(methods, "/a.B") {
				c.listed(store.Query{Owner: owner, Method: method}, records...)
				c.listed(store.Query{Owner: owner, Method: method, State: store.Done, Ambiguous: true}, records...)
			}
		}
	}},
	{"expired_is_not_listed", func(c *check) {
		c.lister()
		_, was := c.ended(done("outcome"))
		_, kept := c.ended(abandoned())
		c.advanceTo(was.Expires)
		c.listed(store.Query{}, kept)
		c.listed(store.Query{State: store.Done})
	}},
	{"lease_that_ended_is_listed_as_abandoned", func(c *check) {
		c.lister()
		c.renewer()
		_, rec := c.running()
		c.listed(store.Query{State: store.Running}, rec)
		c.advance(lease)
		rec.State = store.Abandoned
		c.listed(store.Query{State: store.Running}, rec)
		c.listed(store.Query{State: store.Abandoned}, rec)
	}},
	{"record_is_listed_once_and_in_its_last_form", func(c *check) {
		c.lister()
		cl, _ := c.ended(abandoned())
		cl = c.takeover(cl, 2)
		c.held(cl)
		c.finish(cl, released("nothing happened"))
		cl = c.retry(cl)
		rec := c.held(cl)
		c.listed(store.Query{}, rec)
		c.listed(store.Query{}, c.finish(cl, done("outcome")))
	}},
	{"list_can_be_left_early", func(c *check) {
		l := c.lister()
		records := c.everyState()
		for range 3 {
			for _, err := range l.List(c.ctx, store.Query{}) {
				require.NoError(c.t, err)
				break
			}
		}
		c.listed(store.Query{}, records...)
		c.ended(done("outcome"))
	}},
	{"store_can_be_called_while_listing", func(c *check) {
		l := c.lister()
		records := c.everyState()
		i := 0
		for rec, err := range l.List(c.ctx, store.Query{}) {
			require.NoError(c.t, err)
			if i++; i > len(records) {
				break // a list may follow the records that come
			}
			c.promptly(func() error {
				cl := c.claim()
				_, err := c.store.Begin(c.ctx, cl)
				finished := c.store.Finish(c.ctx, cl.ID, cl.Token, done("outcome"))
				_, got := c.store.Get(c.ctx, rec.ID)
				for _, err := range l.List(c.ctx, store.Query{}) {
					return errors.Join(err, finished, got)
				}
				return err
			})
		}
	}},
	{"what_stays_is_listed_once_while_others_change", func(c *check) {
		l := c.lister()
		var staying, changing []store.Claim
		for range 100 {
			cl, _ := c.ended(done("stays"))
			staying = append(staying, cl)
			cl, _ = c.ended(released("changes"))
			changing = append(changing, cl)
		}
		seen := make(map[store.ID]int)
		i := 0
		for rec, err := range l.List(c.ctx, store.Query{}) {
			require.NoError(c.t, err)
			seen[rec.ID]++
			if i++; i > 1000 {
				require.FailNow(c.t, "the list does not end")
			}
			next := c.retry(changing[i%len(changing)])
			c.begin(next)
			require.NoError(c.t, ignoreLost(c.store.Finish(c.ctx, next.ID, next.Token, released("changed"))))
			if i < 200 {
				c.ended(done("new"))
			}
		}
		for _, cl := range staying {
			require.Equal(c.t, 1, seen[cl.ID], "times that a record which stays was yielded")
		}
		for _, cl := range changing {
			require.NotZero(c.t, seen[cl.ID], "a record that changes was not yielded")
		}
	}},
}

// list returns what q chooses, by ID, and requires that nothing comes twice.
func (c *check) list(q store.Query) map[store.ID]store.Record {
	c.t.Helper()
	records := make(map[store.ID]store.Record)
	for rec, err := range c.lister().List(c.ctx, q) {
		require.NoError(c.t, err)
		require.False(c.t, rec.Now.IsZero(), "Now is zero")
		require.NotContains(c.t, records, rec.ID, "a record came twice")
		records[rec.ID] = rec
	}
	return records
}

// listed requires that q chooses those of the records that it matches, and nothing else.
func (c *check) listed(q store.Query, records ...store.Record) {
	c.t.Helper()
	got := c.list(q)
	want := 0
	for _, rec := range records {
		if !q.Match(rec) {
			require.NotContains(c.t, got, rec.ID, "%v by %+v", rec.State, q)
			continue
		}
		want++
		require.Contains(c.t, got, rec.ID, "%v by %+v", rec.State, q)
		c.equal(rec, got[rec.ID])
	}
	require.Len(c.t, got, want)
}

// everyState makes records of every state, some of them twice.
func (c *check) everyState() []store.Record {
	c.t.Helper()
	_, running := c.running()
	cl := c.claim()
	cl.Volatile = true
	records := []store.Record{running, c.held(cl)}
	for _, e := range []store.End{abandoned(), released("nothing happened"), done("outcome"), ambiguous("unknown"), done("")} {
		_, rec := c.ended(e)
		records = append(records, rec)
	}
	cl, _ = c.ended(released("nothing happened"))
	records = append(records, c.held(c.retry(cl)))
	cl, _ = c.ended(abandoned())
	return append(records, c.held(c.takeover(cl, 2)))
}

// promptly requires that do returns without an error, and without waiting for what its caller does.
func (c *check) promptly(do func() error) {
	c.t.Helper()
	returned := make(chan error, 1)
	go func() { returned <- do() }()
	select {
	case err := <-returned:
		require.NoError(c.t, err)
	case <-time.After(patience):
		require.FailNow(c.t, "the store does not answer")
	}
}

func ignoreLost(err error) error {
	if errors.Is(err, store.ErrLost) {
		return nil
	}
	return err
}
