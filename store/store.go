package store

import (
	"context"
	"encoding/hex"
	"errors"
	"iter"
	"time"
)

// ID names a record: a digest of scope and key, made by the caller of the store. A store never sees the key.
type ID [32]byte

// String is the ID in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Token names one claim. It is random, fresh for every call, and never zero.
type Token [16]byte

// State is where a record's life stands. The zero value is [Absent].
type State uint8

// The states of a record. They are kept on disk by stores: their numbers never change.
const (
	// Absent: there is no record, or it has expired.
	Absent State = iota
	// Running: a claim is held.
	Running
	// Abandoned: a run began, and its end is not known. It does not expire.
	Abandoned
	// Released: a run ended and nothing happened. The next Begin with the same fingerprint claims the ID.
	Released
	// Done: a run ended, and its outcome is kept.
	Done
)

// String is the state's name in lower case.
func (s State) String() string {
	switch s {
	case Absent:
		return "absent"
	case Running:
		return "running"
	case Abandoned:
		return "abandoned"
	case Released:
		return "released"
	case Done:
		return "done"
	}
	return "invalid"
}

// Claim asks for the right to run.
type Claim struct {
	ID    ID
	Token Token
	// Owner is a digest of the scope, to list, count and erase records by caller. It is stored and never compared.
	Owner [8]byte
	// Method is the full method name, stored for people.
	Method string
	// Fingerprint tells requests apart. It is opaque and compared as bytes.
	Fingerprint []byte
	// Lease is how long the claim stands without being renewed, on stores shared by processes. 0 is a lease without an
	// end. A store whose claims cannot outlive its process ignores it.
	Lease time.Duration
	// TakeoverBelow permits Begin to take over an abandoned claim with the same fingerprint and fewer attempts than
	// this. 0 permits none.
	TakeoverBelow int
	// Volatile permits the store to keep this claim so that it vanishes with the process: after a crash the record is
	// what it was before the claim, instead of abandoned. It is a permission, not an order, and it ends with Finish,
	// whose end is kept like any other.
	Volatile bool
}

// Record is what a store knows of an ID. In a record of state [Absent] only ID and Now have a meaning.
type Record struct {
	ID          ID
	Token       Token // of the latest claim, or of the latest Resolve
	Owner       [8]byte
	Method      string
	Fingerprint []byte
	State       State
	// Attempt is 1 + the number of times an abandoned claim of this record was taken over. A claim after a release
	// keeps the number.
	Attempt int
	// First is when the record was first claimed, Started when the latest run was claimed, Ended when it ended (zero
	// while Running, and for an Abandoned record whose end nobody reported), Expires from when on there is no record
	// (zero while Running and Abandoned). Now is when the store answered. All are on the store's clock.
	First, Started, Ended, Expires, Now time.Time
	// Ambiguous marks a Done record whose outcome does not tell whether the effect happened.
	Ambiguous bool
	// Outcome is what Finish or Resolve was given, empty while Running. It is opaque, and nil is the same as empty.
	Outcome []byte
}

// HeldBy reports whether the claim is held under t: the record is Running and t is its token.
func (r Record) HeldBy(t Token) bool { return r.State == Running && r.Token == t }

// End says how a run ended.
type End struct {
	// State is Done, Released, or Abandoned (end not known).
	State State
	// Ambiguous marks a Done outcome that does not tell whether the effect happened.
	Ambiguous bool
	// Outcome is kept with the record in every State: callers that wait elsewhere read that of a Released one.
	Outcome []byte
	// Retention is how long from now a Done or Released record is kept. Abandoned ones are kept until they are resolved.
	Retention time.Duration
}

// Store keeps records. All methods may be called concurrently.
//
// Values go in and come out: a store neither keeps nor shares the slices that it is given or gives. The store's own
// clock decides expiry and leases. An expired record is absent from the exact instant of Expires on, whether it has
// been swept or not. A context that is done before the call withdraws it: nothing changes, and the context's error is
// returned, wrapped or not. One that ends during the call may withdraw it: after the context's error the operation took
// effect or not, as after any other, and after nil it did. What took effect does not depend on the context any more.
type Store interface {
	// Begin claims c.ID for c.Token, or tells what stands in the way. It is one atomic step, in this order:
	//
	//  1. There is no record, or an expired one: claimed, as a first attempt.
	//  2. The record has another fingerprint: the record is returned untouched.
	//  3. The record is Running under c.Token (this Begin was sent before): claimed, and nothing changes. It is
	//     Running under another token, or Done: the record is returned.
	//  4. The record is Released: claimed, with the same First and Attempt. Its outcome is gone.
	//  5. The record is Abandoned: claimed with Attempt + 1 and the same First if Attempt < c.TakeoverBelow, and its
	//     outcome is gone; otherwise the record is returned.
	//
	// The claim is held if and only if the returned record is HeldBy(c.Token). After an error it may or may not stand,
	// except after [ErrFull], which claims nothing. Errors: ErrFull, [ErrUnreadable], [ErrUnusable], or a failure.
	Begin(ctx context.Context, c Claim) (Record, error)

	// Finish ends a claim. A record that is Running or Abandoned under token becomes e, also after its lease has ended.
	// One that is Done or Released under token stays as it is, and the answer is nil: this Finish was sent before.
	// Anything else is [ErrLost], and nothing changes. e.State Abandoned leaves a record that is Abandoned already as
	// it is. Errors: ErrLost, [ErrUnreadable], [ErrUnusable], or a failure, after which the record may have been
	// ended or not.
	Finish(ctx context.Context, id ID, token Token, e End) error

	// Get returns the record as it stands, of state Absent if there is none. Errors: [ErrUnreadable], [ErrUnusable],
	// or a failure.
	Get(ctx context.Context, id ID) (Record, error)
}

// Waiter is the power to wait for the end of a run without asking again and again.
type Waiter interface {
	// Wait returns nil when token no longer holds the claim of id: it ended in any way, was lost, or its lease ended.
	// It is level-triggered: if that is so already, it returns at once. It returns ctx's error when ctx ends, and
	// [ErrUnusable] when the store is closed meanwhile.
	Wait(ctx context.Context, id ID, token Token) error
}

// Renewer is the power to prolong a lease. Stores shared by processes have it.
type Renewer interface {
	// Renew makes the lease of a claim end no earlier than lease from now, and never earlier than it would have. The
	// lease is over from the exact instant of its end on. A claim that was abandoned because its lease ended, and was
	// not taken over, is Running again. If token no longer names the record's claim, or its run has ended (Finish with
	// Abandoned ends it too), the answer is [ErrLost], and nothing changes.
	Renew(ctx context.Context, id ID, token Token, lease time.Duration) error
}

// Query chooses records. The zero value of a field chooses any.
type Query struct {
	State     State
	Ambiguous bool // true: only ambiguous outcomes
	Owner     [8]byte
	Method    string
}

// Match reports whether q chooses r. A record that is Absent is never chosen.
func (q Query) Match(r Record) bool {
	return r.State != Absent &&
		(q.State == Absent || q.State == r.State) &&
		(!q.Ambiguous || r.Ambiguous) &&
		(q.Owner == [8]byte{} || q.Owner == r.Owner) &&
		(q.Method == "" || q.Method == r.Method)
}

// Lister is the power to list records.
type Lister interface {
	// List yields the records that q chooses, in no order that means anything. It holds no transaction and no lock
	// while the caller works on one; a record that changes meanwhile is yielded in its old or in its new form, and one
	// that stays as it is all the while is yielded exactly once. A record that cannot be read is yielded as an error
	// and the list goes on; any other error ends it.
	List(ctx context.Context, q Query) iter.Seq2[Record, error]
}

// Resolver is the power to set by hand what a crash or an ambiguous outcome left open.
type Resolver interface {
	// Resolve ends a record that is Abandoned, or Done and Ambiguous, under the token was: it becomes e, which is Done
	// or Released, and token replaces was. Attempt and First stay. If the record is under token already, the answer is
	// nil: this Resolve was sent before. Anything else is [ErrLost], and nothing changes.
	Resolve(ctx context.Context, id ID, was, token Token, e End) error
}

// The errors that callers tell apart. Stores return them wrapped or not; ask with errors.Is.
var (
	// ErrLost says that another claim has taken this one's place.
	ErrLost = errors.New("claim lost to another")
	// ErrFull says that nothing was claimed for want of room.
	ErrFull = errors.New("store is full")
	// ErrUnreadable says that the record is there and its bytes cannot be understood.
	ErrUnreadable = errors.New("record cannot be read")
	// ErrUnusable says that the store is latched after a failed write, or closed: nothing will succeed before it is
	// opened again, and trying goes on in vain.
	ErrUnusable = errors.New("store cannot be used until it is opened again")
)

// As returns the first store in the chain of wrappers around s that has the power P. A wrapper tells what it wraps by
// a method Unwrap() Store.
func As[P any](s Store) (power P, ok bool) {
	for s != nil {
		if p, ok := s.(P); ok {
			return p, true
		}
		w, ok := s.(interface{ Unwrap() Store })
		if !ok {
			break
		}
		s = w.Unwrap()
	}
	return power, false
}
