package interceptor_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
	"github.com/oncerpc/oncerpc/store/storetest"
)

// abandon leaves records with an abandoned record of method, key("a") and text "x", as a crash mid-handler does.
func abandon(t *testing.T, records *storetest.Memory, method string) {
	t.Helper()
	away := &faulty{Store: records, renew: failing(context.DeadlineExceeded), finish: failing(store.ErrUnusable)}
	newServer(t, away, &service{}).call(t.Context(), method, key("a"), "x")
	time.Sleep(31 * time.Second) // its lease ends
	for rec, err := range records.List(t.Context(), store.Query{}) {
		require.NoError(t, err)
		require.Equal(t, store.Abandoned, rec.State)
	}
}

func TestReconcile(t *testing.T) {
	declined := status.Error(codes.FailedPrecondition, "declined")
	type result struct {
		resp proto.Message
		err  error
	}
	for name, row := range map[string]struct {
		found  result
		status interceptor.Status
		code   codes.Code
	}{
		"a_response":       {result{&testpb.Response{Number: 7}, nil}, interceptor.StatusReplayed, codes.OK},
		"a_final_error":    {result{nil, interceptor.Final(declined)}, interceptor.StatusReplayed, codes.FailedPrecondition},
		"no_effect":        {result{nil, interceptor.NoEffect(status.Error(codes.Aborted, "never arrived"))}, interceptor.StatusReleased, codes.Aborted},
		"any_other_error":  {result{nil, declined}, interceptor.StatusNone, codes.FailedPrecondition},
		"a_failure":        {result{nil, errors.New("bank is away")}, interceptor.StatusNone, codes.FailedPrecondition},
		"nothing":          {result{nil, nil}, interceptor.StatusNone, codes.FailedPrecondition},
		"a_typed_nil":      {result{(*testpb.Response)(nil), nil}, interceptor.StatusNone, codes.FailedPrecondition},
		"another_response": {result{&testpb.Request{}, nil}, interceptor.StatusNone, codes.FailedPrecondition},
	} {
		t.Run("finds_"+name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				records := new(storetest.Memory)
				abandon(t, records, "Plain")
				asked := 0
				s := newServer(t, records, &service{}, interceptor.WithReconcile(testService+"Plain",
					func(ctx context.Context, rec store.Record, req proto.Message) (proto.Message, error) {
						asked++
						require.Equal(t, store.Abandoned, rec.State)
						require.Equal(t, asked, rec.Attempt)
						require.Equal(t, testService+"Plain", rec.Method)
						require.Equal(t, "x", req.(*testpb.Request).GetText())
						require.NoError(t, ctx.Err())
						return row.found.resp, row.found.err
					}))
				r := s.call(t.Context(), "Plain", key("a"), "x")
				require.Equal(t, row.code, status.Code(r.err), "%v", r.err)
				require.Equal(t, row.status, r.status(t))
				require.Equal(t, 1, asked)
				again := s.call(t.Context(), "Plain", key("a"), "x")
				switch row.status {
				case interceptor.StatusReplayed:
					require.NotEmpty(t, r.trailer.Get(interceptor.MetadataFirstSeen))
					require.Equal(t, row.code, status.Code(again.err))
					require.Equal(t, row.status, again.status(t))
					require.Equal(t, 1, asked)
					require.Zero(t, s.svc.runs.Load())
				case interceptor.StatusReleased:
					again.requireOK(t, 1, interceptor.StatusExecuted)
				default:
					r.requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_OUTCOME_UNKNOWN)
					again.requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_OUTCOME_UNKNOWN)
					require.Equal(t, 2, asked, "every retry asks again")
					require.Zero(t, s.svc.runs.Load())
				}
			})
		})
	}

	t.Run("that_panics_or_ends_late_tells_nothing", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			abandon(t, records, "Brief")
			asked := 0
			s := newServer(t, records, &service{}, interceptor.WithReconcile(testService+"Brief",
				func(ctx context.Context, _ store.Record, _ proto.Message) (proto.Message, error) {
					if asked++; asked == 1 {
						panic("boom")
					}
					<-ctx.Done()
					return nil, ctx.Err()
				}))
			s.call(t.Context(), "Brief", key("a"), "x").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_OUTCOME_UNKNOWN)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.Equal(t, codes.DeadlineExceeded, status.Code(s.call(ctx, "Brief", key("a"), "x").err))
			s.call(t.Context(), "Brief", key("a"), "x").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_OUTCOME_UNKNOWN)
			require.Equal(t, 2, asked)
		})
	})

	for _, decided := range []bool{true, false} {
		name := "that_is_decided"
		if !decided {
			name = "that_stays_open"
		}
		t.Run("duplicates_on_all_servers_join_one_"+name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				records := new(storetest.Memory)
				abandon(t, records, "Plain")
				asked := 0
				slowly := interceptor.WithReconcile(testService+"Plain", func(context.Context, store.Record, proto.Message) (proto.Message, error) {
					asked++
					time.Sleep(2 * time.Second)
					if !decided {
						return nil, errors.New("cannot tell")
					}
					return &testpb.Response{Number: 7}, nil
				})
				a, b := newServer(t, records, &service{}, slowly), newServer(t, records, &service{}, slowly)
				var replies []<-chan reply
				for i := range 20 {
					s := a
					if i%2 == 1 {
						s = b
					}
					replies = append(replies, async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") }))
				}
				for _, r := range replies {
					if decided {
						require.EqualValues(t, 7, (<-r).resp.GetNumber())
					} else {
						(<-r).requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_OUTCOME_UNKNOWN)
					}
				}
				require.Equal(t, 1, asked)
			})
		})
	}

	t.Run("under_rerun_comes_only_after_max_attempts", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			abandon(t, records, "Rerun")
			asked := 0
			opt := interceptor.WithReconcile(testService+"Rerun", func(context.Context, store.Record, proto.Message) (proto.Message, error) {
				asked++
				return &testpb.Response{Number: 7}, nil
			})
			away := &faulty{Store: records, renew: failing(context.DeadlineExceeded), finish: failing(store.ErrUnusable)}
			second := newServer(t, away, &service{}, opt)
			second.call(t.Context(), "Rerun", key("a"), "x")
			require.EqualValues(t, 1, second.svc.runs.Load())
			require.Zero(t, asked)
			time.Sleep(31 * time.Second)
			s := newServer(t, records, &service{}, opt)
			s.call(t.Context(), "Rerun", key("a"), "x").requireOK(t, 7, interceptor.StatusReplayed)
			require.Equal(t, 1, asked)
		})
	})

	t.Run("is_refused_for_a_method_that_is_not_linked", func(t *testing.T) {
		f := func(context.Context, store.Record, proto.Message) (proto.Message, error) { return nil, nil }
		require.Panics(t, func() {
			interceptor.NewServer(new(storetest.Memory), tenantOf, interceptor.WithReconcile("/no.Such/Method", f))
		})
		require.Panics(t, func() { interceptor.WithReconcile(testService+"Plain", nil) })
	})
}

func TestResolve(t *testing.T) {
	resolved := &testpb.Response{Number: 9}

	t.Run("sets_the_outcome_of_an_abandoned_record_once", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			abandon(t, records, "Plain")
			s := newServer(t, records, &service{})
			s.call(t.Context(), "Plain", key("a"), "x").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_OUTCOME_UNKNOWN)
			require.NoError(t, s.once.Resolve(t.Context(), "acme", key("a"), resolved, nil))
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 9, interceptor.StatusReplayed)
			require.Error(t, s.once.Resolve(t.Context(), "acme", key("a"), &testpb.Response{Number: 10}, nil))
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 9, interceptor.StatusReplayed)
			rec, err := records.Get(t.Context(), s.once.ID("acme", key("a")))
			require.NoError(t, err)
			require.Equal(t, store.Done, rec.State)
		})
	})

	t.Run("with_an_error_of_any_code_is_final", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			abandon(t, records, "Plain")
			s := newServer(t, records, &service{})
			require.NoError(t, s.once.Resolve(t.Context(), "acme", key("a"), nil, status.Error(codes.Unavailable, "the bank never had it")))
			r := s.call(t.Context(), "Plain", key("a"), "x")
			require.Equal(t, codes.Unavailable, status.Code(r.err))
			require.Empty(t, r.trailer.Get(interceptor.MetadataOutcome))
		})
	})

	t.Run("with_no_effect_frees_the_key", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			abandon(t, records, "Plain")
			s := newServer(t, records, &service{})
			require.NoError(t, s.once.Resolve(t.Context(), "acme", key("a"), nil, interceptor.NoEffect(errors.New("nothing there"))))
			s.call(t.Context(), "Plain", key("a"), "y").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_KEY_REUSED)
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
		})
	})

	t.Run("settles_an_ambiguous_outcome_once", func(t *testing.T) {
		s := newServer(t, new(storetest.Memory), &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			return nil, status.Error(codes.Unavailable, "gone")
		}})
		require.Equal(t, []string{"ambiguous"}, s.call(t.Context(), "Plain", key("a"), "x").trailer.Get(interceptor.MetadataOutcome))
		require.NoError(t, s.once.Resolve(t.Context(), "acme", key("a"), resolved, nil))
		s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 9, interceptor.StatusReplayed)
		require.ErrorContains(t, s.once.Resolve(t.Context(), "acme", key("a"), resolved, nil), "known")
	})

	t.Run("refuses_what_there_is_nothing_to_resolve_in", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			s := newServer(t, new(storetest.Memory), slow(time.Second))
			require.ErrorContains(t, s.once.Resolve(t.Context(), "acme", key("a"), resolved, nil), "no record")
			first := async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") })
			settle()
			require.ErrorContains(t, s.once.Resolve(t.Context(), "acme", key("a"), resolved, nil), "running")
			(<-first).requireOK(t, 1, interceptor.StatusExecuted)
			require.ErrorContains(t, s.once.Resolve(t.Context(), "acme", key("a"), resolved, nil), "known")
			s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
		})
	})

	t.Run("refuses_a_response_of_another_method_and_none", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			abandon(t, records, "Plain")
			s := newServer(t, records, &service{})
			require.ErrorContains(t, s.once.Resolve(t.Context(), "acme", key("a"), &testpb.Request{}, nil), "not oncerpc.internal.testpb.Response")
			require.ErrorContains(t, s.once.Resolve(t.Context(), "acme", key("a"), nil, nil), "neither")
			require.NoError(t, s.once.Resolve(t.Context(), "acme", key("a"), resolved, nil))
		})
	})

	t.Run("needs_a_store_that_can", func(t *testing.T) {
		s := newServer(t, struct{ store.Store }{new(storetest.Memory)}, &service{})
		require.ErrorContains(t, s.once.Resolve(t.Context(), "acme", key("a"), resolved, nil), "no power")
	})
}

func TestChildKey(t *testing.T) {
	t.Run("is_stable_over_reruns_and_different_for_every_name_and_call", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := new(storetest.Memory)
			seen := map[string][]string{}
			svc := &service{handle: func(ctx context.Context, r *testpb.Request, n int64) (*testpb.Response, error) {
				for _, name := range []string{"debit", "credit"} {
					seen[r.GetText()+"/"+name] = append(seen[r.GetText()+"/"+name], interceptor.ChildKey(ctx, name))
				}
				if n == 1 {
					return nil, interceptor.NoEffect(status.Error(codes.Aborted, "again"))
				}
				return &testpb.Response{}, nil
			}}
			s := newServer(t, records, svc)
			require.Error(t, s.call(t.Context(), "Plain", key("a"), "x").err)
			require.NoError(t, s.call(t.Context(), "Plain", key("a"), "x").err)
			require.NoError(t, s.call(t.Context(), "Plain", key("b"), "y").err)
			require.Equal(t, seen["x/debit"][0], seen["x/debit"][1])
			require.Equal(t, seen["x/credit"][0], seen["x/credit"][1])
			all := map[string]bool{}
			for _, keys := range seen {
				all[keys[0]] = true
				require.Len(t, keys[0], 32)
			}
			require.Len(t, all, 4)
		})
	})

	t.Run("goes_out_with_a_downstream_call_and_outside_of_one_is_fresh", func(t *testing.T) {
		downstream := newServer(t, new(storetest.Memory), &service{}).withClient(t, guardedClient())
		call := func(ctx context.Context) int64 {
			resp, err := testpb.NewTestServiceClient(downstream.conn).Plain(ctx, &testpb.Request{}, interceptor.Child("post"))
			require.NoError(t, err)
			return resp.GetNumber()
		}
		s := newServer(t, new(storetest.Memory), &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
			call(ctx)
			return nil, interceptor.NoEffect(status.Error(codes.Aborted, "again"))
		}})
		for range 3 {
			require.Error(t, s.call(t.Context(), "Plain", key("a"), "x").err)
		}
		require.EqualValues(t, 3, s.svc.runs.Load())
		require.EqualValues(t, 1, downstream.svc.runs.Load())
		require.EqualValues(t, 2, call(t.Context()))
		require.EqualValues(t, 3, call(t.Context()))
	})
}

// TestFileIsReopened: what a crash left open is settled by the first retry that comes the moment the file is open again.
func TestFileIsReopened(t *testing.T) {
	// crashed is a store on the file of a process that died while a handler ran.
	crashed := func(t *testing.T, method string) *boltstore.Store {
		t.Helper()
		path := filepath.Join(t.TempDir(), "records.db")
		records, err := boltstore.Open(path)
		require.NoError(t, err)
		enter, leave := make(chan struct{}), make(chan struct{})
		s := newServer(t, records, &service{handle: func(context.Context, *testpb.Request, int64) (*testpb.Response, error) {
			close(enter)
			<-leave
			return &testpb.Response{}, nil
		}})
		first := async(func() reply { return s.call(t.Context(), method, key("a"), "x") })
		<-enter
		after := filepath.Join(t.TempDir(), "after.db")
		require.NoError(t, records.View(func(tx *bbolt.Tx) error { return tx.CopyFile(after, 0o600) }))
		close(leave)
		require.NoError(t, (<-first).err)
		require.NoError(t, records.Close())
		reopened, err := boltstore.Open(after)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, reopened.Close()) })
		return reopened
	}

	t.Run("and_a_reconcile_function_is_asked_once_for_all_who_come", func(t *testing.T) {
		records := crashed(t, "Plain")
		var asked atomic.Int32
		s := newServer(t, records, &service{}, interceptor.WithReconcile(testService+"Plain",
			func(context.Context, store.Record, proto.Message) (proto.Message, error) {
				asked.Add(1)
				return &testpb.Response{Number: 7}, nil
			}))
		var replies []<-chan reply
		for range 20 {
			replies = append(replies, async(func() reply { return s.call(t.Context(), "Plain", key("a"), "x") }))
		}
		for _, r := range replies {
			require.EqualValues(t, 7, (<-r).resp.GetNumber())
		}
		require.EqualValues(t, 1, asked.Load())
		require.Zero(t, s.svc.runs.Load())
	})

	t.Run("and_it_is_listed_and_resolved_by_hand", func(t *testing.T) {
		records := crashed(t, "Plain")
		s := newServer(t, records, &service{})
		var found []store.Record
		for rec, err := range records.List(t.Context(), store.Query{State: store.Abandoned}) {
			require.NoError(t, err)
			found = append(found, rec)
		}
		require.Len(t, found, 1)
		require.Equal(t, s.once.ID("acme", key("a")), found[0].ID)
		s.call(t.Context(), "Plain", key("a"), "x").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_OUTCOME_UNKNOWN)
		require.NoError(t, s.once.Resolve(t.Context(), "acme", key("a"), &testpb.Response{Number: 9}, nil))
		s.call(t.Context(), "Plain", key("a"), "x").requireOK(t, 9, interceptor.StatusReplayed)
	})

	t.Run("and_an_in_transaction_method_runs_again", func(t *testing.T) {
		s := newServer(t, crashed(t, "InTransaction"), &service{})
		s.call(t.Context(), "InTransaction", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
	})
}
