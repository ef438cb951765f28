package boltstore

import (
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
)

// append puts a record at the end of its stream's open segment.
func (fx *effects) append(r store.Record, value []byte, retention time.Duration) (*stored, error) {
	seg, b, err := fx.appendable(streamOf(retention))
	if err != nil {
		return nil, err
	}
	hash := fx.s.hash(r.ID)
	next := &stored{rec: r, loc: at(seg.handle, seg.next), key: recordKey(seg.next, hash)}
	if err := b.Put(next.key, value); err != nil {
		return nil, err
	}
	seg.next++
	seg.bytes += len(value)
	seg.latest = max(seg.latest, nanos(r.Expires))
	released := r.State == store.Released
	if released {
		seg.released = append(seg.released, next.loc.position())
	}
	fx.s.room.ended(len(value))
	fx.changes = append(fx.changes, change{id: r.ID, tag: tag(hash), loc: next.loc, add: true, released: released})
	if seg.next >= min(segmentRecords, maxPositions) || seg.bytes >= segmentBytes {
		return next, fx.seal(seg, b)
	}
	return next, nil
}

// appendable returns the open segment of a stream; it starts one if there is none.
func (fx *effects) appendable(stream uint8) (*segment, *bbolt.Bucket, error) {
	seg, known := fx.open[stream]
	if !known {
		if old := fx.s.open[stream]; old != nil {
			fork := *old
			seg = &fork
			fx.touched[seg.handle], fx.open[stream] = seg, seg
		}
	}
	if seg != nil {
		b := fx.bucket(seg)
		if b == nil {
			return nil, nil, fmt.Errorf("segment %d is gone", seg.number)
		}
		b.FillPercent = 1 // nothing is ever put between two records
		if fx.now.Before(seg.began.Add(segmentAge(stream))) {
			return seg, b, nil
		}
		if err := fx.seal(seg, b); err != nil {
			return nil, nil, err
		}
	}
	number, err := fx.segments().NextSequence()
	if err != nil {
		return nil, nil, err
	}
	b, err := fx.segments().CreateBucket(segmentName(number))
	if err != nil {
		return nil, nil, err
	}
	b.FillPercent = 1
	handle, err := fx.takeHandle()
	if err != nil {
		return nil, nil, err
	}
	seg = &segment{handle: handle, number: number, stream: stream, began: fx.now}
	fx.touched[handle], fx.open[stream] = seg, seg
	return seg, b, b.Put([]byte{headerKey}, []byte{segmentVersion, stream})
}

func (fx *effects) takeHandle() (int, error) {
	if n := len(fx.s.handles) - len(fx.handles); n > 0 {
		h := fx.s.handles[n-1]
		fx.handles = append(fx.handles, h)
		return h, nil
	}
	h := len(fx.s.segments) + fx.fresh
	if h >= maxHandles {
		return 0, errors.New("too many segments")
	}
	fx.fresh++
	return h, nil
}

func (fx *effects) seal(seg *segment, b *bbolt.Bucket) error {
	entries, _, _ := entriesOf(b)
	setReleased(entries, seg.released)
	seg.sealed, seg.released = true, nil
	fx.open[seg.stream] = nil
	fx.sealed = append(fx.sealed, seg)
	return b.Put([]byte{indexKey}, encodeIndex(seg.latest, entries))
}

// delete takes a record out of its segment.
func (fx *effects) delete(old *stored) error {
	seg := fx.segment(old.loc)
	b := fx.bucket(seg)
	if err := b.Delete(old.key); err != nil {
		return err
	}
	fx.gone[old.loc] = true
	hash := fx.s.hash(old.rec.ID)
	released := old.rec.State == store.Released
	fx.changes = append(fx.changes, change{id: old.rec.ID, tag: tag(hash), loc: old.loc, released: released})
	if e, _ := parseRecordKey(old.key); e.hash != hash {
		fx.changes = append(fx.changes, change{id: old.rec.ID, tag: tag(e.hash), loc: old.loc, odd: true})
	}
	if !seg.sealed {
		return nil
	}
	return b.Put(deletedMark(old.loc.position()), nil)
}

// sweep drops the segment that was the first to expire as a whole, if it is time. One at most: a drop writes pages in
// proportion to the segment, and the operations of this transaction wait for it.
func (fx *effects) sweep() error {
	if fx.now.Before(fx.s.sweepFrom) {
		return nil
	}
	seg := fx.s.firstExpiring()
	if seg == nil || seg.latest > fx.now.UnixNano() || fx.touched[seg.handle] != nil {
		return nil
	}
	b := fx.bucket(seg)
	if b == nil {
		return fmt.Errorf("segment %d is gone", seg.number)
	}
	entries, _, _ := entriesOf(b)
	fx.dropped, fx.droppedKeys = seg, append(entries, seg.odd...)
	fx.wrote = true
	err := fx.segments().DeleteBucket(segmentName(seg.number))
	failpoint("sweep.dropped")
	return err
}
