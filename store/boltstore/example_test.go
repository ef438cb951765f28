package boltstore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

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
