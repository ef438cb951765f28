package boltstore

import (
	"context"

	"go.etcd.io/bbolt"
)

// TransactRepeatable is [Transact] for an fn that may run more than once.
func TransactRepeatable[T any](ctx context.Context, s *Store, fn func(tx *bbolt.Tx) (T, error)) (T, error) {
	return transact(ctx, fn, s.alone)
}
