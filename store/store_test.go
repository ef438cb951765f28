package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func TestAs(t *testing.T) {
	m := new(storetest.Memory)
	t.Run("store_has_its_own_powers", func(t *testing.T) {
		w, ok := store.As[store.Waiter](m)
		require.True(t, ok)
		require.Same(t, m, w)
	})
	t.Run("power_is_found_through_wrappers", func(t *testing.T) {
		l, ok := store.As[store.Lister](wrapper{wrapper{m}})
		require.True(t, ok)
		require.Same(t, m, l)
	})
	t.Run("outermost_power_is_taken", func(t *testing.T) {
		type named struct {
			wrapper
			store.Resolver
		}
		outer := named{wrapper{m}, m}
		r, ok := store.As[store.Resolver](wrapper{outer})
		require.True(t, ok)
		require.Equal(t, outer, r)
	})
	t.Run("power_is_not_found_where_there_is_none", func(t *testing.T) {
		for _, s := range []store.Store{nil, wrapper{}, opaque{m}, wrapper{opaque{m}}} {
			r, ok := store.As[store.Renewer](s)
			require.False(t, ok)
			require.Nil(t, r)
		}
	})
}

func TestQueryMatch(t *testing.T) {
	states := []store.State{store.Running, store.Abandoned, store.Released, store.Done}
	t.Run("zero_query_chooses_all_but_the_absent", func(t *testing.T) {
		for _, s := range states {
			require.True(t, store.Query{}.Match(store.Record{State: s}))
		}
		require.False(t, store.Query{}.Match(store.Record{}))
	})
	t.Run("state_is_compared", func(t *testing.T) {
		for _, q := range states {
			for _, s := range states {
				require.Equal(t, q == s, store.Query{State: q}.Match(store.Record{State: s}))
			}
		}
	})
	t.Run("every_field_must_match", func(t *testing.T) {
		r := store.Record{State: store.Done, Ambiguous: true, Owner: [8]byte{1}, Method: "/a.B/C"}
		q := store.Query{State: store.Done, Ambiguous: true, Owner: [8]byte{1}, Method: "/a.B/C"}
		require.True(t, q.Match(r))
		for _, change := range []func(r *store.Record){
			func(r *store.Record) { r.State = store.Released },
			func(r *store.Record) { r.Ambiguous = false },
			func(r *store.Record) { r.Owner = [8]byte{2} },
			func(r *store.Record) { r.Owner = [8]byte{} },
			func(r *store.Record) { r.Method = "/a.B/CD" },
			func(r *store.Record) { r.Method = "" },
			func(r *store.Record) { r.State = store.Absent },
		} {
			other := r
			change(&other)
			require.False(t, q.Match(other), "%+v", other)
			require.Equal(t, other.State != store.Absent, store.Query{}.Match(other))
		}
	})
}

func TestState(t *testing.T) {
	t.Run("numbers_are_those_on_disk", func(t *testing.T) {
		require.Equal(t, []store.State{0, 1, 2, 3, 4},
			[]store.State{store.Absent, store.Running, store.Abandoned, store.Released, store.Done})
	})
	t.Run("string_is_the_name", func(t *testing.T) {
		var names []string
		for s := range store.State(6) {
			names = append(names, s.String())
		}
		require.Equal(t, []string{"absent", "running", "abandoned", "released", "done", "invalid"}, names)
	})
}

func TestRecord(t *testing.T) {
	t.Run("held_by_the_token_of_a_running_record", func(t *testing.T) {
		for s := range store.State(6) {
			require.Equal(t, s == store.Running, store.Record{State: s, Token: token}.HeldBy(token))
			require.False(t, store.Record{State: s, Token: token}.HeldBy(store.Token{}))
		}
	})
	t.Run("id_is_written_in_hexadecimal", func(t *testing.T) {
		require.Equal(t, "010203"+"0000000000000000000000000000000000000000000000000000000000", id.String())
	})
}
