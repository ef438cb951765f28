package interceptor_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
)

func TestNonsenseOfTheStore(t *testing.T) {
	for name, nonsense := range map[string]func(c store.Claim) store.Record{
		"absent_without_the_claim":     func(c store.Claim) store.Record { return store.Record{ID: c.ID} },
		"absent_under_the_calls_token": func(c store.Claim) store.Record { return store.Record{ID: c.ID, Token: c.Token} },
		"done_with_nothing":            func(c store.Claim) store.Record { return store.Record{ID: c.ID, State: store.Done} },
		"a_state_that_does_not_exist":  func(c store.Claim) store.Record { return store.Record{ID: c.ID, State: 99, Fingerprint: c.Fingerprint} },
		"released_without_the_claim": func(c store.Claim) store.Record {
			return store.Record{ID: c.ID, State: store.Released, Fingerprint: c.Fingerprint}
		},
		"done_with_an_empty_outcome": func(c store.Claim) store.Record {
			return store.Record{ID: c.ID, State: store.Done, Fingerprint: c.Fingerprint}
		},
		"done_with_an_error_of_status_ok": func(c store.Claim) store.Record {
			return store.Record{ID: c.ID, State: store.Done, Fingerprint: c.Fingerprint, Outcome: mustMarshal(&oncerpcv1.Outcome{
				Status: mustMarshal(status.New(codes.OK, "fine").Proto()),
			})}
		},
	} {
		t.Run(name+"_runs_nothing_and_is_no_answer", func(t *testing.T) {
			s := newServer(t, &scripted{begin: func(_ context.Context, c store.Claim) (store.Record, error) {
				return nonsense(c), nil
			}}, &service{})
			r := s.call(t.Context(), "Plain", key("a"), "x")
			require.Contains(t, []oncerpcv1.Reason{oncerpcv1.Reason_RECORD_UNREADABLE, oncerpcv1.Reason_STORE_UNAVAILABLE},
				interceptor.ReasonOf(r.err), "%v", r.err)
			require.Zero(t, s.svc.runs.Load())
			require.NoError(t, s.once.Drain(t.Context()))
		})
	}

	t.Run("running_without_end_is_in_progress", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, &scripted{
				begin: func(_ context.Context, c store.Claim) (store.Record, error) {
					return store.Record{ID: c.ID, State: store.Running, Fingerprint: c.Fingerprint, Token: store.Token{1}}, nil
				},
				get: func(_ context.Context, id store.ID) (store.Record, error) {
					return store.Record{ID: id, State: store.Running, Token: store.Token{1}}, nil
				},
				wait: func(context.Context, store.ID, store.Token) error { return nil },
			}, &service{})
			s.call(t.Context(), "Plain", key("a"), "x").requireReason(t, codes.Aborted, oncerpcv1.Reason_IN_PROGRESS)
			require.Zero(t, s.svc.runs.Load())
		})
	})
}
