package storetest_test

import (
	"time"

	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

var reopenFaults = []fault{
	{"crash_forgets_everything", "reopen/ends_outlast_a_crash", func(s *broken) {
		s.reopen = func(*storetest.Memory) *storetest.Memory { return new(storetest.Memory) }
	}},
	{"crash_leaves_claims_running", "reopen/running_is_abandoned_by_a_crash", func(s *broken) {
		s.reopened(func(_ *store.Record, leaseEnd *time.Time) { *leaseEnd = time.Time{} })
	}},
	{"crash_forgets_claims", "reopen/running_is_abandoned_by_a_crash", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, _ store.Record) { c.Volatile = true })
	}},
	{"crash_forgets_claims_on_a_release", "reopen/run_on_a_release_is_abandoned_by_a_crash", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, was store.Record) { c.Volatile = c.Volatile || was.State == store.Released })
	}},
	{"crash_forgets_takeovers", "reopen/takeover_outlasts_a_crash", func(s *broken) {
		s.beforeBegin(func(c *store.Claim, was store.Record) { c.Volatile = c.Volatile || was.State == store.Abandoned })
	}},
	{"crash_forgets_attempts", "reopen/takeover_outlasts_a_crash", func(s *broken) {
		s.reopened(func(r *store.Record, _ *time.Time) { r.Attempt = 1 })
	}},
	{"crash_forgets_tokens", "reopen/token_outlasts_a_crash", func(s *broken) {
		s.reopened(func(r *store.Record, _ *time.Time) { r.Token = store.Token{} })
	}},
	{"crash_starts_retention_anew", "reopen/expiry_outlasts_a_crash", func(s *broken) {
		s.reopened(func(r *store.Record, _ *time.Time) {
			if !r.Expires.IsZero() {
				r.Expires = time.Now().Add(time.Hour)
			}
		})
	}},
	{"crash_releases_the_abandoned", "reopen/abandoned_outlasts_a_second_crash", func(s *broken) {
		s.reopened(func(r *store.Record, _ *time.Time) {
			if r.State == store.Abandoned {
				r.State = store.Released
			}
		})
	}},
}

// reopened makes change come to every record when the store is reopened.
func (s *broken) reopened(change func(r *store.Record, leaseEnd *time.Time)) {
	s.reopen = func(m *storetest.Memory) *storetest.Memory {
		for _, id := range m.IDs() {
			m.Edit(id, change)
		}
		return m
	}
}
