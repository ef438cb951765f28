package interceptor_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

// faulty is a store that fails as told: a hook that returns an error is asked before the operation, and one with
// after set applies the operation first, so that its caller cannot know.
type faulty struct {
	store.Store
	mu                   sync.Mutex
	begin, finish, renew func() error
	after                bool
}

func (f *faulty) Unwrap() store.Store { return f.Store }

func (f *faulty) set(begin, finish func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin, f.finish = begin, finish
}

func (f *faulty) hook(h *func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if *h == nil {
		return nil
	}
	return (*h)()
}

func (f *faulty) Begin(ctx context.Context, c store.Claim) (store.Record, error) {
	if err := f.hook(&f.begin); err != nil {
		if f.after {
			_, _ = f.Store.Begin(ctx, c)
		}
		return store.Record{}, err
	}
	return f.Store.Begin(ctx, c)
}

func (f *faulty) Finish(ctx context.Context, id store.ID, token store.Token, e store.End) error {
	if err := f.hook(&f.finish); err != nil {
		if f.after {
			_ = f.Store.Finish(ctx, id, token, e)
		}
		return err
	}
	return f.Store.Finish(ctx, id, token, e)
}

func (f *faulty) Renew(ctx context.Context, id store.ID, token store.Token, lease time.Duration) error {
	if err := f.hook(&f.renew); err != nil {
		return err
	}
	return f.Store.(store.Renewer).Renew(ctx, id, token, lease)
}

var errDisk = errors.New("disk on fire at /var/lib/secret")

func failing(err error) func() error { return func() error { return err } }

func settle() { synctest.Wait() }

func durationMillis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func TestBeginFails(t *testing.T) {
	for _, after := range []bool{false, true} {
		name := "before_it_took_effect"
		if after {
			name = "after_it_took_effect"
		}
		t.Run(name+"_the_handler_does_not_run_and_the_claim_is_released", func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				records := &faulty{Store: new(storetest.Memory), after: after}
				s := newServer(t, records, &service{})
				records.set(failing(errDisk), failing(errDisk))
				r := s.call(t.Context(), "Plain", key("a"), "x")
				requireWait(t, r, codes.Unavailable, oncerpcv1.Reason_STORE_UNAVAILABLE, time.Second)
				require.NotContains(t, r.err.Error(), "secret")
				require.Zero(t, s.svc.runs.Load())
				time.Sleep(10 * time.Second)
				records.set(nil, nil)
				time.Sleep(2 * time.Second) // the release in the background gets through
				s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
				require.NoError(t, s.once.Drain(t.Context()))
			})
		})
	}

	for _, row := range []struct {
		err    error
		code   codes.Code
		reason oncerpcv1.Reason
		wait   time.Duration
	}{
		{store.ErrFull, codes.ResourceExhausted, oncerpcv1.Reason_OVERLOADED, 5 * time.Second},
		{store.ErrUnusable, codes.Unavailable, oncerpcv1.Reason_STORE_UNAVAILABLE, time.Second},
		{store.ErrUnreadable, codes.FailedPrecondition, oncerpcv1.Reason_RECORD_UNREADABLE, 0},
	} {
		t.Run("with_"+row.reason.String()+"_"+row.err.Error(), func(t *testing.T) {
			s := newServer(t, &faulty{Store: new(storetest.Memory), begin: failing(row.err)}, &service{})
			r := s.call(t.Context(), "Plain", key("a"), "x")
			if row.wait > 0 {
				requireWait(t, r, row.code, row.reason, row.wait)
			} else {
				r.requireReason(t, row.code, row.reason)
			}
			require.Zero(t, s.svc.runs.Load())
			require.NoError(t, s.once.Drain(t.Context()), "nothing is tried in the background")
		})
	}
}

func TestFinishFails(t *testing.T) {
	t.Run("for_a_while_and_the_caller_waits_for_its_outcome_to_be_recorded", func(t *testing.T) {
		for _, after := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				records := &faulty{Store: new(storetest.Memory), after: after}
				s := newServer(t, records, &service{})
				records.set(nil, failing(errDisk))
				time.AfterFunc(5*time.Second, func() { records.set(nil, nil) })
				s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
				s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
			})
		}
	})

	t.Run("for_long_and_the_outcome_is_given_unrecorded_and_never_run_again", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := &faulty{Store: new(storetest.Memory)}
			s := newServer(t, records, &service{})
			records.set(nil, failing(errDisk))
			began := time.Now()
			joined := async(func() reply {
				time.Sleep(8 * time.Second)
				return s.call(t.Context(), "Plain", key("a"), "x")
			})
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusUnrecorded)
			require.Equal(t, 10*time.Second, time.Since(began))
			(<-joined).requireOK(t, 1, interceptor.StatusUnrecorded)
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusUnrecorded)
			require.Equal(t, 10*time.Second, time.Since(began), "duplicates are served from memory at once")
			time.Sleep(time.Hour) // the lease is renewed all the while
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusUnrecorded)
			records.set(nil, nil)
			time.Sleep(2 * time.Second)
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
			require.EqualValues(t, 1, s.svc.runs.Load())
		})
	})

	t.Run("under_rerun_an_unrecorded_outcome_is_withheld", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := &faulty{Store: new(storetest.Memory)}
			s := newServer(t, records, &service{})
			records.set(nil, failing(errDisk))
			require.Equal(t, oncerpcv1.Reason_IN_PROGRESS, interceptor.ReasonOf(s.call(t.Context(), "Rerun", key("a"), "x").err))
			require.Equal(t, oncerpcv1.Reason_IN_PROGRESS, interceptor.ReasonOf(s.call(t.Context(), "Rerun", key("a"), "x").err))
			records.set(nil, nil)
			time.Sleep(2 * time.Second)
			s.call(t.Context(), "Rerun", key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
		})
	})

	t.Run("because_the_store_is_latched_and_trying_ends", func(t *testing.T) {
		records := &faulty{Store: new(storetest.Memory)}
		s := newServer(t, records, &service{})
		records.set(nil, failing(store.ErrUnusable))
		s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusUnrecorded)
		require.Equal(t, oncerpcv1.Reason_IN_PROGRESS, interceptor.ReasonOf(s.call(t.Context(), "Rerun", key("b"), "x").err))
		require.NoError(t, s.once.Drain(t.Context()))
	})

	t.Run("because_the_claim_was_lost", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := &faulty{Store: new(storetest.Memory), finish: failing(store.ErrLost)}
			s := newServer(t, records, slow(time.Second))
			first := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
			settle()
			waiter := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
			requireWait(t, <-first, codes.Aborted, oncerpcv1.Reason_SUPERSEDED, time.Second)
			requireWait(t, <-waiter, codes.Aborted, oncerpcv1.Reason_SUPERSEDED, time.Second)
		})
	})
}

func TestUnreadableRecords(t *testing.T) {
	// change puts a record with another fingerprint or outcome in the place of the call's.
	change := func(t *testing.T, records *storetest.Memory, c func(*store.Claim, *store.End)) {
		t.Helper()
		for rec, err := range records.List(t.Context(), store.Query{}) {
			require.NoError(t, err)
			claim := store.Claim{ID: rec.ID, Token: store.Token{1}, Fingerprint: rec.Fingerprint}
			end := store.End{State: store.Done, Outcome: rec.Outcome, Retention: time.Hour}
			c(&claim, &end)
			time.Sleep(25 * time.Hour)
			_, err := records.Begin(t.Context(), claim)
			require.NoError(t, err)
			require.NoError(t, records.Finish(t.Context(), claim.ID, claim.Token, end))
		}
	}
	for name, c := range map[string]func(*store.Claim, *store.End){
		"an_algorithm_that_is_not_known": func(c *store.Claim, _ *store.End) { c.Fingerprint = []byte("fp9\x00whatever") },
		"a_fingerprint_that_is_none":     func(c *store.Claim, _ *store.End) { c.Fingerprint = []byte("junk") },
		"an_outcome_that_is_junk":        func(_ *store.Claim, e *store.End) { e.Outcome = []byte("junk") },
		"an_empty_outcome":               func(_ *store.Claim, e *store.End) { e.Outcome = nil },
		"a_response_type_that_is_not_linked": func(_ *store.Claim, e *store.End) {
			e.Outcome = mustMarshal(&oncerpcv1.Outcome{ResponseType: "gone.v1.Response"})
		},
		"a_response_that_is_junk": func(_ *store.Claim, e *store.End) {
			e.Outcome = mustMarshal(&oncerpcv1.Outcome{ResponseType: "oncerpc.internal.testpb.Response", Response: []byte("junk")})
		},
		"a_status_that_is_junk": func(_ *store.Claim, e *store.End) {
			e.Outcome = mustMarshal(&oncerpcv1.Outcome{Status: []byte("junk")})
		},
	} {
		t.Run("with_"+name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				records := new(storetest.Memory)
				s := newServer(t, records, &service{})
				s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
				change(t, records, c)
				s.call(t.Context(), "Plain", key("a"), "x").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_RECORD_UNREADABLE)
				require.EqualValues(t, 1, s.svc.runs.Load())
			})
		})
	}
}

func TestCallerlessRuns(t *testing.T) {
	t.Run("are_bounded", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), &service{handle: func(_ context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
				if n < 3 {
					time.Sleep(time.Minute)
				}
				return &testpb.Response{Number: n}, nil
			}}, interceptor.WithCallerlessRuns(2))
			for _, k := range []string{"a", "b"} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				require.Equal(t, codes.DeadlineExceeded, status.Code(s.call(ctx, "Plain", key(k), "x").err))
				cancel()
			}
			settle() // the server learns of it after its caller
			requireWait(t, s.call(t.Context(), "Plain", key("c"), "x"), codes.ResourceExhausted, oncerpcv1.Reason_OVERLOADED, time.Second)
			time.Sleep(2 * time.Minute)
			s.call(t.Context(), "Plain", key("c"), "x").requireOK(t, 3, interceptor.StatusExecuted)
		})
	})
}
