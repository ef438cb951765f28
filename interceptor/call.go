package interceptor

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/oncerpc/oncerpc/store"
)

// call is one keyed call on its way through the server. It belongs to the RPC's goroutine.
type call struct {
	s           *Server
	ctx         context.Context // the RPC's
	began       time.Time
	p           *policy
	req         proto.Message
	handler     grpc.UnaryHandler
	id          store.ID
	owner       [8]byte
	fingerprint []byte
	asked       time.Time // when the last Begin was sent
	waitUntil   time.Time // when this call stops waiting for another; zero: it has not begun to
	takeover    int       // Begin may take over an abandoned claim below this attempt
	ran         int       // the attempt of the run made for this call; 0: none
	reconciling bool      // takeover is for the reconcile function, not for the handler
}

const customAlgorithm = "custom"

// algorithm is the name of the fingerprint that this server makes.
func (c *call) algorithm() string {
	if c.s.opts.fingerprint != nil {
		return customAlgorithm
	}
	return fingerprintName
}

// fingerprintAs makes the request's fingerprint by the algorithm of a name; nil if this server does not know it.
func (c *call) fingerprintAs(name string) ([]byte, error) {
	switch {
	case name == fingerprintName:
		incoming := func(name string) []string { return metadata.ValueFromIncomingContext(c.ctx, name) }
		return c.p.fingerprint(incoming, c.s.opts.fingerprintMetadata, c.req)
	case name == customAlgorithm && c.s.opts.fingerprint != nil:
		b, err := c.s.opts.fingerprint(c.ctx, c.p.method, c.req)
		if err != nil {
			return nil, err
		}
		return customFingerprint(c.p.method, b), nil
	}
	return nil, nil
}

// sameRequest compares a stored fingerprint with the call's, by the stored one's algorithm. known is false if this
// server does not know that algorithm.
func (c *call) sameRequest(stored []byte) (same, known bool) {
	if name := fingerprintAlgorithm(stored); name != fingerprintAlgorithm(c.fingerprint) {
		fp, err := c.fingerprintAs(name)
		if fp == nil || err != nil {
			return false, false
		}
		c.fingerprint = fp // what stands in the store decides, also when this call claims
	}
	return bytes.Equal(stored, c.fingerprint), true
}

// serve answers the call: by running it, or by what another run ended with.
func (c *call) serve() (any, error) {
	for {
		if c.ctx.Err() != nil {
			c.left(0)
			return nil, status.FromContextError(c.ctx.Err()).Err()
		}
		if r := c.s.localRun(c.id); r != nil {
			if c.inside(r) {
				return nil, errInside
			}
			return c.joinRun(r)
		}
		rec, token, err := c.begin()
		if err != nil {
			return nil, err
		}
		if rec.HeldBy(token) {
			if c.reconciling && rec.Attempt == c.takeover {
				return c.startReconcile(rec)
			}
			return c.start(rec, c.handler)
		}
		if err := c.checkRecord(rec); err != nil {
			return nil, err
		}
		switch rec.State {
		case store.Done:
			return c.replay(rec, StatusReplayed)
		case store.Abandoned:
			if c.reconciler() == nil || c.reconciling {
				return nil, c.outcomeUnknown()
			}
			c.takeover, c.reconciling = rec.Attempt+1, true
		case store.Running:
			if r := c.s.localRun(c.id); r != nil {
				return c.joinRun(r)
			}
			ended, err := c.watch(rec)
			if err != nil {
				return nil, err
			}
			if !c.mayTakeOver(ended) {
				return c.joinRecord(ended)
			}
		default:
			return nil, c.storeUnavailable(fmt.Errorf("the store gave a record in state %v without the claim", rec.State))
		}
	}
}

// inside reports whether this call was made with the context of the run that it would wait for.
func (c *call) inside(r *run) bool {
	outer, _ := c.ctx.Value(runKey{}).(*run)
	return outer == r
}

var errInside = status.Error(codes.Internal, "oncerpc: this call is made by the run that it would have to wait for: "+
	"the interceptor is twice in the server's chain, or the handler calls its own method with its own key")

// begin asks the store for the claim. If it is held under the token returned, this call has to run or to release it.
func (c *call) begin() (store.Record, store.Token, error) {
	if c.s.overCallerless() {
		return store.Record{}, store.Token{}, c.overloaded("too many runs go on without their callers", storeWait)
	}
	claim := store.Claim{
		ID: c.id, Token: newToken(), Owner: c.owner, Method: c.p.method, Fingerprint: c.fingerprint,
		Lease: c.p.lease, Volatile: c.p.inTransaction, TakeoverBelow: c.takeover,
	}
	rec, err := c.tryBegin(claim)
	if err == nil && !rec.HeldBy(claim.Token) && fingerprintAlgorithm(rec.Fingerprint) != fingerprintAlgorithm(claim.Fingerprint) {
		// The record was made by a server with another fingerprint algorithm: ask again in its terms.
		if _, known := c.sameRequest(rec.Fingerprint); known {
			claim.Fingerprint = c.fingerprint
			rec, err = c.tryBegin(claim)
		}
	}
	switch {
	case err == nil:
		return rec, claim.Token, nil
	case errors.Is(err, store.ErrFull):
		return rec, claim.Token, c.overloaded("the idempotency store is full", fullWait)
	case errors.Is(err, store.ErrUnreadable):
		return rec, claim.Token, c.unreadable("the store cannot read it")
	case errors.Is(err, store.ErrUnusable):
		return rec, claim.Token, c.storeUnavailable(err)
	}
	c.s.releaseLater(claim, c.p.retention)
	return rec, claim.Token, c.storeUnavailable(err)
}

// tryBegin does not end with the caller: after a cancelled Begin nobody would know whether the claim stands.
func (c *call) tryBegin(claim store.Claim) (store.Record, error) {
	c.asked = time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), storeTimeout)
	defer cancel()
	return c.s.store.Begin(ctx, claim)
}

// checkRecord refuses a call whose request is not the one that the record was made for.
func (c *call) checkRecord(rec store.Record) error {
	same, known := c.sameRequest(rec.Fingerprint)
	switch {
	case !known:
		return c.unreadable("its fingerprint algorithm is not known to this server")
	case !same:
		return c.reused()
	}
	return nil
}

// mayTakeOver reports whether this call, having waited for a run that then was abandoned, may take its claim over: to
// run it again, or to reconcile it. What its own holder has left open, as a reconcile function does that does not know
// either, is answered to all that waited for it.
func (c *call) mayTakeOver(rec store.Record) bool {
	if rec.State != store.Abandoned {
		return false
	}
	return rec.Attempt < c.takeover || c.reconciler() != nil && rec.Ended.IsZero()
}

// releaseLater gives a claim back that nobody will run, in the background, until the store has taken it. It may not
// stand at all.
func (s *Server) releaseLater(claim store.Claim, retention time.Duration) {
	s.mu.Lock()
	s.work++
	s.releases++
	s.mu.Unlock()
	go func() {
		defer s.released()
		_ = s.untilSettled(func(ctx context.Context) error { // whatever the end, nobody runs under this claim
			rec, err := s.store.Get(ctx, claim.ID)
			if err != nil || !rec.HeldBy(claim.Token) {
				return err
			}
			e := store.End{State: store.Released, Retention: retention}
			if rec.Attempt > 1 {
				// An earlier run may have had an effect: what it left open stays open.
				e = store.End{State: store.Abandoned}
			}
			return s.store.Finish(ctx, claim.ID, claim.Token, e)
		})
	}()
}

// untilSettled repeats an operation of the store until its result says what stands there, or that nothing will succeed.
func (s *Server) untilSettled(op func(context.Context) error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		err := op(ctx)
		cancel()
		if err == nil || errors.Is(err, store.ErrLost) || errors.Is(err, store.ErrUnusable) || errors.Is(err, store.ErrUnreadable) {
			return err
		}
		time.Sleep(jitter(wait))
	}
}

func newToken() (t store.Token) {
	_, _ = rand.Read(t[:]) // never fails (crypto/rand)
	return t
}
