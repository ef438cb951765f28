package interceptor_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

func openRecords(t testing.TB, path string) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

var effects = []byte("effects")

// effect writes one line into the file.
func effect(tx *bbolt.Tx, text string) error {
	b, err := tx.CreateBucketIfNotExists(effects)
	if err != nil {
		return err
	}
	n, err := b.NextSequence()
	if err != nil {
		return err
	}
	return b.Put([]byte{byte(n)}, []byte(text))
}

// countEffects counts the lines.
func countEffects(t testing.TB, s *boltstore.Store) (n int) {
	t.Helper()
	require.NoError(t, s.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(effects); b != nil {
			n = b.Stats().KeyN
		}
		return nil
	}))
	return n
}

// bothMethods runs a test with a method that is in_transaction and one that is not.
func bothMethods(t *testing.T, name string, f func(t *testing.T, method string, records *boltstore.Store)) {
	t.Helper()
	for _, method := range []string{"InTransaction", "Plain"} {
		t.Run(name+"/"+method, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f(t, method, openRecords(t, filepath.Join(t.TempDir(), "records.db")))
			})
		})
	}
}

func TestTransact(t *testing.T) {
	bothMethods(t, "committed_outcome_is_answered_and_replayed", func(t *testing.T, method string, records *boltstore.Store) {
		s := newServer(t, records, &service{handle: func(ctx context.Context, r *testpb.Request, n int64) (*testpb.Response, error) {
			return boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) {
				return &testpb.Response{Text: r.GetText(), Number: n}, effect(tx, r.GetText())
			})
		}})
		before := records.Stats().Commits
		s.call(t.Context(), method, key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
		commits := uint64(2)
		if method == "InTransaction" {
			commits = 1
		}
		require.Equal(t, before+commits, records.Stats().Commits)
		s.call(t.Context(), method, key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
		require.Equal(t, before+commits, records.Stats().Commits)
		s.call(t.Context(), method, "", "x").requireOK(t, 2, "") // without a key: a plain transaction
		require.Equal(t, 2, countEffects(t, records))
	})

	for name, after := range map[string]func(resp *testpb.Response) (*testpb.Response, error){
		"an_error":         func(*testpb.Response) (*testpb.Response, error) { return nil, status.Error(codes.Aborted, "late") },
		"no_effect":        func(*testpb.Response) (*testpb.Response, error) { return nil, interceptor.NoEffect(errors.New("late")) },
		"another_response": func(*testpb.Response) (*testpb.Response, error) { return &testpb.Response{Number: 99}, nil },
		"nothing":          func(*testpb.Response) (*testpb.Response, error) { return nil, nil },
		"the_response_changed": func(resp *testpb.Response) (*testpb.Response, error) {
			resp.Number = 99
			return resp, nil
		},
	} {
		bothMethods(t, "committed_outcome_wins_over_"+name, func(t *testing.T, method string, records *boltstore.Store) {
			s := newServer(t, records, &service{handle: func(ctx context.Context, r *testpb.Request, n int64) (*testpb.Response, error) {
				_ = grpc.SetHeader(ctx, metadata.Pairs("when", "before"))
				resp, err := boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) {
					return &testpb.Response{Number: n}, effect(tx, "x")
				})
				require.NoError(t, err)
				_ = grpc.SetHeader(ctx, metadata.Pairs("when", "after"))
				_ = grpc.SetTrailer(ctx, metadata.Pairs("tail", "after"))
				return after(resp)
			}})
			for _, st := range []interceptor.Status{interceptor.StatusExecuted, interceptor.StatusReplayed} {
				r := s.call(t.Context(), method, key("a"), "x")
				r.requireOK(t, 1, st)
				require.Equal(t, []string{"before"}, r.header.Get("when"))
				require.Empty(t, r.trailer.Get("tail"))
			}
			require.Equal(t, 1, countEffects(t, records))
		})
	}

	for name, end := range map[string]func(){"panics": func() { panic("late") }, "exits": runtime.Goexit} {
		bothMethods(t, "committed_outcome_is_replayed_when_the_handler_"+name+"_afterwards", func(t *testing.T, method string, records *boltstore.Store) {
			s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
				_, _ = boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) {
					return &testpb.Response{Number: n}, effect(tx, "x")
				})
				end()
				return nil, nil
			}})
			s.call(t.Context(), method, key("a"), "x")
			s.call(t.Context(), method, key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
			require.Equal(t, 1, countEffects(t, records))
		})
	}

	bothMethods(t, "nil_is_the_empty_message", func(t *testing.T, method string, records *boltstore.Store) {
		s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
			return boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) { return nil, effect(tx, "x") })
		}})
		s.call(t.Context(), method, key("a"), "x").requireOK(t, 0, interceptor.StatusExecuted)
		s.call(t.Context(), method, key("a"), "x").requireOK(t, 0, interceptor.StatusReplayed)
	})

	bothMethods(t, "commit_of_an_error_is_final_whatever_its_code", func(t *testing.T, method string, records *boltstore.Store) {
		s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
			return boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) {
				return nil, errors.Join(effect(tx, "declined"), boltstore.Commit(status.Error(codes.Aborted, "declined")))
			})
		}})
		for _, st := range []interceptor.Status{interceptor.StatusExecuted, interceptor.StatusReplayed} {
			r := s.call(t.Context(), method, key("a"), "x")
			require.Equal(t, codes.Aborted, status.Code(r.err))
			require.Equal(t, "declined", status.Convert(r.err).Message())
			require.Equal(t, st, r.status(t))
			require.Empty(t, r.trailer.Get(interceptor.MetadataOutcome))
		}
		require.Equal(t, 1, countEffects(t, records))
	})

	// What a closure's failure comes to: rolled back, and then as any other error of the handler.
	for name, row := range map[string]struct {
		closure  func(tx *bbolt.Tx) (*testpb.Response, error)
		released bool // under in_transaction; else it is stored
		exits    bool
	}{
		"final_code":  {closure: func(*bbolt.Tx) (*testpb.Response, error) { return nil, status.Error(codes.NotFound, "none") }},
		"final_mark":  {closure: func(*bbolt.Tx) (*testpb.Response, error) { return nil, interceptor.Final(errors.New("no")) }},
		"plain_error": {closure: func(*bbolt.Tx) (*testpb.Response, error) { return nil, errors.New("boom") }, released: true},
		"unavailable": {closure: func(*bbolt.Tx) (*testpb.Response, error) { return nil, status.Error(codes.Unavailable, "x") }, released: true},
		"panics":      {closure: func(*bbolt.Tx) (*testpb.Response, error) { panic("boom") }, released: true},
		"commits":     {closure: func(tx *bbolt.Tx) (*testpb.Response, error) { return nil, tx.Commit() }, released: true},
		"rolls_back":  {closure: func(tx *bbolt.Tx) (*testpb.Response, error) { return nil, tx.Rollback() }, released: true},
		"exits": {closure: func(*bbolt.Tx) (*testpb.Response, error) {
			runtime.Goexit()
			return nil, nil
		}, released: true},
	} {
		bothMethods(t, "closure_that_fails_is_rolled_back/"+name, func(t *testing.T, method string, records *boltstore.Store) {
			s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
				return boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) {
					if err := effect(tx, "x"); err != nil || n > 1 {
						return &testpb.Response{Number: n}, err
					}
					return row.closure(tx)
				})
			}})
			require.Error(t, s.call(t.Context(), method, key("a"), "x").err)
			require.Zero(t, countEffects(t, records))
			r := s.call(t.Context(), method, key("a"), "x")
			if method == "InTransaction" && row.released {
				r.requireOK(t, 2, interceptor.StatusExecuted)
				require.Equal(t, 1, countEffects(t, records))
				return
			}
			require.Error(t, r.err)
			require.Equal(t, interceptor.StatusReplayed, r.status(t))
			require.Zero(t, countEffects(t, records))
		})
	}

	refused := map[string]func(t *testing.T, ctx context.Context, records *boltstore.Store) error{
		"wrong_message_type": func(_ *testing.T, ctx context.Context, records *boltstore.Store) error {
			_, err := boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*emptypb.Empty, error) {
				return &emptypb.Empty{}, effect(tx, "wrong")
			})
			return err
		},
		"no_message": func(_ *testing.T, ctx context.Context, records *boltstore.Store) error {
			_, err := boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (string, error) { return "text", effect(tx, "wrong") })
			return err
		},
		"message_that_cannot_be_marshalled": func(_ *testing.T, ctx context.Context, records *boltstore.Store) error {
			_, err := boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) {
				return &testpb.Response{Text: "\xff"}, effect(tx, "wrong")
			})
			return err
		},
		"another_store": func(t *testing.T, ctx context.Context, _ *boltstore.Store) error {
			other := openRecords(t, filepath.Join(t.TempDir(), "other.db"))
			_, err := boltstore.Transact(ctx, other, func(tx *bbolt.Tx) (*testpb.Response, error) { return nil, effect(tx, "wrong") })
			require.Zero(t, countEffects(t, other))
			return err
		},
	}
	for name, try := range refused {
		bothMethods(t, "is_refused_and_another_may_follow/"+name, func(t *testing.T, method string, records *boltstore.Store) {
			s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
				require.ErrorContains(t, try(t, ctx, records), "boltstore: transact: ")
				return boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) {
					return &testpb.Response{Number: n}, effect(tx, "right")
				})
			}})
			s.call(t.Context(), method, key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
			require.Equal(t, 1, countEffects(t, records))
		})
	}

	bothMethods(t, "called_twice_is_refused", func(t *testing.T, method string, records *boltstore.Store) {
		s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
			do := func(number int64) (*testpb.Response, error) {
				return boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) {
					return &testpb.Response{Number: number}, effect(tx, "x")
				})
			}
			_, err := do(n)
			require.NoError(t, err)
			return do(n + 1)
		}})
		s.call(t.Context(), method, key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
		require.Equal(t, 1, countEffects(t, records))
	})

	bothMethods(t, "after_the_handler_has_returned_is_refused", func(t *testing.T, method string, records *boltstore.Store) {
		late := make(chan context.Context, 1)
		s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
			late <- ctx
			return &testpb.Response{Number: n}, nil
		}})
		s.call(t.Context(), method, key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
		_, err := boltstore.Transact(context.WithoutCancel(<-late), records, func(*bbolt.Tx) (*testpb.Response, error) { panic("runs") })
		require.ErrorContains(t, err, "has returned")
	})

	bothMethods(t, "closure_past_the_timeout_commits", func(t *testing.T, method string, records *boltstore.Store) {
		s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
			return boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) {
				time.Sleep(5 * time.Minute)
				require.Error(t, ctx.Err())
				return &testpb.Response{Number: n}, effect(tx, "x")
			})
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Equal(t, codes.DeadlineExceeded, status.Code(s.call(ctx, method, key("a"), "x").err))
		time.Sleep(10 * time.Minute)
		s.call(t.Context(), method, key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
		require.Equal(t, 1, countEffects(t, records))
	})

	bothMethods(t, "past_the_timeout_none_begins", func(t *testing.T, method string, records *boltstore.Store) {
		s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, _ int64) (*testpb.Response, error) {
			<-ctx.Done()
			return boltstore.Transact(ctx, records, func(*bbolt.Tx) (*testpb.Response, error) { panic("runs") })
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Error(t, s.call(ctx, method, key("a"), "x").err)
		require.NoError(t, s.once.Drain(t.Context()))
		require.Zero(t, countEffects(t, records))
	})

	bothMethods(t, "without_its_claim_rolls_back_and_is_superseded", func(t *testing.T, method string, records *boltstore.Store) {
		s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
			for rec, err := range records.List(ctx, store.Query{State: store.Running}) {
				require.NoError(t, err)
				require.NoError(t, records.Finish(ctx, rec.ID, rec.Token, store.End{State: store.Released, Retention: time.Hour}))
				_, err = records.Begin(ctx, store.Claim{ID: rec.ID, Token: store.Token{1}, Fingerprint: rec.Fingerprint})
				require.NoError(t, err)
				defer func() {
					require.NoError(t, records.Finish(context.Background(), rec.ID, store.Token{1}, store.End{State: store.Released}))
				}()
			}
			resp, err := boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) {
				return &testpb.Response{Number: n}, effect(tx, "x")
			})
			require.ErrorIs(t, err, store.ErrLost)
			return resp, err
		}})
		s.call(t.Context(), method, key("a"), "x").requireReason(t, codes.Aborted, oncerpcv1.Reason_SUPERSEDED)
		require.Zero(t, countEffects(t, records))
	})

	t.Run("in_transaction_without_one_is_stored_at_the_end", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			records := openRecords(t, filepath.Join(t.TempDir(), "records.db"))
			s := newServer(t, records, &service{})
			s.call(t.Context(), "InTransaction", key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
			s.call(t.Context(), "InTransaction", key("a"), "x").requireOK(t, 1, interceptor.StatusReplayed)
		})
	})

	bothMethods(t, "response_too_large_to_keep_commits", func(t *testing.T, method string, records *boltstore.Store) {
		s := newServer(t, records, &service{handle: func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
			return boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) {
				return &testpb.Response{Number: n, Text: string(make([]byte, 5<<20))}, effect(tx, "x")
			})
		}})
		s.call(t.Context(), method, key("a"), "x").requireOK(t, 1, interceptor.StatusExecuted)
		s.call(t.Context(), method, key("a"), "x").requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_RESPONSE_NOT_RETAINED)
		require.Equal(t, 1, countEffects(t, records))
	})
}

// failMeta has every commit fail as it writes the page that makes it visible, written or not.
func failMeta(db *bbolt.DB, written bool) {
	ops := reflect.ValueOf(db).Elem().FieldByName("ops").FieldByName("writeAt")
	at := (*func(b []byte, off int64) (int, error))(unsafe.Pointer(ops.UnsafeAddr()))
	was := *at
	*at = func(b []byte, off int64) (int, error) {
		if off > int64(db.Info().PageSize) {
			return was(b, off)
		}
		if written {
			_, _ = was(b, off)
		}
		return 0, &fs.PathError{Op: "write", Err: syscall.EIO}
	}
}

func TestTransactCommitFails(t *testing.T) {
	for _, written := range []bool{false, true} {
		for _, method := range []string{"InTransaction", "Plain"} {
			t.Run(method, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "records.db")
				records := openRecords(t, path)
				closures := 0
				svc := &service{}
				svc.handle = func(ctx context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
					return boltstore.Transact(ctx, records, func(tx *bbolt.Tx) (*testpb.Response, error) {
						closures++
						if closures == 1 {
							failMeta(tx.DB(), written)
						}
						return &testpb.Response{Number: n}, effect(tx, "x")
					})
				}
				s := newServer(t, records, svc)
				for range 3 {
					s.call(t.Context(), method, key("a"), "x").requireReason(t, codes.Unavailable, oncerpcv1.Reason_STORE_UNAVAILABLE)
				}
				require.Equal(t, 1, closures)
				require.EqualValues(t, 1, svc.runs.Load())
				require.ErrorIs(t, records.View(func(*bbolt.Tx) error { return nil }), store.ErrUnusable)
				b, err := os.ReadFile(path)
				require.NoError(t, err)
				copied := filepath.Join(t.TempDir(), "copy.db")
				require.NoError(t, os.WriteFile(copied, b, 0o600))
				require.NoError(t, s.once.Drain(t.Context()))
				require.NoError(t, records.Close(), "no run is under way")

				for _, path := range []string{path, copied} {
					records = openRecords(t, path)
					s := newServer(t, records, svc)
					r := s.call(t.Context(), method, key("a"), "x")
					switch {
					case written:
						r.requireOK(t, 1, interceptor.StatusReplayed)
						require.Equal(t, 1, countEffects(t, records))
					case method == "Plain":
						r.requireReason(t, codes.FailedPrecondition, oncerpcv1.Reason_OUTCOME_UNKNOWN)
						require.Zero(t, countEffects(t, records))
					default:
						require.NoError(t, r.err, "there was no trace of it: it runs")
						require.Equal(t, 1, countEffects(t, records))
					}
				}
			})
		}
	}
}
