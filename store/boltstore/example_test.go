package boltstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// A payment and the record of its call are committed together: a crash leaves both or neither.
func ExampleTransact() {
	folder, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	records, err := boltstore.Open(filepath.Join(folder, "idempotency.db"))
	if err != nil {
		panic(err)
	}

	// In a handler, the context of a guarded call comes from the interceptor.
	ctx := context.Background()
	charge := func(cents uint64) (uint64, error) {
		return boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (uint64, error) {
			account, err := tx.CreateBucketIfNotExists([]byte("account"))
			if err != nil {
				return 0, err
			}
			if account.Sequence()+cents > 100 {
				return 0, errors.New("over the limit") // nothing is written
			}
			return account.Sequence() + cents, account.SetSequence(account.Sequence() + cents)
		})
	}
	fmt.Println(charge(60))
	fmt.Println(charge(60))
	fmt.Println(charge(40))
	err = records.View(func(tx *bbolt.Tx) error {
		fmt.Println("charged:", tx.Bucket([]byte("account")).Sequence())
		return nil
	})
	fmt.Println(err, records.Close())
	// Output:
	// 60 <nil>
	// 0 over the limit
	// 100 <nil>
	// charged: 100
	// <nil> <nil>
}

func ExampleOpen() {
	folder, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	records, err := boltstore.Open(filepath.Join(folder, "idempotency.db"))
	if err != nil {
		panic(err)
	}

	ctx := context.Background()
	first := store.Claim{ID: store.ID{1}, Token: store.Token{1}, Fingerprint: []byte("charge 5")}
	r, err := records.Begin(ctx, first)
	fmt.Println(r.HeldBy(first.Token), err)
	fmt.Println(records.Finish(ctx, first.ID, first.Token,
		store.End{State: store.Done, Outcome: []byte("charged"), Retention: time.Hour}))

	retry := store.Claim{ID: store.ID{1}, Token: store.Token{2}, Fingerprint: []byte("charge 5")}
	r, err = records.Begin(ctx, retry)
	fmt.Println(r.HeldBy(retry.Token), r.State, string(r.Outcome), err)
	fmt.Println(records.Close())
	// Output:
	// true <nil>
	// <nil>
	// false done charged <nil>
	// <nil>
}
