package interceptor

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
)

// EventKind says what happened.
type EventKind string

// What happens on a server. Every call with a key that the server answers is one event that tells how: one of the
// first group, or, for an answer that oncerpc made itself, its reason in lower case ("reused" and "unknown" for
// KEY_REUSED and OUTCOME_UNKNOWN). The events of the second group come besides.
const (
	EventExecuted   EventKind = "executed"   // the handler ran, and its outcome is recorded
	EventReplayed   EventKind = "replayed"   // a recorded outcome was given again
	EventJoined     EventKind = "joined"     // a running call's outcome was given
	EventReleased   EventKind = "released"   // a run ended and nothing happened
	EventIgnored    EventKind = "ignored"    // the method is not guarded
	EventUnrecorded EventKind = "unrecorded" // an outcome was given that could not be recorded yet
	EventLeft       EventKind = "left"       // the caller left before there was an answer

	EventKeyMissing         EventKind = "key_missing"
	EventKeyInvalid         EventKind = "key_invalid"
	EventScopeMissing       EventKind = "scope_missing"
	EventReused             EventKind = "reused"
	EventUnknown            EventKind = "unknown"
	EventNotRetained        EventKind = "response_not_retained"
	EventUnreadable         EventKind = "record_unreadable"
	EventStreamUnsupported  EventKind = "stream_unsupported"
	EventInProgress         EventKind = "in_progress"
	EventSuperseded         EventKind = "superseded"
	EventStoreUnavailable   EventKind = "store_unavailable"
	EventDraining           EventKind = "draining"
	EventOverloaded         EventKind = "overloaded"
	EventAmbiguous          EventKind = "ambiguous"           // a run ended so that nobody knows whether its effect happened
	EventPanic              EventKind = "panic"               // a handler panicked
	EventStoreError         EventKind = "store_error"         // the store failed; Err says how
	EventOutsideTransaction EventKind = "outside_transaction" // an in_transaction method ended OK and committed nothing
)

// What happens on a client.
const (
	EventRetry     EventKind = "retry"     // the call is sent again after Duration
	EventUnguarded EventKind = "unguarded" // the server does not guard the method: it is not retried any more
)

// Event is what an [Observer] is told. It holds no key, no scope and nothing of a request, a response or an error that
// a handler returned. Fields may be added.
type Event struct {
	Kind   EventKind
	Method string // full method
	// ID is the beginning of the record's ID, 8 hex digits; empty where there is none.
	ID string
	// Code is the status code of the answer, or of the attempt that is retried.
	Code codes.Code
	// Attempt is the number of the run on a server (0 if the handler did not run for this call), and of the attempt that
	// ended on a client.
	Attempt int
	// Duration is the time from the call's arrival to its answer on a server, and the wait before the next attempt on a
	// client.
	Duration time.Duration
	// Err is the store's error, with EventStoreError only.
	Err error
	// Stack is the handler's, with EventPanic only: what it panicked with may hold anything, and is not here.
	Stack []byte
	// Hint says what to do about it, for people.
	Hint string
}

// Observer is told what servers and clients do. Observe is called synchronously, from many goroutines, and must not
// block.
type Observer interface {
	// Observe is told of one event.
	Observe(ctx context.Context, e Event)
}

// WithObserver adds an observer. The default is none. It panics if o is nil.
func WithObserver(o Observer) Option {
	if o == nil {
		panic("interceptor: WithObserver: no observer")
	}
	return commonOption(func(c *commonOptions) { c.observers = append(c.observers, o) })
}

func (c *commonOptions) observe(ctx context.Context, e Event) {
	for _, o := range c.observers {
		o.Observe(ctx, e)
	}
}

// refusalKinds are those that are not their reason's name in lower case.
var refusalKinds = map[oncerpcv1.Reason]EventKind{
	oncerpcv1.Reason_KEY_REUSED:      EventReused,
	oncerpcv1.Reason_OUTCOME_UNKNOWN: EventUnknown,
}

func kindOf(reason oncerpcv1.Reason) EventKind {
	if k, ok := refusalKinds[reason]; ok {
		return k
	}
	return EventKind(strings.ToLower(reason.String()))
}

// Hints, for people who read events.
const (
	hintAmbiguous  = "if the handler knows, let it return Final(err) or NoEffect(err), or give the code a class in the method's outcomes"
	hintUnguarded  = "add the server interceptor, or a policy for the method"
	hintUnknown    = "find out whether the call took effect, then call Server.Resolve; WithReconcile can do it"
	hintUnreadable = "it was written by another version, or with another fingerprint or response type: deploy that one again, or resolve the record"
	hintOutside    = "let the handler write its effects in the store's transaction, or drop in_transaction from its policy"
	hintStore      = "a store that is latched has to be opened again"
)

func hintOf(reason oncerpcv1.Reason) string {
	switch reason {
	case oncerpcv1.Reason_OUTCOME_UNKNOWN:
		return hintUnknown
	case oncerpcv1.Reason_RECORD_UNREADABLE:
		return hintUnreadable
	}
	return ""
}

// refused tells of an answer that oncerpc made itself.
func (s *Server) refused(ctx context.Context, method string, r refusal, began time.Time) {
	e := Event{Kind: kindOf(r.reason), Method: method, Code: codeOf[r.reason], Duration: time.Since(began), Hint: hintOf(r.reason)}
	if r.id != nil {
		e.ID = prefix(*r.id)
	}
	s.opts.common.observe(ctx, e)
}

// answered tells of a call that got an outcome.
func (c *call) answered(st Status, code codes.Code, attempt int) {
	c.s.opts.common.observe(c.ctx, Event{
		Kind: EventKind(st), Method: c.p.method, ID: prefix(c.id), Code: code, Attempt: attempt, Duration: time.Since(c.began),
	})
}

// left tells of a caller that did not wait for an answer.
func (c *call) left(attempt int) {
	c.s.opts.common.observe(c.ctx, Event{
		Kind: EventLeft, Method: c.p.method, ID: prefix(c.id), Code: status.FromContextError(c.ctx.Err()).Code(), Attempt: attempt, Duration: time.Since(c.began),
	})
}

// tell tells of a run.
func (r *run) tell(kind EventKind, code codes.Code, hint string) {
	e := Event{
		Kind: kind, Method: r.p.method, ID: prefix(r.id), Code: code, Attempt: r.attempt, Duration: time.Since(r.began), Hint: hint,
	}
	if kind == EventPanic {
		e.Stack = r.panic.Stack
	}
	r.s.opts.common.observe(r.ctx, e)
}

// storeFailed tells of an error of the store, unless it is one of those that say something about the record.
func (s *Server) storeFailed(ctx context.Context, method string, id store.ID, err error) {
	s.opts.common.observe(ctx, Event{
		Kind: EventStoreError, Method: method, ID: prefix(id), Code: codes.Unavailable, Err: err, Hint: hintStore,
	})
}

// SlogObserver logs events: what went as it should at level Debug, what a caller did wrong or has to repeat at Info,
// what somebody should look at at Warn, and failures of the store and of handlers at Error. A nil logger is
// slog.Default().
func SlogObserver(logger *slog.Logger) Observer {
	if logger == nil {
		logger = slog.Default()
	}
	return slogObserver{logger}
}

type slogObserver struct{ logger *slog.Logger }

// Observe implements [Observer].
func (o slogObserver) Observe(ctx context.Context, e Event) {
	level := levelOf(e.Kind)
	if !o.logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("event", string(e.Kind)),
		slog.String("method", e.Method),
		slog.String("code", e.Code.String()),
		slog.Duration("duration", e.Duration),
	}
	if e.ID != "" {
		attrs = append(attrs, slog.String("id", e.ID))
	}
	if e.Attempt > 0 {
		attrs = append(attrs, slog.Int("attempt", e.Attempt))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", e.Err.Error()))
	}
	if e.Stack != nil {
		attrs = append(attrs, slog.String("stack", string(e.Stack)))
	}
	if e.Hint != "" {
		attrs = append(attrs, slog.String("hint", e.Hint))
	}
	o.logger.LogAttrs(ctx, level, "oncerpc", attrs...)
}

func levelOf(kind EventKind) slog.Level {
	switch kind {
	case EventExecuted, EventReplayed, EventJoined, EventIgnored, EventInProgress:
		return slog.LevelDebug
	case EventAmbiguous, EventUnrecorded, EventUnknown, EventSuperseded, EventOverloaded, EventUnguarded,
		EventOutsideTransaction, EventScopeMissing, EventNotRetained:
		return slog.LevelWarn
	case EventPanic, EventStoreError, EventStoreUnavailable, EventUnreadable:
		return slog.LevelError
	}
	return slog.LevelInfo
}
