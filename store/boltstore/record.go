package boltstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/proto"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
)

// A record's bytes: version, CRC-32C of all that follows it, ID, and a marshalled oncerpc.v1.Record.
const (
	recordVersion = 1
	recordHead    = 1 + 4 + len(store.ID{})
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeRecord turns r into its bytes. Now is not kept.
func encodeRecord(r store.Record, incarnation uint64) ([]byte, error) {
	m := &oncerpcv1.Record{
		Token:       r.Token[:],
		Owner:       r.Owner[:],
		Method:      r.Method,
		Fingerprint: r.Fingerprint,
		State:       oncerpcv1.Record_State(r.State),
		Attempt:     uint32(r.Attempt),
		First:       nanos(r.First),
		Started:     nanos(r.Started),
		Ended:       nanos(r.Ended),
		Expires:     nanos(r.Expires),
		Ambiguous:   r.Ambiguous,
		Outcome:     r.Outcome,
		Incarnation: incarnation,
	}
	b := make([]byte, recordHead, recordHead+proto.Size(m))
	b[0] = recordVersion
	copy(b[5:], r.ID[:])
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, m)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[5:], castagnoli))
	return b, nil
}

// decodeRecord reads what encodeRecord wrote; nothing of b is kept. Every error is store.ErrUnreadable.
func decodeRecord(b []byte) (r store.Record, incarnation uint64, err error) {
	if len(b) < recordHead {
		return r, 0, fmt.Errorf("%w: %d bytes", store.ErrUnreadable, len(b))
	}
	if b[0] != recordVersion {
		return r, 0, fmt.Errorf("%w: version %d, this binary knows %d", store.ErrUnreadable, b[0], recordVersion)
	}
	if binary.BigEndian.Uint32(b[1:]) != crc32.Checksum(b[5:], castagnoli) {
		return r, 0, fmt.Errorf("%w: wrong checksum", store.ErrUnreadable)
	}
	var m oncerpcv1.Record
	if err := proto.Unmarshal(b[recordHead:], &m); err != nil {
		return r, 0, fmt.Errorf("%w: %w", store.ErrUnreadable, err)
	}
	if len(m.Token) != len(r.Token) || len(m.Owner) != len(r.Owner) ||
		m.State < oncerpcv1.Record_RUNNING || m.State > oncerpcv1.Record_DONE {
		return r, 0, fmt.Errorf("%w: fields out of range", store.ErrUnreadable)
	}
	r = store.Record{
		ID:          store.ID(b[5:recordHead]),
		Token:       store.Token(m.Token),
		Owner:       [8]byte(m.Owner),
		Method:      m.Method,
		Fingerprint: m.Fingerprint,
		State:       store.State(m.State),
		Attempt:     int(m.Attempt),
		First:       instant(m.First),
		Started:     instant(m.Started),
		Ended:       instant(m.Ended),
		Expires:     instant(m.Expires),
		Ambiguous:   m.Ambiguous,
		Outcome:     m.Outcome,
	}
	return r, m.Incarnation, nil
}
