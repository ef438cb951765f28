package boltstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"time"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
)

// segment is a bucket of records that expire at about the same time. Records are appended until it is sealed, and it
// is dropped as a whole.
type segment struct {
	handle int    // its place in memory; used again once it is dropped
	number uint64 // its name in the file; never used again
	stream uint8
	sealed bool
	next   int   // the next position
	bytes  int   // of the values appended
	latest int64 // when the last of its records expires, in nanoseconds
	odd    []entry

	began        time.Time // when its first record was appended
	released     []int     // the positions of its Released records, until it is sealed
	kept         int       // how many records it has
	keptReleased int       // of these
}

// entry is what the index knows of a record: the hash of its ID, and its position in the segment.
type entry struct {
	hash     uint64
	position int
	released bool // known of sealed segments
}

// How much a segment holds. Variables, so that tests can make small ones.
var (
	segmentRecords = 2048
	segmentBytes   = 16 << 20
)

// The keys of a segment's bucket, in their order. Records have two bytes of position and eight of the ID's hash; the
// hash is there so that a record whose own bytes cannot be read is still found, and refused.
const (
	headerKey  = 0x00 // one byte alone: layout version and stream
	deletedKey = 0xfe // and two bytes of position: a record deleted after the segment was sealed
	indexKey   = 0xff // one byte alone: the index of a sealed segment

	recordKeyLen = 2 + 8
	releasedBit  = 1 << 15 // of a position in an index
)

const segmentVersion = 1

// streamOf tells the stream that a record of this retention belongs to: the power of two of its seconds.
func streamOf(retention time.Duration) uint8 {
	return uint8(bits.Len64(uint64(max(retention, 0) / time.Second)))
}

// longest is the longest retention in a stream.
func longest(stream uint8) time.Duration {
	if stream >= 33 {
		return math.MaxInt64
	}
	return time.Duration(1) << stream * time.Second
}

// segmentAge is how long records are appended to a segment of a stream: the first would otherwise wait for the last, when
// few come, and take room for many times their retention.
func segmentAge(stream uint8) time.Duration { return max(longest(stream)/16, time.Second) }

func segmentName(number uint64) []byte { return binary.BigEndian.AppendUint64(nil, number) }

func recordKey(position int, hash uint64) []byte {
	k := make([]byte, 0, recordKeyLen)
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint16(k, uint16(position)), hash)
}

func deletedMark(position int) []byte {
	return binary.BigEndian.AppendUint16([]byte{deletedKey}, uint16(position))
}

func parseRecordKey(k []byte) (entry, bool) {
	if len(k) != recordKeyLen {
		return entry{}, false
	}
	e := entry{hash: binary.BigEndian.Uint64(k[2:]), position: int(binary.BigEndian.Uint16(k))}
	return e, e.position < maxPositions
}

// seekRecord returns the key and the bytes of the record at a position, nil if there is none.
func seekRecord(b *bbolt.Bucket, position int) (k, v []byte) {
	if b == nil {
		return nil, nil
	}
	k, v = b.Cursor().Seek(binary.BigEndian.AppendUint16(nil, uint16(position)))
	if e, ok := parseRecordKey(k); !ok || e.position != position {
		return nil, nil
	}
	return k, v
}

// encodeIndex makes the index of a sealed segment: version, CRC-32C of all that follows it, latest expiry, and two
// bytes of position, with a bit for those that are Released, and eight of hash for each record.
func encodeIndex(latest int64, entries []entry) []byte {
	b := make([]byte, 5, 13+len(entries)*recordKeyLen)
	b[0] = segmentVersion
	b = binary.BigEndian.AppendUint64(b, uint64(latest))
	for _, e := range entries {
		position := uint16(e.position)
		if e.released {
			position |= releasedBit
		}
		b = binary.BigEndian.AppendUint16(b, position)
		b = binary.BigEndian.AppendUint64(b, e.hash)
	}
	binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[5:], castagnoli))
	return b
}

func decodeIndex(b []byte) (latest int64, entries []entry, ok bool) {
	if len(b) < 13 || (len(b)-13)%recordKeyLen != 0 || b[0] != segmentVersion ||
		binary.BigEndian.Uint32(b[1:]) != crc32.Checksum(b[5:], castagnoli) {
		return 0, nil, false
	}
	latest = int64(binary.BigEndian.Uint64(b[5:]))
	entries = make([]entry, 0, (len(b)-13)/recordKeyLen)
	for b = b[13:]; len(b) > 0; b = b[recordKeyLen:] {
		position := binary.BigEndian.Uint16(b)
		e := entry{
			hash:     binary.BigEndian.Uint64(b[2:]),
			position: int(position &^ releasedBit),
			released: position&releasedBit != 0,
		}
		if e.position >= maxPositions {
			return 0, nil, false
		}
		entries = append(entries, e)
	}
	return latest, entries, true
}

// entriesOf lists the records of a segment: from its index if it is sealed, else from its keys.
func entriesOf(b *bbolt.Bucket) (entries []entry, latest int64, indexed bool) {
	if v := b.Get([]byte{indexKey}); v != nil {
		if latest, entries, ok := decodeIndex(v); ok {
			return without(entries, b), latest, true
		}
	}
	c := b.Cursor()
	for k, _ := c.First(); k != nil && k[0] < deletedKey; k, _ = c.Next() {
		if e, ok := parseRecordKey(k); ok {
			entries = append(entries, e)
		}
	}
	return entries, 0, false
}

// setReleased marks the records at these positions, which ascend as those of the entries do.
func setReleased(entries []entry, positions []int) {
	for i := range entries {
		for len(positions) > 0 && positions[0] < entries[i].position {
			positions = positions[1:]
		}
		entries[i].released = len(positions) > 0 && positions[0] == entries[i].position
	}
}

// without takes out what was deleted after the segment was sealed.
func without(entries []entry, b *bbolt.Bucket) []entry {
	c := b.Cursor()
	gone := map[int]bool{}
	for k, _ := c.Seek([]byte{deletedKey}); len(k) == 3 && k[0] == deletedKey; k, _ = c.Next() {
		position := int(binary.BigEndian.Uint16(k[1:]))
		if _, v := seekRecord(b, position); v == nil { // else the mark is damaged
			gone[position] = true
		}
	}
	if len(gone) == 0 {
		return entries
	}
	kept := entries[:0]
	for _, e := range entries {
		if !gone[e.position] {
			kept = append(kept, e)
		}
	}
	return kept
}

// loadSegment reads what memory needs to know of a segment when the store is opened.
func (s *Store) loadSegment(name []byte, b *bbolt.Bucket) error {
	header := b.Get([]byte{headerKey})
	if len(name) != 8 || len(header) != 2 {
		return errors.New("a segment is damaged: its header cannot be read")
	}
	if header[0] > segmentVersion {
		return fmt.Errorf("a segment is of version %d, this binary knows up to %d", header[0], segmentVersion)
	}
	if len(s.segments) >= maxHandles {
		return errors.New("too many segments")
	}
	seg := &segment{handle: len(s.segments), number: binary.BigEndian.Uint64(name), stream: header[1]}
	entries, latest, indexed := entriesOf(b)
	seg.sealed = b.Get([]byte{indexKey}) != nil
	seg.latest = latest
	if !indexed {
		if err := checkKeys(b); err != nil {
			return err
		}
		entries = s.readSegment(seg, b, entries)
	}
	for _, e := range entries {
		s.index.add(tag(e.hash), at(seg.handle, e.position))
		if e.released {
			seg.keptReleased++
		}
	}
	seg.kept = len(entries) - len(seg.odd)
	s.kept, s.released = s.kept+seg.kept, s.released+seg.keptReleased
	s.addSegment(seg)
	return nil
}

// checkKeys finds keys that no version wrote: a record whose key is damaged could not be found.
func checkKeys(b *bbolt.Bucket) error {
	return b.ForEach(func(k, _ []byte) error {
		_, record := parseRecordKey(k)
		if record || len(k) == 1 && (k[0] == headerKey || k[0] == indexKey) || len(k) == 3 && k[0] == deletedKey {
			return nil
		}
		return errors.New("a segment is damaged: a key cannot be read: restore the file from a copy")
	})
}

// readSegment goes through the records of a segment without an index. One that cannot be read is kept under every hash
// that it may have, and for as long as it may be kept.
func (s *Store) readSegment(seg *segment, b *bbolt.Bucket, entries []entry) []entry {
	seg.began = s.clock.now()
	for i, e := range entries {
		_, v := seekRecord(b, e.position)
		seg.next = max(seg.next, e.position+1)
		seg.bytes += len(v)
		r, _, err := decodeRecord(v)
		if err != nil {
			seg.latest = max(seg.latest, nanos(later(s.clock.now(), longest(seg.stream))))
			if len(v) >= recordHead {
				r.ID = store.ID(v[5:recordHead])
			}
		}
		seg.latest = max(seg.latest, nanos(r.Expires))
		if hash := s.hash(r.ID); hash != e.hash {
			seg.odd = append(seg.odd, entry{hash: hash, position: e.position})
		}
		if r.Ended.Before(seg.began) && err == nil {
			seg.began = r.Ended
		}
		if r.State == store.Released {
			entries[i].released = true
			seg.released = append(seg.released, e.position)
		}
	}
	return append(entries, seg.odd...)
}

// expiring is a heap of the sealed segments, the first to expire on top.
type expiring []*segment

func (h expiring) Len() int           { return len(h) }
func (h expiring) Less(i, j int) bool { return h[i].latest < h[j].latest }
func (h expiring) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *expiring) Push(x any)        { *h = append(*h, x.(*segment)) }
func (h *expiring) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
