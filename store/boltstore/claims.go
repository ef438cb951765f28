package boltstore

import (
	"container/heap"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
)

// claim is a record that is Running or Abandoned. It is replaced as a whole when it changes; only ended and over are
// set later, under Store.mu.
type claim struct {
	rec      store.Record
	slot     uint32
	volatile bool          // it is in memory alone, and has no slot
	ended    chan struct{} // closed when its token no longer runs; nil while nobody waits
	over     bool          // its run has ended, and the store is latched
}

// A slot is either a record or one byte, freeSlot. A record's first byte is its version and never zero.
const freeSlot = 0

func slotKey(slot uint32) []byte { return binary.BigEndian.AppendUint32(nil, slot) }

// loadClaims reads the slots when the store is opened. A claim that an earlier incarnation was running is abandoned:
// the file's lock proves that its process is gone.
func (s *Store) loadClaims(slots *bbolt.Bucket) error {
	return slots.ForEach(func(k, v []byte) error {
		if len(k) != 4 {
			return fmt.Errorf("slot %x of the running claims is damaged: restore the file from a copy", k)
		}
		slot := binary.BigEndian.Uint32(k)
		s.slots.end = max(s.slots.end, slot+1)
		if len(v) == 1 && v[0] == freeSlot {
			s.slots.release(slot)
			return nil
		}
		rec, incarnation, err := decodeRecord(v)
		switch {
		case err != nil:
			return fmt.Errorf("slot %d of the running claims: %w: it may be of a run whose end nobody knows; "+
				"restore the file from a copy, or open it with the version that wrote it", slot, err)
		case rec.State != store.Running && rec.State != store.Abandoned:
			return fmt.Errorf("slot %d of the running claims holds a record that is %v", slot, rec.State)
		case s.claims[rec.ID] != nil:
			return fmt.Errorf("slots %d and %d of the running claims hold one ID", s.claims[rec.ID].slot, slot)
		}
		if rec.State == store.Running && incarnation < s.incarnation {
			rec.State = store.Abandoned
		}
		s.claims[rec.ID] = &claim{rec: rec, slot: slot}
		return nil
	})
}

// held counts the claims whose runs have not ended.
func (s *Store) held() (n int) {
	for _, c := range s.claims {
		if c.rec.State == store.Running && !c.over {
			n++
		}
	}
	return n
}

// slots gives out slot numbers, the lowest free one first.
type slots struct {
	free slotHeap
	end  uint32 // from here on no slot was ever used
}

// used is how many slots hold a claim.
func (s *slots) used() int { return int(s.end) - len(s.free) }

func (s *slots) take() uint32 {
	if len(s.free) > 0 {
		return heap.Pop(&s.free).(uint32)
	}
	s.end++
	return s.end - 1
}

func (s *slots) release(slot uint32) { heap.Push(&s.free, slot) }

type slotHeap []uint32

func (h slotHeap) Len() int           { return len(h) }
func (h slotHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h slotHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *slotHeap) Push(x any)        { *h = append(*h, x.(uint32)) }
func (h *slotHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
