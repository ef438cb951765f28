package boltstore_test

import (
	"testing"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func Benchmark(b *testing.B) {
	storetest.Benchmark(b, func(b *testing.B) store.Store {
		s, _ := newStore(b)
		return s
	})
}
