package storetest_test

import (
	"testing"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, openMemory)
}

func openMemory(*testing.T) storetest.Subject {
	m := new(storetest.Memory)
	return storetest.Subject{Store: m, Reopen: func() store.Store {
		m = m.Reopen()
		return m
	}}
}

func BenchmarkMemory(b *testing.B) {
	storetest.Benchmark(b, func(*testing.B) store.Store { return new(storetest.Memory) })
}
