package boltstore

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
)

// Option configures a [Store].
type Option interface{ apply(*options) }

type options struct {
	maxSize int64 // 0: none was set
}

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
	s, err := open(path, cmp.Or(o.maxSize, defaultMaxSize))
	if err != nil {
		return nil, fmt.Errorf("boltstore: open %s: %w", path, err)
	}
	return s, nil
}

func open(path string, maxSize int64) (*Store, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := create(path); err != nil {
			return nil, err
		}
	}
	db, err := openDB(path)
	if err != nil {
		return nil, err
	}
	s := newStore(db, maxSize)
	s.room.grows = true
	if err := errors.Join(occupy(db), s.start()); err != nil {
		vacate(db)
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

const (
	pageSize = 8 << 10 // fewer, larger pages: 1.2 times the commits of 4 KiB
	mapSize  = 4 << 30 // address space only; a map that need not grow never blocks readers
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
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			if name != path {
				return os.OpenFile(name, flag, mode) //nolint:gosec // a copy that the application makes by tx.CopyFile
			}
			file, err = openFile(path, flag&^os.O_CREATE, mode)
			return file, err
		},
	}
	if size := int64(mapSize); strconv.IntSize == 64 && runtime.GOOS != "windows" {
		o.InitialMmapSize = int(size)
	}
	db, err = bbolt.Open(path, 0o600, o)
	if err != nil {
		return nil, err
	}
	db.AllocSize = 0
	return db, nil
}

func newStore(db *bbolt.DB, maxSize int64) *Store {
	s := &Store{
		db:      db,
		path:    db.Path(),
		queue:   queue{wake: make(chan struct{}, 1)},
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
		dead:    make(chan struct{}),
		writing: newGate(),
		claims:  map[store.ID]*claim{},
		open:    map[uint8]*segment{},
		lists:   map[*listing]struct{}{},
	}
	s.room.max = maxSize
	s.room.outcome.Store(firstOutcome)
	return s
}

// start reads what a store keeps in memory, begins a new incarnation, and starts the committer.
func (s *Store) start() error {
	if err := s.view(s.load); err != nil {
		return err
	}
	failpoint("open.loaded")
	var id int
	err := s.update(func(tx *bbolt.Tx) error {
		id = tx.ID()
		root := tx.Bucket(rootBucket)
		return errors.Join(
			putNumber(root.Bucket(metaBucket), incarnationKey, s.incarnation),
			writeTime(root, s.clock.now()))
	})
	if err != nil {
		return fmt.Errorf("first commit: %w", err)
	}
	failpoint("open.begun")
	s.isDurable(int64(id))
	go s.run()
	return nil
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
	if err := s.loadMeta(meta); err != nil {
		return err
	}
	if err := s.loadClaims(slots); err != nil {
		return err
	}
	err := segments.ForEachBucket(func(name []byte) error {
		return s.loadSegment(name, segments.Bucket(name))
	})
	return cmp.Or(err, s.checkCounts(meta), s.room.measure(tx))
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
