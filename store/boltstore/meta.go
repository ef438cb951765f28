package boltstore

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"go.etcd.io/bbolt"
)

// The buckets and keys of the layout, see doc.go.
var (
	rootBucket     = []byte("oncerpc")
	metaBucket     = []byte("meta")
	slotsBucket    = []byte("running")
	segmentsBucket = []byte("segments")

	versionKey     = []byte("version")
	saltKey        = []byte("salt")
	incarnationKey = []byte("incarnation")
	timeKey        = []byte("time")
	recordsKey     = []byte("records")
	claimsKey      = []byte("claims")
)

const layoutVersion = 1

// layout makes the buckets of an empty store.
func layout(tx *bbolt.Tx) error {
	root, err := tx.CreateBucket(rootBucket)
	if err != nil {
		return err
	}
	meta, err := root.CreateBucket(metaBucket)
	if err != nil {
		return err
	}
	var salt [16]byte
	_, _ = rand.Read(salt[:]) // never fails
	_, slotsErr := root.CreateBucket(slotsBucket)
	_, segmentsErr := root.CreateBucket(segmentsBucket)
	return errors.Join(slotsErr, segmentsErr,
		putMeta(meta, saltKey, salt[:]),
		putNumber(meta, versionKey, layoutVersion),
		putNumber(meta, incarnationKey, 0),
		putNumber(meta, timeKey, 0),
		putNumber(meta, recordsKey, 0),
		putNumber(meta, claimsKey, 0))
}

// putMeta keeps a value, followed by the CRC-32C of its key and itself.
func putMeta(meta *bbolt.Bucket, key, value []byte) error {
	sum := crc32.Checksum(append(bytes.Clone(key), value...), castagnoli)
	return meta.Put(key, binary.BigEndian.AppendUint32(bytes.Clone(value), sum))
}

func getMeta(meta *bbolt.Bucket, key []byte, size int) ([]byte, error) {
	v := meta.Get(key)
	if len(v) != size+4 ||
		crc32.Checksum(append(bytes.Clone(key), v[:size]...), castagnoli) != binary.BigEndian.Uint32(v[size:]) {
		return nil, fmt.Errorf("the file is damaged: its %s cannot be read", key)
	}
	return bytes.Clone(v[:size]), nil
}

func putNumber(meta *bbolt.Bucket, key []byte, n uint64) error {
	return putMeta(meta, key, binary.BigEndian.AppendUint64(nil, n))
}

func getNumber(meta *bbolt.Bucket, key []byte) (uint64, error) {
	v, err := getMeta(meta, key, 8)
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(v), nil
}

// writeTime keeps the time of a commit: the clock of a later opening does not begin before it.
func writeTime(root *bbolt.Bucket, now time.Time) error {
	return putNumber(root.Bucket(metaBucket), timeKey, uint64(nanos(now)))
}

// writeCounts keeps how many records and claims there are: one that damage hides would otherwise be absent, and run
// again.
func (fx *effects) writeCounts() error {
	meta := fx.root.Bucket(metaBucket)
	return errors.Join(putNumber(meta, recordsKey, uint64(fx.kept())), putNumber(meta, claimsKey, uint64(fx.s.slots.used()-len(fx.freed))))
}

// kept is how many records there are in segments after this transaction.
func (fx *effects) kept() int {
	n, dropped := fx.s.kept, 0
	if fx.dropped != nil {
		dropped = fx.dropped.kept
	}
	for _, c := range fx.changes {
		switch {
		case c.odd:
		case c.add:
			n++
		default:
			n--
			if fx.dropped != nil && c.loc.handle() == fx.dropped.handle {
				dropped--
			}
		}
	}
	return n - dropped
}

// checkCounts compares what was read with what there should be.
func (s *Store) checkCounts(meta *bbolt.Bucket) error {
	records, recordsErr := getNumber(meta, recordsKey)
	claims, claimsErr := getNumber(meta, claimsKey)
	if err := errors.Join(recordsErr, claimsErr); err != nil {
		return err
	}
	if records != uint64(s.kept) || claims != uint64(s.slots.used()) {
		return fmt.Errorf("the file is damaged: of %d records and %d claims it shows %d and %d: restore it from a copy",
			records, claims, s.kept, s.slots.used())
	}
	return nil
}

// loadMeta reads the meta bucket, and starts the clock.
func (s *Store) loadMeta(meta *bbolt.Bucket) error {
	version, err := getNumber(meta, versionKey)
	if err != nil {
		return err
	}
	if version > layoutVersion {
		return fmt.Errorf("the file has layout version %d, this binary knows versions up to %d: use a newer one",
			version, layoutVersion)
	}
	salt, saltErr := getMeta(meta, saltKey, len(s.salt))
	last, timeErr := getNumber(meta, timeKey)
	incarnation, err := getNumber(meta, incarnationKey)
	if err := errors.Join(saltErr, timeErr, err); err != nil {
		return err
	}
	s.salt = [16]byte(salt)
	s.incarnation = incarnation + 1
	s.clock = startClock(instant(int64(last)))
	return nil
}
