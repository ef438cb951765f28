package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/oncerpc/oncerpc/store"
)

type opKind uint8

const (
	opBarrier opKind = iota // nothing: all before it are settled
	opGet
	opBegin
	opFinish
	opCommit // opFinish of a claim that has to be held, beside what the run itself wrote
	opResolve
)

// op is an operation on its way through the committer. rec and err are its results, valid once its batch is done.
type op struct {
	kind       opKind
	id         store.ID
	claim      store.Claim
	token, was store.Token
	end        store.End

	rec       store.Record
	err       error
	tentative bool // its result is true only if the transaction commits

	state atomic.Uint32
}

const (
	opQueued uint32 = iota
	opTaken
	opWithdrawn
)

// batch is what goes into one transaction.
type batch struct {
	ops   []*op
	bytes int
	done  chan struct{}
}

const (
	batchOps   = 4096
	batchBytes = 8 << 20
)

// queue holds what waits for the committer.
type queue struct {
	mu      sync.Mutex
	batches []*batch
	wake    chan struct{} // holds one
}

// perform hands an operation to the committer and waits for its result. ctx withdraws it until it is taken.
func (s *Store) perform(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b, err := s.enqueue(o)
	if err != nil {
		return err
	}
	select {
	case <-b.done:
	case <-ctx.Done():
		if o.state.CompareAndSwap(opQueued, opWithdrawn) {
			return ctx.Err()
		}
		<-b.done
	}
	return o.err
}

func (s *Store) enqueue(o *op) (*batch, error) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	if err := s.refusal(o.kind == opBegin); err != nil {
		return nil, err
	}
	var b *batch
	if n := len(s.queue.batches); n > 0 {
		b = s.queue.batches[n-1]
	}
	if b == nil || len(b.ops) >= batchOps || b.bytes >= batchBytes {
		b = &batch{done: make(chan struct{})}
		s.queue.batches = append(s.queue.batches, b)
	}
	b.ops = append(b.ops, o)
	b.bytes += len(o.end.Outcome) + len(o.claim.Fingerprint)
	select {
	case s.queue.wake <- struct{}{}:
	default:
	}
	return b, nil
}

// take takes the next batch, without those operations that were withdrawn. It returns nil if there is none.
func (s *Store) take() *batch {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	if len(s.queue.batches) == 0 {
		return nil
	}
	b := s.queue.batches[0]
	s.queue.batches[0] = nil
	s.queue.batches = s.queue.batches[1:]
	kept := b.ops[:0]
	for _, o := range b.ops {
		if o.state.CompareAndSwap(opQueued, opTaken) {
			kept = append(kept, o)
		}
	}
	b.ops = kept
	return b
}

// run is the committer. It takes whatever is queued into one transaction; it never waits for company, but lets those
// who are about to ask go first.
func (s *Store) run() {
	defer close(s.stopped)
	debug.SetPanicOnFault(true)
	timer := time.NewTimer(s.untilSweep())
	defer timer.Stop()
	for {
		select {
		case <-s.queue.wake:
			runtime.Gosched()
			for s.commit() {
				runtime.Gosched()
			}
		case <-timer.C:
			s.commit()
		case <-s.stop:
			for s.commit() {
			}
			return
		}
		timer.Reset(s.untilSweep())
	}
}

// untilSweep is how long it is until a segment can be dropped.
func (s *Store) untilSweep() time.Duration {
	s.mu.RLock()
	defer s.mu.RUnlock()
	seg := s.firstExpiring()
	if seg == nil || s.fault.Load() != nil {
		return 1 << 62
	}
	now := s.clock.now()
	return max(time.Duration(seg.latest-now.UnixNano()), s.sweepFrom.Sub(now), 0)
}

// commit makes one transaction of the next batch, or of a sweep alone. It reports whether there is another batch.
func (s *Store) commit() (more bool) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if fault := s.fault.Load(); fault != nil {
		for b := s.take(); b != nil; b = s.take() {
			b.fail(*fault)
		}
		return false
	}
	if !s.queued() && s.untilSweep() > 0 {
		return false // a transaction has taken what there was along
	}
	b := &batch{done: make(chan struct{})}
	s.settle(b, s.write(func() []*op {
		if next := s.take(); next != nil {
			b = next
		}
		return b.ops
	}))
	return s.queued()
}

// settle answers the callers of a batch. err is what write said to it.
func (s *Store) settle(b *batch, err error) {
	switch {
	case err == nil:
		s.operations.Add(uint64(len(b.ops)))
		close(b.done)
	case errors.Is(err, store.ErrFull):
		s.finishOnly(b, err)
	default:
		b.fail(err)
	}
}

func (s *Store) queued() bool {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return len(s.queue.batches) > 0
}

func (b *batch) fail(err error) {
	for _, o := range b.ops {
		o.rec, o.err = store.Record{}, err
	}
	close(b.done)
}

// finishOnly settles a batch for which there was no room: its claims are refused, and what ends a run is tried without
// them.
func (s *Store) finishOnly(b *batch, full error) {
	defer close(b.done)
	rest := make([]*op, 0, len(b.ops))
	refused := false
	for _, o := range b.ops {
		switch {
		case !o.tentative:
		case o.kind == opBegin:
			o.rec, o.err = store.Record{}, full
			refused = true
		default:
			rest = append(rest, o)
		}
	}
	if len(rest) == 0 {
		return
	}
	err := full
	if refused {
		err = s.write(func() []*op { return rest })
	}
	if err == nil {
		return
	}
	if errors.Is(err, store.ErrFull) {
		err = fmt.Errorf("no room: %v", err) //nolint:errorlint // ErrFull is an answer to Begin alone
	}
	for _, o := range rest {
		o.rec, o.err = store.Record{}, err
	}
}

// write applies operations in one transaction. nil: it is durable and published, or there was nothing to write.
// ErrFull: nothing was written for want of room. Anything else latches the store. The caller holds s.writing.
func (s *Store) write(take func() []*op) error {
	started := time.Now()
	var fx *effects
	var id int
	err := s.update(func(tx *bbolt.Tx) (err error) {
		id = tx.ID()
		fx, err = s.apply(tx, take())
		if err == nil && !fx.wrote {
			return errNothing
		}
		return err
	})
	if err == nil || errors.Is(err, errNothing) {
		s.publish(fx, time.Since(started))
		return nil
	}
	return s.failed(fx, id, err, time.Since(started))
}

// failed judges a commit that failed, of transaction id: ErrFull, nothing was written for want of room; else the store
// is latched.
func (s *Store) failed(fx *effects, id int, err error, took time.Duration) error {
	if fx != nil {
		fx.discard()
	}
	if outOfRoom(err) && !s.visible(id) {
		s.backOff(took)
		return fmt.Errorf("%w: %w", store.ErrFull, err)
	}
	return s.latch(err)
}

// backOff spares a full store commits that would fail as well. bbolt goes through the whole file after each of them, so
// that a large one would do nothing else; claims are refused meanwhile, and what ends a run is still tried.
func (s *Store) backOff(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepFrom = s.clock.now().Add(time.Second)
	if took > 100*time.Millisecond {
		s.fullUntil = s.clock.now().Add(sweepPace * took)
	}
}

// update is db.Update, with panics of the transaction turned into errors: of pages that make no sense, or that the
// system cannot read.
func (s *Store) update(fn func(*bbolt.Tx) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in a transaction: %v", p)
		}
	}()
	return s.db.Update(fn)
}

// outOfRoom reports whether a commit failed because nothing more could be written. Only a failed write or resize says
// so: the same errno from a sync leaves open what became durable.
func outOfRoom(err error) bool {
	var write *fs.PathError
	wrapped := errors.As(err, &write) && write.Op == "write"
	resize := strings.HasPrefix(err.Error(), "file resize error: ") // which bbolt does not wrap
	if errors.Is(err, bbolterrors.ErrMaxSizeReached) {
		return true
	}
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		if wrapped && errors.Is(write, errno) || resize && strings.HasSuffix(err.Error(), errno.Error()) {
			return true
		}
	}
	return false
}

// visible reports whether transaction id can be read in spite of its error, or whether nobody can tell.
func (s *Store) visible(id int) bool {
	visible := true
	_ = s.view(func(tx *bbolt.Tx) error {
		visible = tx.ID() >= id
		return nil
	})
	return visible
}

// latch makes the store unusable: what a commit that failed has left behind is not known.
func (s *Store) latch(cause error) error {
	return s.fail(fmt.Errorf("%w: %w", store.ErrUnusable, cause))
}

// fail makes fault the answer to everything, unless there is one already, and wakes who waits. It returns the fault
// that stands.
func (s *Store) fail(fault error) error {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	if s.fault.CompareAndSwap(nil, &fault) {
		close(s.dead)
	}
	return *s.fault.Load()
}
