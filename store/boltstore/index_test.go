package boltstore_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store/boltstore"
)

func TestIndexAgreesWithAMap(t *testing.T) {
	type pair struct{ tag, loc uint32 }
	random := rand.New(rand.NewPCG(3, 4))
	for _, tags := range []uint32{50, 1 << 12, 1<<32 - 1} { // many collisions, some, none
		var x boltstore.Index
		want := map[pair]bool{}
		var order []pair
		for step := range 60_000 {
			growing := step/15_000%2 == 0
			if len(order) == 0 || random.IntN(10) < 8 == growing {
				p := pair{random.Uint32N(tags) * 0x9E3779B1, 1<<12 + uint32(step)}
				x.Add(p.tag, p.loc)
				want[p] = true
				order = append(order, p)
				continue
			}
			i := random.IntN(len(order))
			p := order[i]
			order[i] = order[len(order)-1]
			order = order[:len(order)-1]
			delete(want, p)
			require.True(t, x.Remove(p.tag, p.loc))
			require.False(t, x.Remove(p.tag, p.loc))
			require.False(t, x.Find(p.tag, p.loc))
		}
		require.Equal(t, len(want), x.Len())
		for p := range want {
			require.True(t, x.Find(p.tag, p.loc))
		}
		for _, p := range order {
			require.True(t, x.Remove(p.tag, p.loc))
		}
		require.Zero(t, x.Len())
		require.LessOrEqual(t, x.Slots(), 64*16, "it has shrunk")
	}
}
