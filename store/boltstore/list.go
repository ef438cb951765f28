package boltstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
)

// listChunk is how many records List reads at once.
const listChunk = 128

// listing is a List under way: the records that stood when it began, in the order of their places.
type listing struct {
	segments []listed
	at       int // the segment to read next
	next     int // its position to read next
	lost     []store.ID
}

type listed struct {
	handle int
	number uint64
	end    int // later positions were not there
}

// List yields the records that q chooses, as [store.Lister] says.
func (s *Store) List(ctx context.Context, q store.Query) iter.Seq2[store.Record, error] {
	return func(yield func(store.Record, error) bool) {
		l, claims := s.startList()
		defer s.endList(l)
		seen := make(map[store.ID]bool, len(claims))
		for _, c := range claims {
			seen[c.rec.ID] = true
			if q.Match(c.rec) && !yield(s.answer(c.rec), nil) {
				return
			}
		}
		for {
			if err := cmp.Or(ctx.Err(), s.refusal(false)); err != nil {
				yield(store.Record{}, fmt.Errorf("boltstore: list: %w", err))
				return
			}
			chunk, more := s.readChunk(l)
			for _, v := range chunk {
				r, err := s.listed(v)
				if err == nil && (seen[r.ID] || expired(r.Expires, r.Now) || !q.Match(r)) {
					continue
				}
				if !yield(r, err) {
					return
				}
			}
			if !more {
				break
			}
		}
		s.listLost(ctx, l, q, seen, yield)
	}
}

func (s *Store) listed(v []byte) (store.Record, error) {
	r, _, err := decodeRecord(v)
	if err != nil {
		return store.Record{}, fmt.Errorf("boltstore: list: %w", err)
	}
	r.Now = s.clock.now()
	return r, nil
}

// listLost yields the records that went to another place before they were read.
func (s *Store) listLost(ctx context.Context, l *listing, q store.Query, seen map[store.ID]bool,
	yield func(store.Record, error) bool) {
	s.mu.RLock()
	lost := l.lost
	s.mu.RUnlock()
	for _, id := range lost {
		if seen[id] {
			continue
		}
		seen[id] = true
		r, err := s.get(ctx, id)
		if err != nil {
			err = fmt.Errorf("boltstore: list: %w", err)
		}
		if (err != nil || q.Match(r)) && !yield(r, err) {
			return
		}
	}
}

func (s *Store) startList() (*listing, []*claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &listing{}
	for _, seg := range s.segments {
		if seg == nil {
			continue
		}
		end := maxPositions
		if !seg.sealed {
			end = seg.next
		}
		l.segments = append(l.segments, listed{seg.handle, seg.number, end})
	}
	slices.SortFunc(l.segments, func(a, b listed) int { return cmp.Compare(a.number, b.number) })
	claims := make([]*claim, 0, len(s.claims))
	for _, c := range s.claims {
		claims = append(claims, c)
	}
	s.lists[l] = struct{}{}
	return l, claims
}

func (s *Store) endList(l *listing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lists, l)
}

// lose notes that the record of id is deleted from a location, if it was there and has not been read. The caller holds
// Store.mu.
func (l *listing) lose(id store.ID, loc location) {
	for i := l.at; i < len(l.segments); i++ {
		seg := l.segments[i]
		if seg.handle == loc.handle() && loc.position() < seg.end && (i > l.at || loc.position() >= l.next) {
			l.lost = append(l.lost, id)
			return
		}
	}
}

// readChunk copies the bytes of the next records, and reports whether there are more. No transaction of ours is under
// way meanwhile, so that what it reads and what lose is told fit together.
func (s *Store) readChunk(l *listing) (chunk [][]byte, more bool) {
	s.writing.Lock()
	defer s.writing.Unlock()
	at, next := l.at, l.next
	if at == len(l.segments) {
		return nil, false
	}
	err := s.view(func(tx *bbolt.Tx) error {
		for ; at < len(l.segments) && len(chunk) < listChunk; at, next = at+1, 0 {
			b := tx.Bucket(rootBucket).Bucket(segmentsBucket).Bucket(segmentName(l.segments[at].number))
			if b == nil {
				continue // dropped: all its records have expired
			}
			var full bool
			if next, full = copyRecords(b, next, l.segments[at].end, &chunk); full {
				return nil
			}
		}
		return nil
	})
	if err != nil {
		chunk, at, next = append(chunk, nil), at+1, 0 // an unreadable record
	}
	s.mu.Lock()
	l.at, l.next = at, next
	s.mu.Unlock()
	return chunk, true
}

// copyRecords appends the records from a position up to end, until chunk is full.
func copyRecords(b *bbolt.Bucket, from, end int, chunk *[][]byte) (next int, full bool) {
	c := b.Cursor()
	k, v := c.Seek(binary.BigEndian.AppendUint16(nil, uint16(from)))
	for ; k != nil && k[0] < deletedKey; k, v = c.Next() {
		e, ok := parseRecordKey(k)
		if !ok || e.position >= end {
			continue
		}
		if len(*chunk) == listChunk {
			return e.position, true
		}
		*chunk = append(*chunk, bytes.Clone(v))
	}
	return 0, false
}
