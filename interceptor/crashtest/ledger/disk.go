package main

import (
	"context"
	"reflect"
	"unsafe"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store/boltstore"
)

// halfMeta is less than the part of a meta page that its checksum covers.
const halfMeta = 40

// watch puts the trap around bbolt's writes to the file. A commit writes its pages and syncs, then writes the meta page
// that makes them count and syncs again.
func (t *trap) watch(bolt *boltstore.Store) error {
	_, err := boltstore.Transact(context.Background(), bolt, func(tx *bbolt.Tx) (none any, err error) {
		ops := reflect.ValueOf(tx.DB()).Elem().FieldByName("ops").FieldByName("writeAt")
		at := (*func(b []byte, off int64) (int, error))(unsafe.Pointer(ops.UnsafeAddr()))
		writeAt, metas := *at, int64(2*tx.DB().Info().PageSize)
		*at = func(b []byte, off int64) (int, error) {
			if off >= metas {
				t.at("commit.pages")
				return writeAt(b, off)
			}
			t.at("commit.meta")
			if t.point == "commit.torn" && t.left.Add(-1) == 0 {
				_, _ = writeAt(b[:halfMeta], off)
				t.spring()
			}
			n, err := writeAt(b, off)
			t.at("commit.unsynced")
			return n, err
		}
		return nil, nil
	})
	return err
}
