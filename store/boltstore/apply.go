package boltstore

import (
	"errors"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store"
)

// standing is what there is of an ID: a claim, and a record in a segment, which may be expired, or the predecessor of
// the claim. The claim wins.
type standing struct {
	claim   *claim
	stored  *stored
	looked  bool // stored is known
	changed bool // by the transaction under way
}

type stored struct {
	rec store.Record
	loc location
	key []byte
}

func (st *standing) record(id store.ID, now time.Time) store.Record {
	switch {
	case st.claim != nil:
		return st.claim.rec
	case st.stored != nil && !expired(st.stored.rec.Expires, now):
		return st.stored.rec
	}
	return store.Record{ID: id}
}

// effects is what a transaction makes of the store. Memory learns of it by publish, once the commit is durable; until
// then only later operations of the same transaction see it. discard forgets it.
type effects struct {
	s     *Store
	id    int // of the transaction
	now   time.Time
	root  *bbolt.Bucket
	wrote bool

	ids     map[store.ID]*standing // changed under Store.mu: those who claim in memory look into it
	changes []change
	gone    map[location]bool // deleted by this transaction

	taken, freed []uint32         // slots
	touched      map[int]*segment // by handle: copies of those in memory, and new ones
	open         map[uint8]*segment
	handles      []int // taken by new segments out of Store.handles
	fresh        int   // new segments with handles that were never used
	sealed       []*segment
	dropped      *segment
	droppedKeys  []entry

	claims int   // that stand, with those of this transaction
	bytes  int64 // about what the commit writes
}

// change is one of the index.
type change struct {
	id  store.ID
	tag uint32
	loc location

	add      bool
	released bool // the record is
	odd      bool // it is found by another tag as well
}

// errNothing rolls back a transaction in which nothing was written.
var errNothing = errors.New("nothing to write")

// apply does ops in tx, whose commit is the caller's, as is publish or discard afterwards. Results of the operations
// are in them; an error is of the machinery, and the transaction must be rolled back. Nothing in memory changes.
// The caller holds Store.writing.
func (s *Store) apply(tx *bbolt.Tx, ops []*op) (*effects, error) {
	fx, err := s.effects(tx)
	if err != nil {
		return fx, err
	}
	if err := fx.doAll(ops); err != nil {
		return fx, err
	}
	return fx, fx.complete(len(ops) == 0)
}

func (s *Store) effects(tx *bbolt.Tx) (*effects, error) {
	fx := &effects{
		s:       s,
		id:      tx.ID(),
		now:     s.clock.now(),
		root:    tx.Bucket(rootBucket),
		ids:     map[store.ID]*standing{},
		gone:    map[location]bool{},
		touched: map[int]*segment{},
		open:    map[uint8]*segment{},
	}
	if fx.root == nil {
		return fx, errors.New("the bucket \"" + string(rootBucket) + "\" was deleted")
	}
	return fx, s.room.measure(tx)
}

// doAll does operations. From before the first on nobody else claims their IDs, until publish or discard.
func (fx *effects) doAll(ops []*op) error {
	fx.enter(ops)
	for _, o := range ops {
		if err := fx.do(o); err != nil {
			return err
		}
	}
	return nil
}

func (fx *effects) enter(ops []*op) {
	fx.s.mu.Lock()
	defer fx.s.mu.Unlock()
	for _, o := range ops {
		if o.kind != opBarrier && fx.ids[o.id] == nil {
			fx.ids[o.id] = &standing{claim: fx.s.claims[o.id]}
		}
	}
	fx.s.busy = fx.ids
	fx.claims = len(fx.s.claims)
}

// complete adds what every commit has. sweep: look for a segment to drop even if nothing was written yet.
func (fx *effects) complete(sweep bool) error {
	if fx.wrote || sweep {
		if err := fx.sweep(); err != nil {
			return err
		}
	}
	if !fx.wrote {
		return nil
	}
	fx.s.room.prepare(fx.root.Tx(), fx.bytes)
	err := errors.Join(writeTime(fx.root, fx.now), fx.writeCounts())
	failpoint("commit.applied")
	return err
}

// do does one operation.
func (fx *effects) do(o *op) error {
	o.rec, o.err, o.tentative = store.Record{}, nil, false
	if o.kind == opBarrier {
		return nil
	}
	st, unreadable := fx.standing(o.id)
	if unreadable != nil && st.claim == nil {
		o.err = unreadable
		return nil
	}
	var fatal error
	switch r := st.record(o.id, fx.now); o.kind {
	case opGet:
		o.rec = r
	case opBegin:
		fatal = fx.begin(o, st, r)
	case opFinish:
		fatal = fx.finish(o, st, r)
	case opCommit:
		if !r.HeldBy(o.token) {
			o.err = store.ErrLost
			return nil
		}
		fatal = fx.finish(o, st, r)
	case opResolve:
		fatal = fx.resolve(o, st, r)
	}
	o.tentative = st.changed
	return fatal
}

// stands reports whether Begin leaves the record as it is.
func stands(r store.Record, c store.Claim) bool {
	switch {
	case r.State == store.Absent:
		return false
	case !slices.Equal(r.Fingerprint, c.Fingerprint), r.State == store.Running, r.State == store.Done:
		return true
	}
	return r.State == store.Abandoned && r.Attempt >= c.TakeoverBelow
}

func (fx *effects) begin(o *op, st *standing, r store.Record) error {
	if stands(r, o.claim) {
		o.rec = r
		return nil
	}
	if fx.now.Before(fx.s.fullUntil) || !fx.s.room.has(fx.claims+1) {
		o.err = store.ErrFull
		return nil
	}
	next := store.Record{
		ID:          o.claim.ID,
		Token:       o.claim.Token,
		Owner:       o.claim.Owner,
		Method:      o.claim.Method,
		Fingerprint: slices.Clone(o.claim.Fingerprint),
		State:       store.Running,
		Attempt:     1,
		First:       fx.now,
		Started:     fx.now,
	}
	if r.State != store.Absent {
		next.First, next.Attempt = r.First, r.Attempt
	}
	if r.State == store.Abandoned {
		next.Attempt++
	}
	fx.claims++
	o.rec = next
	if o.claim.Volatile && r.State != store.Abandoned {
		st.claim, st.changed = &claim{rec: next, volatile: true}, true
		return nil
	}
	return fx.put(o, st, next, 0)
}

func (fx *effects) finish(o *op, st *standing, r store.Record) error {
	switch {
	case r.State == store.Absent || r.Token != o.token:
		o.err = store.ErrLost
		return nil
	case r.State == store.Done, r.State == store.Released,
		r.State == store.Abandoned && o.end.State == store.Abandoned:
		return nil
	}
	return fx.put(o, st, ended(r, o.end, fx.now), o.end.Retention)
}

func (fx *effects) resolve(o *op, st *standing, r store.Record) error {
	switch {
	case r.State == store.Absent:
		o.err = store.ErrLost
		return nil
	case r.Token == o.token:
		return nil
	case r.Token != o.was || r.State != store.Abandoned && (r.State != store.Done || !r.Ambiguous):
		o.err = store.ErrLost
		return nil
	}
	r.Token = o.token
	return fx.put(o, st, ended(r, o.end, fx.now), o.end.Retention)
}

// ended is r after its run ended as e says.
func ended(r store.Record, e store.End, now time.Time) store.Record {
	r.State, r.Ended, r.Outcome = e.State, now, e.Outcome
	r.Ambiguous = e.Ambiguous && e.State == store.Done
	r.Expires = time.Time{}
	if e.State == store.Abandoned {
		r.Outcome = slices.Clone(e.Outcome) // stays in memory
	} else {
		r.Expires = later(now, e.Retention)
	}
	return r
}

// put writes the record that takes the place of st: into a slot while its run has no end, else into a segment.
func (fx *effects) put(o *op, st *standing, r store.Record, retention time.Duration) error {
	value, err := encodeRecord(r, fx.s.incarnation)
	if err != nil {
		o.rec, o.err = store.Record{}, err
		return nil
	}
	fx.wrote, st.changed = true, true
	fx.bytes += 2 * int64(len(value))
	if r.State == store.Running || r.State == store.Abandoned {
		return fx.hold(st, r, value)
	}
	next, err := fx.append(r, value, retention)
	if err != nil {
		return err
	}
	if st.claim != nil && !st.claim.volatile {
		fx.freed = append(fx.freed, st.claim.slot)
		if err := fx.slots().Put(slotKey(st.claim.slot), []byte{freeSlot}); err != nil {
			return err
		}
	}
	if st.stored != nil {
		if err := fx.delete(st.stored); err != nil {
			return err
		}
	}
	st.claim, st.stored = nil, next
	return nil
}

func (fx *effects) hold(st *standing, r store.Record, value []byte) error {
	next := &claim{rec: r}
	if st.claim != nil && !st.claim.volatile {
		next.slot = st.claim.slot
	} else {
		next.slot = fx.s.slots.take()
		fx.taken = append(fx.taken, next.slot)
	}
	st.claim = next
	return fx.slots().Put(slotKey(next.slot), value)
}

// standing finds what there is of an ID. err: a record that may be of this ID cannot be read.
func (fx *effects) standing(id store.ID) (st *standing, err error) {
	st = fx.ids[id]
	if st.looked {
		return st, nil
	}
	var room [4]location
	for _, loc := range fx.s.index.find(tag(fx.s.hash(id)), room[:0]) {
		if fx.gone[loc] {
			continue
		}
		k, v := seekRecord(fx.bucket(fx.segment(loc)), loc.position())
		r, _, damage := decodeRecord(v)
		switch {
		case damage != nil:
			err = damage
		case r.ID == id:
			st.stored, st.looked = &stored{rec: r, loc: loc, key: slices.Clone(k)}, true
			return st, nil
		}
	}
	st.looked = err == nil || st.claim != nil
	return st, err
}

func (fx *effects) slots() *bbolt.Bucket    { return fx.root.Bucket(slotsBucket) }
func (fx *effects) segments() *bbolt.Bucket { return fx.root.Bucket(segmentsBucket) }

func (fx *effects) bucket(seg *segment) *bbolt.Bucket {
	return fx.segments().Bucket(segmentName(seg.number))
}

func (fx *effects) segment(loc location) *segment {
	if seg := fx.touched[loc.handle()]; seg != nil {
		return seg
	}
	return fx.s.segments[loc.handle()]
}
