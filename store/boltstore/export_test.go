package boltstore

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"reflect"
	"runtime"
	"unsafe"

	"go.etcd.io/bbolt"
)

var (
	EncodeRecord = encodeRecord
	DecodeRecord = decodeRecord
	EncodeIndex  = encodeIndex
	DecodeIndex  = decodeIndex
	WriteTime    = writeTime
	PutNumber    = putNumber
)

// Entry is an entry of a segment's index.
type Entry = entry

// NewEntry makes one.
func NewEntry(hash uint64, position int) Entry { return Entry{hash: hash, position: position} }

// ReleasedEntry makes one of a Released record.
func ReleasedEntry(hash uint64, position int) Entry {
	return Entry{hash: hash, position: position, released: true}
}

// Crash ends a store as the end of its process would, whatever claims are held.
func (s *Store) Crash() {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.isClosed {
		return
	}
	_ = s.fail(errClosed)
	close(s.stop)
	<-s.stopped
	s.isClosed = true
	_ = s.db.Close()
}

// Admit judges a file that was opened at a path.
func Admit(f *os.File, path string) error { return admit(f, path) }

// DB is the bbolt database of a store.
func (s *Store) DB() *bbolt.DB { return s.db }

// OnWrite puts a function in the place of bbolt's writes to the file, which gets the one that was there.
func (s *Store) OnWrite(f func(writeAt func(b []byte, off int64) (int, error), b []byte, off int64) (int, error)) {
	s.writing.Lock()
	defer s.writing.Unlock()
	ops := reflect.ValueOf(s.db).Elem().FieldByName("ops").FieldByName("writeAt")
	at := (*func(b []byte, off int64) (int, error))(unsafe.Pointer(ops.UnsafeAddr()))
	was := *at
	*at = func(b []byte, off int64) (int, error) { return f(was, b, off) }
}

// SmallSegments makes segments of n records, until undo is called.
func SmallSegments(n int) (undo func()) {
	was := segmentRecords
	segmentRecords = n
	return func() { segmentRecords = was }
}

// Indexed lists what the index holds: for each tag and place of a record how often.
func (s *Store) Indexed() map[Indexed]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := map[Indexed]int{}
	for _, p := range s.index.parts {
		for _, slot := range p.slots {
			if slot != 0 {
				loc := location(slot)
				all[Indexed{uint32(slot >> 32), s.segments[loc.handle()].number, loc.position()}]++
			}
		}
	}
	return all
}

// Indexed is an entry of the index.
type Indexed struct {
	Tag      uint32
	Segment  uint64
	Position int
}

// Index is the index alone.
type Index = index

func (x *index) Find(tag, loc uint32) bool {
	for _, l := range x.find(tag, nil) {
		if l == location(loc) {
			return true
		}
	}
	return false
}

func (x *index) Add(tag, loc uint32)         { x.add(tag, location(loc)) }
func (x *index) Remove(tag, loc uint32) bool { return x.remove(tag, location(loc)) }
func (x *index) Len() int                    { return x.len }

// Slots is how many slots the index has.
func (x *index) Slots() (n int) {
	for _, p := range x.parts {
		n += len(p.slots)
	}
	return n
}

// Check goes through the pages of a file.
func Check(f io.ReaderAt, size int64) error { return check(f, size) }

// AwaitQueued returns when n operations wait for the committer.
func (s *Store) AwaitQueued(n int) {
	for queued := -1; queued < n; runtime.Gosched() {
		queued = 0
		s.queue.mu.Lock()
		for _, b := range s.queue.batches {
			queued += len(b.ops)
		}
		s.queue.mu.Unlock()
	}
}

// Seal gives bytes a version and a checksum that fit.
func Seal(b []byte) {
	if len(b) >= 5 {
		b[0] = recordVersion
		binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[5:], castagnoli))
	}
}
