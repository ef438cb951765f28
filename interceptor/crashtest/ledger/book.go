package main

import (
	"context"
	"encoding/binary"
	"errors"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/interceptor/crashtest"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// openBook makes the accounts if they are not there.
func openBook(bolt *boltstore.Store) error {
	_, err := boltstore.Transact(context.Background(), bolt, func(tx *bbolt.Tx) (none any, err error) {
		if tx.Bucket(crashtest.AccountsBucket) != nil {
			return nil, nil
		}
		accounts, err := tx.CreateBucket(crashtest.AccountsBucket)
		if err != nil {
			return nil, err
		}
		for i := range crashtest.Accounts {
			err = errors.Join(err, add(accounts, []byte{byte('0' + i)}, crashtest.Balance))
		}
		_, journalErr := tx.CreateBucket(crashtest.JournalBucket)
		_, declinedErr := tx.CreateBucket(crashtest.DeclinedBucket)
		return nil, errors.Join(err, journalErr, declinedErr)
	})
	return err
}

// transfer moves the money and counts the call.
func transfer(tx *bbolt.Tx, r *testpb.Request) error {
	accounts := tx.Bucket(crashtest.AccountsBucket)
	return errors.Join(
		add(accounts, []byte(r.GetLabels()["from"]), -r.GetNumber()),
		add(accounts, []byte(r.GetLabels()["to"]), r.GetNumber()),
		add(tx.Bucket(crashtest.JournalBucket), []byte(r.GetText()), 1))
}

// decline counts a call that was refused.
func decline(tx *bbolt.Tx, r *testpb.Request) error {
	return add(tx.Bucket(crashtest.DeclinedBucket), []byte(r.GetText()), 1)
}

func add(b *bbolt.Bucket, key []byte, n int64) error {
	if v := b.Get(key); len(v) == 8 {
		n += int64(binary.BigEndian.Uint64(v))
	}
	return b.Put(key, binary.BigEndian.AppendUint64(nil, uint64(n)))
}
