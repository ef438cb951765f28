package boltstore

import (
	"container/heap"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
)

// Option configures a [Store].
type Option interface{ apply(*options) }

type options struct{}

// Open opens the store in the file at path, which is created, for its owner only, if it is not there. Claims that were
// running when the file was last in use are abandoned: the lock on it proves that their process is gone.
//
// It is an error, and nothing is written, if another process has the file open (after a second), if its bytes are
// damaged or are no store, and if a newer version of this package wrote it. The folder must exist.
func Open(path string, opts ...Option) (*Store, error) {
	var o options
	for _, opt := range opts {
		opt.apply(&o)
	}
	s, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("boltstore: open %s: %w", path, err)
	}
	return s, nil
}

func open(path string) (*Store, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := create(path); err != nil {
			return nil, err
		}
	}
	db, err := openDB(path)
	if err != nil {
		return nil, err
	}
	s, err := start(db)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

const (
	pageSize  = 8 << 10  // fewer, larger pages: 1.2 times the commits of 4 KiB
	allocSize = 16 << 20 // what the file grows by
	mapSize   = 4 << 30  // address space only; a map that need not grow never blocks readers
)

// openDB opens the bbolt file. What is wrong with it is found by openFile, before bbolt maps it.
func openDB(path string) (db *bbolt.DB, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var file *os.File
	defer func() {
		if p := recover(); p != nil {
			_ = file.Close()
			db, err = nil, fmt.Errorf("the file is damaged: %v", p)
		}
	}()
	o := &bbolt.Options{
		Timeout:        lockTimeout,
		FreelistType:   bbolt.FreelistMapType,
		NoFreelistSync: true, // a large free list is not written by every commit; Close writes it
		NoStatistics:   true,
		OpenFile: func(path string, flag int, mode os.FileMode) (*os.File, error) {
			file, err = openFile(path, flag&^os.O_CREATE, mode)
			return file, err
		},
	}
	if strconv.IntSize == 64 && runtime.GOOS != "windows" {
		o.InitialMmapSize = mapSize
	}
	db, err = bbolt.Open(path, 0o600, o)
	if err != nil {
		return nil, err
	}
	db.AllocSize = allocSize
	return db, nil
}

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
		meta.Put(versionKey, binary.BigEndian.AppendUint64(nil, layoutVersion)),
		meta.Put(saltKey, salt[:]),
		meta.Put(incarnationKey, make([]byte, 8)),
		meta.Put(timeKey, make([]byte, 8)))
}

// writeTime keeps the time of a commit: the clock of a later opening does not begin before it.
func writeTime(root *bbolt.Bucket, now time.Time) error {
	return root.Bucket(metaBucket).Put(timeKey, binary.BigEndian.AppendUint64(nil, uint64(nanos(now))))
}

// start reads what a store keeps in memory, begins a new incarnation, and starts the committer.
func start(db *bbolt.DB) (*Store, error) {
	s := &Store{
		db:      db,
		queue:   queue{wake: make(chan struct{}, 1)},
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
		dead:    make(chan struct{}),
		claims:  map[store.ID]*claim{},
		open:    map[uint8]*segment{},
		lists:   map[*listing]struct{}{},
	}
	if err := s.view(s.load); err != nil {
		return nil, err
	}
	err := s.update(func(tx *bbolt.Tx) error {
		root := tx.Bucket(rootBucket)
		number := binary.BigEndian.AppendUint64(nil, s.incarnation)
		return errors.Join(root.Bucket(metaBucket).Put(incarnationKey, number), writeTime(root, s.clock.now()))
	})
	if err != nil {
		return nil, fmt.Errorf("first commit: %w", err)
	}
	go s.run()
	return s, nil
}

// load reads the store in tx.
func (s *Store) load(tx *bbolt.Tx) error {
	root := tx.Bucket(rootBucket)
	if root == nil {
		return errors.New("the file is a bbolt database without the bucket \"oncerpc\", so it is no store")
	}
	meta, slots, segments := root.Bucket(metaBucket), root.Bucket(slotsBucket), root.Bucket(segmentsBucket)
	if meta == nil || slots == nil || segments == nil {
		return errors.New("the file is damaged: a bucket is missing")
	}
	version, salt := meta.Get(versionKey), meta.Get(saltKey)
	incarnation, last := meta.Get(incarnationKey), meta.Get(timeKey)
	if len(version) != 8 || len(salt) != len(s.salt) || len(incarnation) != 8 || len(last) != 8 {
		return errors.New("the file is damaged: its meta bucket cannot be read")
	}
	if v := binary.BigEndian.Uint64(version); v > layoutVersion {
		return fmt.Errorf("the file has layout version %d, this binary knows versions up to %d: use a newer one",
			v, layoutVersion)
	}
	s.clock = startClock(instant(int64(binary.BigEndian.Uint64(last))))
	s.salt = [16]byte(salt)
	s.incarnation = binary.BigEndian.Uint64(incarnation) + 1
	if err := s.loadClaims(slots); err != nil {
		return err
	}
	return segments.ForEachBucket(func(name []byte) error {
		return s.loadSegment(name, segments.Bucket(name))
	})
}

// addSegment puts a segment that was read into its place.
func (s *Store) addSegment(seg *segment) {
	s.segments = append(s.segments, seg)
	if old := s.open[seg.stream]; old != nil && !seg.sealed {
		heap.Push(&s.expiring, old)
	}
	if seg.sealed {
		heap.Push(&s.expiring, seg)
		return
	}
	s.open[seg.stream] = seg
}

// readAhead reads a large file once in its order. bbolt tells the system that it will read at random, and page by page
// a cold file takes ten times as long.
func readAhead(f *os.File, size int64) error {
	if size < 64<<20 {
		return nil
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.NewSectionReader(f, 0, size), make([]byte, 1<<20))
	return err
}
