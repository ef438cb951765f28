// Package storetest tests any [store.Store] against its contract.
//
// [Run] is the contract of package store in executable form: a case for each of its sentences, named after the fact
// that it checks. A store hands it a function that opens an empty store:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Subject {
//			s, err := mystore.Open(filepath.Join(t.TempDir(), "records"))
//			require.NoError(t, err)
//			t.Cleanup(func() { s.Close() })
//			return storetest.Subject{Store: s}
//		})
//	}
//
// The optional powers are found as an interceptor finds them, by [store.As]; the cases of a power that the store lacks
// are skipped. Records that are abandoned are made by Finish, by [Subject].Reopen, and, on a store that is a
// [store.Renewer], by leases that end.
//
// Time passes in a testing/synctest bubble, so that a month costs nothing, unless the subject brings a clock of its own
// as Advance. In a bubble the store must do without network, and every goroutine that it starts must end with the
// cleanups of t.
//
// [Benchmark] measures a store by what a guarded call asks of it. [Memory] is a store for tests of what uses stores:
// several servers may share it as they would a database.
//
// # Limits
//
// What needs a broken disk or a closed store is not tested here: that [store.ErrFull], [store.ErrUnreadable] and
// [store.ErrUnusable] come when they should, and that what was acknowledged outlasts a loss of power.
package storetest
