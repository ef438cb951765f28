package main

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/oncerpc/oncerpc/interceptor/crashtest"
	"github.com/oncerpc/oncerpc/store"
)

// records is the store as the interceptor sees it: with traps, with everything sent twice now and then, as a caller may
// who got no answer, and with the planted bug.
type records struct {
	store.Store
	trap *trap
	bug  string

	mu       sync.Mutex
	released map[store.ID]release
}

type release struct {
	token store.Token
	end   store.End
}

func (r *records) Unwrap() store.Store { return r.Store }

func (r *records) Begin(ctx context.Context, c store.Claim) (store.Record, error) {
	r.trap.at("begin.before")
	if r.bug == crashtest.HoldRerun {
		c.TakeoverBelow = 1 << 30
	}
	if rand.N(8) == 0 {
		_, _ = r.Store.Begin(ctx, c)
	}
	rec, err := r.Store.Begin(ctx, c)
	r.trap.at("begin.after")
	if err == nil && rec.HeldBy(c.Token) {
		r.finishLate(ctx, c.ID)
	}
	return rec, err
}

// finishLate sends the Finish of an earlier claim once more, now that there is another one.
func (r *records) finishLate(ctx context.Context, id store.ID) {
	r.mu.Lock()
	late, ok := r.released[id]
	delete(r.released, id)
	r.mu.Unlock()
	if ok {
		_ = r.finish(ctx, id, late.token, late.end)
	}
}

func (r *records) Finish(ctx context.Context, id store.ID, token store.Token, e store.End) error {
	if r.bug == crashtest.AnswerBeforeCommit {
		go func() { _ = r.watchedFinish(context.WithoutCancel(ctx), id, token, e) }()
		return nil
	}
	return r.watchedFinish(ctx, id, token, e)
}

func (r *records) watchedFinish(ctx context.Context, id store.ID, token store.Token, e store.End) error {
	r.trap.at("finish.before")
	if e.State == store.Released {
		r.mu.Lock()
		r.released[id] = release{token, e}
		r.mu.Unlock()
	}
	if rand.N(8) == 0 {
		_ = r.finish(ctx, id, token, e)
	}
	err := r.finish(ctx, id, token, e)
	r.trap.at("finish.after")
	return err
}

func (r *records) finish(ctx context.Context, id store.ID, token store.Token, e store.End) error {
	if r.bug == crashtest.TokenUnchecked {
		if rec, err := r.Get(ctx, id); err == nil && rec.State != store.Absent {
			token = rec.Token
		}
	}
	return r.Store.Finish(ctx, id, token, e)
}
