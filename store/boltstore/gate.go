package boltstore

import "context"

// gate is a mutual exclusion, first come, first served, for which one can wait as long as a context.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

func (g gate) Lock()   { g <- struct{}{} }
func (g gate) Unlock() { <-g }

func (g gate) enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	default:
	}
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
