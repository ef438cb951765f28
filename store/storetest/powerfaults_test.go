package storetest_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/oncerpc/oncerpc/store"
)

var powerFaults = []fault{
	{"wait_misses_a_release", "wait/wait_ends_with_every_end", func(s *broken) {
		s.afterWait(func(r store.Record, _ store.Token) bool { return r.State != store.Released })
	}},
	{"wait_misses_the_end_of_a_lease", "wait/wait_ends_with_the_lease", func(s *broken) {
		s.afterWait(func(r store.Record, _ store.Token) bool { return r.State != store.Abandoned || !r.Ended.IsZero() })
	}},
	{"wait_misses_a_loss", "wait/wait_ends_when_the_claim_is_lost_at_once", func(s *broken) {
		s.afterWait(func(r store.Record, t store.Token) bool { return r.State != store.Running })
	}},
	{"wait_misses_what_has_happened_before", "wait/wait_returns_at_once_when_the_claim_has_ended", func(s *broken) {
		s.wait = func(ctx context.Context, id store.ID, token store.Token) error {
			if !s.now(id).HeldBy(token) {
				<-ctx.Done()
			}
			return s.Memory.Wait(ctx, id, token)
		}
	}},
	{"wait_returns_too_soon", "wait/wait_lasts_as_long_as_the_claim_is_held", func(s *broken) {
		s.wait = func(ctx context.Context, id store.ID, token store.Token) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_ = s.Memory.Wait(ctx, id, token)
			return nil
		}
	}},
	{"wait_ignores_its_context", "wait/wait_ends_with_its_context", func(s *broken) {
		s.wait = func(_ context.Context, id store.ID, token store.Token) error { return s.Memory.Wait(s.open, id, token) }
	}},
	{"wait_swallows_the_error_of_its_context", "wait/wait_ends_with_its_context", func(s *broken) {
		s.wait = func(ctx context.Context, id store.ID, token store.Token) error {
			_ = s.Memory.Wait(ctx, id, token)
			return nil
		}
	}},
	{"renew_takes_any_token", "renew/renewal_of_what_is_not_held_is_lost", func(s *broken) {
		s.renew = func(ctx context.Context, id store.ID, _ store.Token, lease time.Duration) error {
			return s.Memory.Renew(ctx, id, s.now(id).Token, lease)
		}
	}},
	{"renew_does_nothing", "renew/renewed_lease_counts_from_the_renewal", func(s *broken) {
		s.renew = func(ctx context.Context, id store.ID, token store.Token, _ time.Duration) error {
			return s.Memory.Renew(ctx, id, token, 0)
		}
	}},
	{"renew_shortens", "renew/renewal_does_not_shorten_a_lease", func(s *broken) {
		s.renew = func(ctx context.Context, id store.ID, token store.Token, lease time.Duration) error {
			err := s.Memory.Renew(ctx, id, token, lease)
			s.Edit(id, func(r *store.Record, end *time.Time) {
				if err == nil && !end.IsZero() {
					*end = time.Now().Add(lease)
				}
			})
			return err
		}
	}},
	{"renew_refuses_what_nobody_took_over", "renew/renewal_revives_a_claim_that_nobody_took_over", func(s *broken) {
		s.renew = func(ctx context.Context, id store.ID, token store.Token, lease time.Duration) error {
			if s.now(id).State == store.Abandoned {
				return store.ErrLost
			}
			return s.Memory.Renew(ctx, id, token, lease)
		}
	}},
	{"renew_revives_a_run_that_ended", "renew/renewal_of_what_is_not_held_is_lost", func(s *broken) {
		s.renew = func(ctx context.Context, id store.ID, token store.Token, lease time.Duration) error {
			if r := s.now(id); r.State == store.Abandoned && r.Token == token {
				s.edit(id, func(r *store.Record) { r.State, r.Ended = store.Running, time.Time{} })
			}
			return s.Memory.Renew(ctx, id, token, lease)
		}
	}},
	{"resolve_takes_any_token", "resolve/resolve_under_another_token_is_lost", func(s *broken) {
		s.resolve = func(ctx context.Context, id store.ID, _, token store.Token, e store.End) error {
			return s.Memory.Resolve(ctx, id, s.now(id).Token, token, e)
		}
	}},
	{"resolve_keeps_the_token", "resolve/token_that_was_resolved_is_lost", func(s *broken) {
		s.resolve = func(ctx context.Context, id store.ID, was, token store.Token, e store.End) error {
			err := s.Memory.Resolve(ctx, id, was, token, e)
			if err == nil {
				s.edit(id, func(r *store.Record) { r.Token = was })
			}
			return err
		}
	}},
	{"resolve_sent_again_is_lost", "resolve/resolve_sent_again_changes_nothing", func(s *broken) {
		s.beforeResolve(func(r store.Record, token store.Token) error {
			if r.Token == token {
				return store.ErrLost
			}
			return nil
		})
	}},
	{"resolve_overwrites_an_outcome", "resolve/only_abandoned_and_ambiguous_are_resolved", func(s *broken) {
		s.beforeResolve(func(r store.Record, token store.Token) error {
			s.edit(r.ID, func(r *store.Record) { r.Ambiguous = r.State == store.Done })
			return nil
		})
	}},
	{"resolve_ends_a_run", "resolve/only_abandoned_and_ambiguous_are_resolved", func(s *broken) {
		s.beforeResolve(func(r store.Record, token store.Token) error {
			if r.State == store.Running {
				s.edit(r.ID, func(r *store.Record) { r.State = store.Abandoned })
			}
			return nil
		})
	}},
	{"resolve_has_its_own_retention", "resolve/abandoned_is_resolved", func(s *broken) {
		s.resolve = func(ctx context.Context, id store.ID, was, token store.Token, e store.End) error {
			e.Retention *= 1000
			return s.Memory.Resolve(ctx, id, was, token, e)
		}
	}},
	{"list_ignores_the_owner", "list/query_chooses_by_owner_and_method", func(s *broken) {
		s.list = func(ctx context.Context, q store.Query) iter.Seq2[store.Record, error] {
			q.Owner = [8]byte{}
			return s.Memory.List(ctx, q)
		}
	}},
	{"list_ignores_ambiguity", "list/query_chooses_the_ambiguous", func(s *broken) {
		s.list = func(ctx context.Context, q store.Query) iter.Seq2[store.Record, error] {
			q.Ambiguous = false
			return s.Memory.List(ctx, q)
		}
	}},
	{"list_yields_the_expired", "list/expired_is_not_listed", func(s *broken) {
		s.list = func(ctx context.Context, q store.Query) iter.Seq2[store.Record, error] {
			return func(yield func(store.Record, error) bool) {
				for _, id := range s.IDs() {
					s.Edit(id, func(r *store.Record, _ *time.Time) {
						if !r.Expires.IsZero() {
							r.Expires = time.Now().Add(time.Hour)
						}
					})
				}
				s.Memory.List(ctx, q)(yield)
			}
		}
	}},
	{"list_asks_for_the_nth", "list/what_stays_is_listed_once_while_others_change", func(s *broken) {
		s.list = func(ctx context.Context, q store.Query) iter.Seq2[store.Record, error] {
			return func(yield func(store.Record, error) bool) {
				for n := 0; ; n++ {
					ids := s.IDs()
					slices.SortFunc(ids, func(a, b store.ID) int { return bytes.Compare(a[:], b[:]) })
					if n >= len(ids) {
						return
					}
					if r, err := s.Memory.Get(ctx, ids[n]); (err != nil || q.Match(r)) && !yield(r, err) {
						return
					}
				}
			}
		}
	}},
	{"list_keeps_others_out", "list/store_can_be_called_while_listing", func(s *broken) {
		lock := make(chan struct{}, 1)
		s.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
			select {
			case lock <- struct{}{}:
			case <-time.After(time.Minute):
				return store.Record{}, errors.New("blocked for ever")
			}
			defer func() { <-lock }()
			return s.Memory.Begin(ctx, c)
		}
		s.list = func(ctx context.Context, q store.Query) iter.Seq2[store.Record, error] {
			return func(yield func(store.Record, error) bool) {
				lock <- struct{}{}
				defer func() { <-lock }()
				s.Memory.List(ctx, q)(yield)
			}
		}
	}},
	{"list_ignores_its_context", "context/withdrawn_list_yields_the_error_and_ends", func(s *broken) {
		s.list = func(ctx context.Context, q store.Query) iter.Seq2[store.Record, error] {
			return s.Memory.List(context.WithoutCancel(ctx), q)
		}
	}},
}

var valueFaults = []fault{
	{"id_is_cut", "begin/ids_are_told_apart_by_every_byte", func(s *broken) {
		var whole sync.Map
		cut := func(id store.ID) store.ID {
			short := id
			short[31] = 0
			whole.Store(short, id)
			return short
		}
		s.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
			c.ID = cut(c.ID)
			return s.Memory.Begin(ctx, c)
		}
		s.finish = func(ctx context.Context, id store.ID, token store.Token, e store.End) error {
			return s.Memory.Finish(ctx, cut(id), token, e)
		}
		s.get = func(ctx context.Context, id store.ID) (store.Record, error) { return s.Memory.Get(ctx, cut(id)) }
		s.seen = func(r store.Record) store.Record {
			if id, ok := whole.Load(r.ID); ok {
				r.ID = id.(store.ID)
			}
			return r
		}
	}},
	{"owner_is_forgotten", "values/owner_and_method_are_stored", func(s *broken) {
		s.afterClaim(func(r *store.Record, _ store.Record) { r.Owner = [8]byte{} })
	}},
	{"outcome_is_cut_at_a_mebibyte", "values/outcome_may_be_of_any_size_to_5_mib", func(s *broken) {
		s.beforeFinish(func(_ store.Record, _ *store.Token, e *store.End) error {
			e.Outcome = e.Outcome[:min(len(e.Outcome), 1<<20)]
			return nil
		})
	}},
	{"outcome_ends_at_a_zero_byte", "values/outcome_may_be_any_bytes", func(s *broken) {
		s.beforeFinish(func(_ store.Record, _ *store.Token, e *store.End) error {
			e.Outcome, _, _ = bytes.Cut(e.Outcome, []byte{0})
			return nil
		})
	}},
	{"fingerprint_is_kept", "values/fingerprint_given_to_begin_is_not_kept", func(s *broken) {
		s.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
			r, err := s.Memory.Begin(ctx, c)
			if r.HeldBy(c.Token) {
				s.edit(c.ID, func(r *store.Record) { r.Fingerprint = c.Fingerprint })
			}
			return r, err
		}
	}},
	{"outcome_is_kept", "values/outcome_given_to_finish_is_not_kept", func(s *broken) {
		s.afterFinish(func(r *store.Record, e store.End) { r.Outcome = e.Outcome })
	}},
	{"record_is_shared", "values/record_given_by_get_is_not_shared", func(s *broken) {
		s.get = func(ctx context.Context, id store.ID) (store.Record, error) {
			r, err := s.Memory.Get(ctx, id)
			s.edit(id, func(kept *store.Record) { r.Outcome = kept.Outcome[:len(r.Outcome)] })
			return r, err
		}
	}},
	{"begin_ignores_its_context", "context/withdrawn_begin_claims_nothing", func(s *broken) {
		s.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
			if _, err := s.Memory.Begin(context.WithoutCancel(ctx), c); err != nil {
				return store.Record{}, err
			}
			return s.now(c.ID), ctx.Err()
		}
	}},
	{"finish_ignores_its_context", "context/withdrawn_finish_changes_nothing", func(s *broken) {
		s.finish = func(ctx context.Context, id store.ID, token store.Token, e store.End) error {
			return s.Memory.Finish(context.WithoutCancel(ctx), id, token, e)
		}
	}},
	{"claim_ends_with_the_context_of_its_begin", "context/claim_outlives_the_context_of_its_begin", func(s *broken) {
		s.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
			r, err := s.Memory.Begin(ctx, c)
			context.AfterFunc(ctx, func() { _ = s.Memory.Finish(s.open, c.ID, c.Token, store.End{State: store.Abandoned}) })
			return r, err
		}
	}},
}

// afterWait makes Wait go on for ever if what it woke up for is not to be told.
func (s *broken) afterWait(tell func(r store.Record, token store.Token) bool) {
	s.wait = func(ctx context.Context, id store.ID, token store.Token) error {
		err := s.Memory.Wait(ctx, id, token)
		if err == nil && !tell(s.now(id), token) {
			<-ctx.Done()
			return ctx.Err()
		}
		return err
	}
}

// beforeResolve makes do come before every Resolve; its error is the answer.
func (s *broken) beforeResolve(do func(r store.Record, token store.Token) error) {
	s.resolve = func(ctx context.Context, id store.ID, was, token store.Token, e store.End) error {
		if err := do(s.now(id), token); err != nil {
			return err
		}
		return s.Memory.Resolve(ctx, id, was, token, e)
	}
}
