package interceptor_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/storetest"
)

// events collects what an observer is told.
type events struct {
	mu  sync.Mutex
	all []interceptor.Event
}

func (e *events) Observe(_ context.Context, event interceptor.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

// take returns the kinds so far, and forgets them.
func (e *events) take() []interceptor.EventKind {
	e.mu.Lock()
	defer e.mu.Unlock()
	var kinds []interceptor.EventKind
	for _, event := range e.all {
		kinds = append(kinds, event.Kind)
	}
	e.all = nil
	return kinds
}

func kinds(k ...interceptor.EventKind) []interceptor.EventKind { return k }

func TestObserver(t *testing.T) {
	t.Run("is_told_of_every_answer_and_of_what_somebody_should_look_at", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			seen := new(events)
			records := &faulty{Store: new(storetest.Memory)}
			s := newServer(t, records, &service{handle: func(_ context.Context, r *testpb.Request, n int64) (*testpb.Response, error) {
				switch r.GetText() {
				case "ambiguous":
					return nil, status.Error(codes.Unavailable, "gone")
				case "released":
					return nil, interceptor.NoEffect(errors.New("busy"))
				case "panic":
					panic("boom")
				case "slow":
					time.Sleep(8 * time.Second)
				}
				return &testpb.Response{Number: n}, nil
			}}, interceptor.WithObserver(seen))
			ctx := t.Context()

			s.call(ctx, "Plain", key("a"), "x")
			require.Equal(t, kinds(interceptor.EventExecuted), seen.take())
			s.call(ctx, "Plain", key("a"), "x")
			e := seen.all[0]
			require.Equal(t, kinds(interceptor.EventReplayed), seen.take())
			require.Equal(t, testService+"Plain", e.Method)
			require.Len(t, e.ID, 8)
			s.call(ctx, "Plain", key("a"), "y")
			require.Equal(t, kinds(interceptor.EventReused), seen.take())
			s.call(ctx, "Plain", "", "x")
			require.Empty(t, seen.take())
			s.call(ctx, "Read", key("a"), "x")
			require.Equal(t, kinds(interceptor.EventIgnored), seen.take())
			s.call(ctx, "Required", "", "x")
			require.Equal(t, kinds(interceptor.EventKeyMissing), seen.take())
			s.call(ctx, "Plain", "short", "x")
			require.Equal(t, kinds(interceptor.EventKeyInvalid), seen.take())
			s.call(ctx, "Plain", key("b"), "ambiguous")
			require.NotEmpty(t, seen.all[0].Hint, "the event names the remedy")
			require.Equal(t, kinds(interceptor.EventAmbiguous, interceptor.EventExecuted), seen.take())
			s.call(ctx, "Plain", key("c"), "released")
			require.Equal(t, kinds(interceptor.EventReleased), seen.take())
			s.call(ctx, "Plain", key("d"), "panic")
			require.Contains(t, string(seen.all[0].Stack), "observer_test.go")
			require.Equal(t, kinds(interceptor.EventPanic, interceptor.EventAmbiguous), seen.take())
			s.call(ctx, "InTransaction", key("e"), "x")
			require.Equal(t, kinds(interceptor.EventOutsideTransaction, interceptor.EventExecuted), seen.take())

			first := async(func() reply { return s.call(ctx, "Plain", key("f"), "slow") })
			settle()
			s.call(ctx, "Plain", key("f"), "slow")
			require.Equal(t, kinds(interceptor.EventInProgress), seen.take())
			joined := async(func() reply { return s.call(ctx, "Plain", key("f"), "slow") })
			<-first
			<-joined
			require.ElementsMatch(t, kinds(interceptor.EventExecuted, interceptor.EventJoined), seen.take())

			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			s.call(short, "Plain", key("g"), "slow")
			settle()
			require.Equal(t, kinds(interceptor.EventLeft), seen.take())
			time.Sleep(10 * time.Second)
			require.Empty(t, seen.take())

			records.set(failing(errDisk), nil)
			s.call(ctx, "Plain", key("h"), "x")
			require.ErrorIs(t, seen.all[0].Err, errDisk)
			require.Equal(t, kinds(interceptor.EventStoreError, interceptor.EventStoreUnavailable), seen.take())
			time.Sleep(time.Second)
			seen.take()
			records.set(nil, failing(store.ErrUnusable))
			s.call(ctx, "Plain", key("i"), "x")
			require.Equal(t, kinds(interceptor.EventStoreError, interceptor.EventUnrecorded), seen.take())

			require.NoError(t, s.once.Drain(ctx))
			s.call(ctx, "Plain", key("j"), "x")
			require.Equal(t, kinds(interceptor.EventDraining), seen.take())
		})
	})

	t.Run("knows_every_reason", func(t *testing.T) {
		var log bytes.Buffer
		o := interceptor.SlogObserver(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		for _, k := range []interceptor.EventKind{
			interceptor.EventExecuted, interceptor.EventReused, interceptor.EventAmbiguous, interceptor.EventStoreError, interceptor.EventRetry,
		} {
			o.Observe(t.Context(), interceptor.Event{Kind: k, Method: "/a.B/C", ID: "01234567", Attempt: 2, Err: errDisk, Hint: "look", Stack: []byte("at")})
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		require.Len(t, lines, 5)
		for i, level := range []string{"DEBUG", "INFO", "WARN", "ERROR", "INFO"} {
			require.Contains(t, lines[i], "level="+level)
			require.Contains(t, lines[i], "method=/a.B/C")
			require.Contains(t, lines[i], "id=01234567")
		}
		require.Panics(t, func() { interceptor.WithObserver(nil) })
	})

	t.Run("is_told_of_a_clients_retries", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			seen := new(events)
			s := newServer(t, new(storetest.Memory), &service{handle: func(_ context.Context, _ *testpb.Request, n int64) (*testpb.Response, error) {
				if n == 1 {
					return nil, interceptor.NoEffect(status.Error(codes.Aborted, "busy"))
				}
				return &testpb.Response{}, nil
			}}).withClient(t, guardedClient(interceptor.WithObserver(seen)))
			require.NoError(t, s.call(t.Context(), "Guarded", key("a"), "x").err)
			e := seen.all[0]
			require.Equal(t, kinds(interceptor.EventRetry), seen.take())
			require.Equal(t, codes.Aborted, e.Code)
			require.Equal(t, 1, e.Attempt)
		})
	})
}

// TestNothingLeaks sends a canary as key, scope, request, response, error and panic down every path, and looks for it
// in every event, log line and error text that oncerpc makes.
func TestNothingLeaks(t *testing.T) {
	const canary = "CANARY-0123456789-CANARY"
	bubble(t, func(t *testing.T) {
		var log bytes.Buffer
		seen := new(events)
		records := &faulty{Store: new(storetest.Memory)}
		s := newServerScoped(t, records, func(context.Context) (string, error) { return canary, nil }, &service{
			handle: func(ctx context.Context, r *testpb.Request, _ int64) (*testpb.Response, error) {
				_ = grpc.SetTrailer(ctx, metadata.Pairs("canary", canary))
				switch r.GetLabels()["do"] {
				case "error":
					return nil, status.Error(codes.Unavailable, canary)
				case "plain":
					return nil, errors.New(canary)
				case "released":
					return nil, interceptor.NoEffect(errors.New(canary))
				case "panic":
					panic(canary)
				case "utf8":
					return &testpb.Response{Text: canary + "\xff"}, nil
				case "large":
					return &testpb.Response{Blob: bytes.Repeat([]byte(canary), 200_000)}, nil
				case "slow":
					time.Sleep(8 * time.Second)
				}
				return &testpb.Response{Text: canary}, nil
			},
		}, interceptor.WithObserver(seen),
			interceptor.WithObserver(interceptor.SlogObserver(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))),
			interceptor.WithReconcile(testService+"Guarded", func(context.Context, store.Record, proto.Message) (proto.Message, error) {
				return nil, errors.New(canary)
			}))
		own := 0
		call := func(method, suffix, do string) {
			ctx := metadata.AppendToOutgoingContext(t.Context(), interceptor.MetadataKey, canary+suffix)
			r := s.invoke(ctx, method, &testpb.Request{Text: canary, Labels: map[string]string{"do": do}})
			if interceptor.ReasonOf(r.err) != oncerpcv1.Reason_REASON_UNSPECIFIED {
				own++
				require.NotContains(t, status.Convert(r.err).Proto().String(), canary)
			}
		}
		for i, do := range []string{"", "error", "plain", "released", "panic", "utf8", "large"} {
			for range 2 {
				call("Plain", string(rune('a'+i)), do)
			}
			call("Guarded", string(rune('a'+i)), do)
		}
		for _, bad := range []string{",", " x", `"`, `\`, strings.Repeat(canary, 20)} {
			call("Plain", bad, "")
		}
		call("Read", "r", "")
		go call("Impatient", "s", "slow")
		settle()
		call("Impatient", "s", "slow")
		records.set(failing(store.ErrUnreadable), nil)
		call("Plain", "t", "")
		records.set(nil, failing(store.ErrUnusable))
		call("Guarded", "u", "")
		time.Sleep(time.Minute)
		records.set(nil, nil)
		call("Guarded", "u", "") // asks the reconcile function
		require.NoError(t, s.once.Drain(t.Context()))
		call("Plain", "v", "")

		require.Greater(t, own, 10)
		require.NotEmpty(t, log.String())
		require.NotContains(t, log.String(), canary)
		seenKinds := map[interceptor.EventKind]bool{}
		for _, e := range seen.all {
			seenKinds[e.Kind] = true
			text := strings.Join([]string{string(e.Kind), e.Method, e.ID, e.Hint, string(e.Stack)}, " ")
			if e.Err != nil {
				text += e.Err.Error()
			}
			require.NotContains(t, text, canary)
		}
		for _, k := range kinds(interceptor.EventExecuted, interceptor.EventReplayed, interceptor.EventReleased, interceptor.EventPanic,
			interceptor.EventAmbiguous, interceptor.EventReused, interceptor.EventKeyInvalid, interceptor.EventNotRetained,
			interceptor.EventUnreadable, interceptor.EventUnrecorded, interceptor.EventUnknown, interceptor.EventDraining, interceptor.EventInProgress) {
			require.True(t, seenKinds[k], "the test did not go down the path of %s", k)
		}
	})
}
