package interceptor

import (
	"context"
	"errors"
	"time"

	"github.com/oncerpc/oncerpc/store"
)

// renew keeps the lease until ctx ends: while the handler runs and its outcome is not settled.
func (r *run) renew(ctx context.Context) {
	// The store being away says nothing about the claim, until the lease has ended by our own clock. It began no sooner
	// than it was asked for.
	end := time.AfterFunc(time.Until(r.claimed.Add(r.p.lease)), func() { r.cancel(ErrSuperseded) })
	defer end.Stop()
	wait := time.Until(r.claimed.Add(r.p.lease / 3))
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		asked := time.Now()
		attempt, cancel := context.WithDeadline(ctx, asked.Add(r.p.lease/3))
		err := r.s.renewer.Renew(attempt, r.id, r.token, r.p.lease)
		cancel()
		switch {
		case err == nil:
			end.Reset(time.Until(asked.Add(r.p.lease)))
			wait = r.p.lease / 3
		case errors.Is(err, store.ErrLost):
			r.cancel(ErrSuperseded)
			return
		default:
			wait = max(r.p.lease/10, time.Millisecond)
		}
	}
}
