package storetest_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncerpc/oncerpc/store"
)

var beginFaults = []fault{
	{"first_begin_looks_before_it_claims", "race/one_of_many_first_begins_is_held", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, was store.Record) {
			if was.State == store.Absent {
				time.Sleep(time.Nanosecond)
				s.edit(c.ID, func(r *store.Record) { r.Expires = r.Started })
			}
		})
	}},
	{"takeover_looks_before_it_claims", "race/one_of_many_takeovers_is_held", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, was store.Record) {
			if was.State == store.Abandoned && was.Attempt < c.TakeoverBelow {
				time.Sleep(time.Nanosecond)
				s.edit(c.ID, func(r *store.Record) { r.State, r.Attempt = was.State, was.Attempt })
			}
		})
	}},
	{"release_is_claimed_by_many", "race/one_of_many_begins_on_a_release_is_held", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, was store.Record) {
			if was.State == store.Released && bytes.Equal(was.Fingerprint, c.Fingerprint) {
				time.Sleep(time.Nanosecond)
				s.edit(c.ID, func(r *store.Record) { r.State = was.State })
			}
		})
	}},
	{"fingerprint_is_ignored", "begin/other_fingerprint_does_not_claim_a_release", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, was store.Record) {
			if was.State != store.Absent {
				c.Fingerprint = was.Fingerprint
			}
		})
	}},
	{"fingerprint_is_ignored_by_takeovers", "begin/other_fingerprint_does_not_take_over", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, was store.Record) {
			if was.State == store.Abandoned {
				c.Fingerprint = was.Fingerprint
			}
		})
	}},
	{"fingerprint_is_compared_by_its_beginning", "begin/fingerprints_are_compared_as_bytes", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, was store.Record) {
			if len(was.Fingerprint) > 0 && bytes.HasPrefix(c.Fingerprint, was.Fingerprint) {
				c.Fingerprint = was.Fingerprint
			}
		})
	}},
	{"fingerprint_outlasts_its_record", "expire/expired_record_with_another_fingerprint_is_claimed", func(s *broken) {
		var fingerprints sync.Map
		s.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
			if f, _ := fingerprints.LoadOrStore(c.ID, string(c.Fingerprint)); f != string(c.Fingerprint) {
				return s.now(c.ID), nil
			}
			return s.Memory.Begin(ctx, c)
		}
	}},
	{"begin_sent_again_is_refused", "begin/begin_sent_again_is_held_and_changes_nothing", func(s *broken) {
		s.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
			was := s.now(c.ID)
			r, err := s.Memory.Begin(ctx, c)
			if was.HeldBy(c.Token) {
				r.Token = store.Token{}
			}
			return r, err
		}
	}},
	{"begin_sent_again_starts_anew", "begin/begin_sent_again_is_held_and_changes_nothing", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, was store.Record) {
			if was.HeldBy(c.Token) {
				s.edit(c.ID, func(r *store.Record) { r.Started = was.Now })
			}
		})
	}},
	{"begin_sent_again_takes_the_claim_back", "begin/begin_sent_again_after_a_takeover_is_not_held", func(s *broken) {
		var first sync.Map
		s.beforeBegin(func(c *store.Claim, was store.Record) {
			if token, again := first.LoadOrStore(c.ID, c.Token); again && token == c.Token && was.State == store.Running {
				s.edit(c.ID, func(r *store.Record) { r.Token = c.Token })
			}
		})
	}},
	{"takeover_needs_no_permission", "takeover/abandoned_is_not_claimed_without_permission", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, _ store.Record) { c.TakeoverBelow = 100 })
	}},
	{"takeover_happens_at_the_count", "takeover/takeover_goes_on_below_the_count_and_no_further", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, _ store.Record) { c.TakeoverBelow++ })
	}},
	{"takeover_does_not_count", "takeover/takeover_counts_an_attempt_and_keeps_first", func(s *broken) {
		s.afterClaim(func(r *store.Record, was store.Record) { r.Attempt = max(1, was.Attempt) })
	}},
	{"takeover_forgets_first", "takeover/takeover_counts_an_attempt_and_keeps_first", func(s *broken) {
		s.afterClaim(func(r *store.Record, _ store.Record) { r.First = r.Started })
	}},
	{"takeover_keeps_the_end", "takeover/takeover_counts_an_attempt_and_keeps_first", func(s *broken) {
		s.afterClaim(func(r *store.Record, was store.Record) {
			if was.State == store.Abandoned {
				r.Ended = was.Ended
			}
		})
	}},
	{"done_is_taken_over", "takeover/running_and_done_are_not_taken_over", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, was store.Record) {
			if was.State == store.Done && was.Attempt < c.TakeoverBelow {
				s.edit(c.ID, func(r *store.Record) { r.State, r.Expires = store.Abandoned, time.Time{} })
			}
		})
	}},
	{"claim_of_a_release_counts", "begin/released_is_claimed_with_its_first_and_attempt", func(s *broken) {
		s.afterClaim(func(r *store.Record, was store.Record) { r.Attempt = was.Attempt + 1 })
	}},
	{"claim_of_a_release_forgets_attempts", "takeover/release_keeps_the_attempts", func(s *broken) {
		s.afterClaim(func(r *store.Record, was store.Record) {
			if was.State == store.Released {
				r.Attempt = 1
			}
		})
	}},
	{"claim_of_a_release_keeps_its_outcome", "begin/outcome_of_a_release_is_gone_once_it_is_claimed", func(s *broken) {
		s.afterClaim(func(r *store.Record, was store.Record) { r.Outcome = was.Outcome })
	}},
	{"claim_of_an_expired_record_keeps_its_first", "expire/expired_record_is_claimed_as_a_first_attempt", func(s *broken) {
		var first sync.Map
		s.afterClaim(func(r *store.Record, _ store.Record) {
			f, _ := first.LoadOrStore(r.ID, r.First)
			r.First = f.(time.Time)
		})
	}},
}

var finishFaults = []fault{
	{"finish_takes_any_token", "finish/finish_under_another_token_is_lost", func(s *broken) {
		s.beforeFinish(func(was store.Record, token *store.Token, _ *store.End) error {
			*token = was.Token
			return nil
		})
	}},
	{"finish_takes_a_token_that_was_taken_over", "takeover/token_that_was_taken_over_is_lost", func(s *broken) {
		var tokens sync.Map
		s.afterClaim(func(r *store.Record, _ store.Record) { tokens.Store(r.Token, r.ID) })
		s.beforeFinish(func(was store.Record, token *store.Token, _ *store.End) error {
			if id, ok := tokens.Load(*token); ok && id == was.ID {
				*token = was.Token
			}
			return nil
		})
	}},
	{"finish_of_nothing_is_accepted", "finish/finish_of_nothing_is_lost", func(s *broken) {
		s.finish = func(ctx context.Context, id store.ID, token store.Token, e store.End) error {
			if s.now(id).State == store.Absent {
				return nil
			}
			return s.Memory.Finish(ctx, id, token, e)
		}
	}},
	{"finish_sent_again_is_lost", "finish/finish_sent_again_changes_nothing", func(s *broken) {
		s.beforeFinish(func(was store.Record, _ *store.Token, _ *store.End) error {
			if was.State == store.Done || was.State == store.Released {
				return store.ErrLost
			}
			return nil
		})
	}},
	{"finish_sent_again_overwrites", "finish/finish_sent_again_changes_nothing", func(s *broken) {
		s.beforeFinish(func(was store.Record, token *store.Token, _ *store.End) error {
			if was.Token == *token {
				s.edit(was.ID, func(r *store.Record) { r.State = store.Running })
			}
			return nil
		})
	}},
	{"finish_refuses_the_abandoned", "finish/abandoned_is_ended_by_its_token", func(s *broken) {
		s.beforeFinish(func(was store.Record, _ *store.Token, _ *store.End) error {
			if was.State == store.Abandoned && !was.Ended.IsZero() {
				return store.ErrLost
			}
			return nil
		})
	}},
	{"finish_refuses_after_the_lease", "renew/finish_after_the_lease_ended_is_accepted", func(s *broken) {
		s.beforeFinish(func(was store.Record, _ *store.Token, _ *store.End) error {
			if was.State == store.Abandoned && was.Ended.IsZero() {
				return store.ErrLost
			}
			return nil
		})
	}},
	{"abandoning_again_overwrites", "finish/abandoning_again_changes_nothing", func(s *broken) {
		s.beforeFinish(func(was store.Record, token *store.Token, e *store.End) error {
			if was.State == store.Abandoned && was.Token == *token {
				s.edit(was.ID, func(r *store.Record) { r.State = store.Running })
			}
			return nil
		})
	}},
	{"release_loses_its_outcome", "finish/released_keeps_outcome_and_fingerprint", func(s *broken) {
		s.afterFinish(func(r *store.Record, e store.End) {
			if e.State == store.Released {
				r.Outcome = nil
			}
		})
	}},
	{"release_loses_its_fingerprint", "begin/other_fingerprint_does_not_claim_a_release", func(s *broken) {
		s.begin = func(ctx context.Context, c store.Claim) (store.Record, error) {
			if s.now(c.ID).State == store.Released {
				s.edit(c.ID, func(r *store.Record) { r.Fingerprint = c.Fingerprint })
			}
			return s.Memory.Begin(ctx, c)
		}
	}},
	{"ambiguous_is_forgotten", "finish/ambiguous_is_kept", func(s *broken) {
		s.afterFinish(func(r *store.Record, _ store.End) { r.Ambiguous = false })
	}},
	{"refusal_is_an_error_of_its_own", "finish/finish_under_another_token_is_lost", func(s *broken) {
		s.finish = func(ctx context.Context, id store.ID, token store.Token, e store.End) error {
			if err := s.Memory.Finish(ctx, id, token, e); err != nil {
				return errors.New(err.Error())
			}
			return nil
		}
	}},
}

var timeFaults = []fault{
	{"record_stays_a_nanosecond_too_long", "expire/done_is_absent_from_expires_on", func(s *broken) { s.shiftExpiry(1) }},
	{"record_goes_a_nanosecond_too_soon", "expire/released_is_absent_from_expires_on", func(s *broken) { s.shiftExpiry(-1) }},
	{"abandoned_expires", "expire/abandoned_does_not_expire", func(s *broken) {
		s.afterFinish(func(r *store.Record, e store.End) {
			if e.State == store.Abandoned {
				r.Expires = r.Ended.Add(24 * time.Hour)
			}
		})
		s.hideExpires()
	}},
	{"running_expires", "expire/running_does_not_expire", func(s *broken) {
		s.afterClaim(func(r *store.Record, _ store.Record) { r.Expires = r.Started.Add(24 * time.Hour) })
		s.hideExpires()
	}},
	{"run_expires_with_the_release_that_it_claimed", "expire/run_outlasts_the_release_that_it_claimed", func(s *broken) {
		s.afterClaim(func(r *store.Record, was store.Record) { r.Expires = was.Expires })
		s.hideExpires()
	}},
	{"retention_counts_from_the_claim", "expire/retention_counts_from_the_end", func(s *broken) {
		s.afterFinish(func(r *store.Record, e store.End) {
			if e.State != store.Abandoned {
				r.Expires = r.Started.Add(e.Retention)
			}
		})
	}},
	{"retention_has_a_bound", "expire/every_record_has_its_own_retention", func(s *broken) {
		s.beforeFinish(func(_ store.Record, _ *store.Token, e *store.End) error {
			e.Retention = min(e.Retention, 7*24*time.Hour)
			return nil
		})
	}},
	{"lease_never_ends", "renew/claim_is_abandoned_from_the_end_of_its_lease_on", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, _ store.Record) { c.Lease = 0 })
	}},
	{"lease_ends_a_nanosecond_late", "renew/claim_is_abandoned_from_the_end_of_its_lease_on", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, _ store.Record) {
			if c.Lease > 0 {
				c.Lease++
			}
		})
	}},
	{"claim_without_a_lease_gets_one", "renew/claim_without_a_lease_stands", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, _ store.Record) {
			if c.Lease == 0 {
				c.Lease = time.Hour
			}
		})
	}},
	{"begin_sent_again_renews", "renew/begin_sent_again_does_not_renew", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, was store.Record) {
			if was.HeldBy(c.Token) {
				_ = s.Memory.Renew(context.Background(), c.ID, c.Token, c.Lease)
			}
		})
	}},
	{"clock_stands_still", "begin/now_is_when_the_store_answered", func(s *broken) {
		first := time.Now()
		s.seen = func(r store.Record) store.Record {
			r.Now = first
			return r
		}
	}},
}

// shiftExpiry makes records expire late by d, and tell otherwise.
func (s *broken) shiftExpiry(d time.Duration) {
	s.afterFinish(func(r *store.Record, e store.End) {
		if e.State != store.Abandoned {
			r.Expires = r.Expires.Add(d)
		}
	})
	s.seen = func(r store.Record) store.Record {
		if !r.Expires.IsZero() {
			r.Expires = r.Expires.Add(-d)
		}
		return r
	}
}

// hideExpires makes records that should not expire tell that they do not.
func (s *broken) hideExpires() {
	s.seen = func(r store.Record) store.Record {
		if r.State == store.Running || r.State == store.Abandoned {
			r.Expires = time.Time{}
		}
		return r
	}
}
