package storetest

import (
	"crypto/rand"
	"errors"
	"testing"

	"github.com/oncerpc/oncerpc/store"
)

// Benchmark measures a store by what a guarded call asks of it: the cycle of a claim and its end, one at a time and
// many at once, the claim that finds an outcome, and the look at an ID that is not there. open opens an empty store for
// each, and closes it by b.Cleanup.
func Benchmark(b *testing.B, open func(b *testing.B) store.Store) {
	b.Run("cycle", func(b *testing.B) {
		s := open(b)
		b.ReportAllocs()
		for b.Loop() {
			cycle(b, s)
		}
	})
	b.Run("cycle_parallel", func(b *testing.B) {
		s := open(b)
		b.ReportAllocs()
		b.SetParallelism(64)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				cycle(b, s)
			}
		})
	})
	b.Run("replay", func(b *testing.B) {
		s := open(b)
		claims := make([]store.Claim, 1000)
		for i := range claims {
			claims[i] = cycle(b, s)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			cl := claims[i%len(claims)]
			cl.Token = randomToken()
			rec, err := s.Begin(b.Context(), cl)
			if err != nil || rec.State != store.Done {
				b.Fatal(rec.State, err)
			}
		}
	})
	b.Run("miss", func(b *testing.B) {
		s := open(b)
		cycle(b, s)
		b.ReportAllocs()
		for b.Loop() {
			rec, err := s.Get(b.Context(), randomID())
			if err != nil || rec.State != store.Absent {
				b.Fatal(rec.State, err)
			}
		}
	})
}

// cycle claims a fresh ID and ends it with an outcome of a usual size.
func cycle(b *testing.B, s store.Store) store.Claim {
	cl := store.Claim{
		ID:          randomID(),
		Token:       randomToken(),
		Method:      "/bank.v1.Payments/Charge",
		Fingerprint: make([]byte, 36),
		Lease:       lease,
	}
	rec, err := s.Begin(b.Context(), cl)
	if err == nil && !rec.HeldBy(cl.Token) {
		err = errors.New("a claim on a fresh ID is not held")
	}
	if err == nil {
		err = s.Finish(b.Context(), cl.ID, cl.Token, store.End{State: store.Done, Outcome: make([]byte, 150), Retention: retention})
	}
	if err != nil {
		b.Error(err)
	}
	return cl
}

func randomID() (id store.ID) {
	rand.Read(id[:])
	return id
}

func randomToken() (t store.Token) {
	rand.Read(t[:])
	return t
}
