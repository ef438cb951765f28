package interceptor

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// class is what becomes of an outcome.
type class uint8

const (
	classFinal class = iota + 1
	classAmbiguous
	classReleased
)

// marked is an error whose class the handler has stated.
type marked struct {
	err   error
	class class
}

func (e *marked) Error() string { return e.err.Error() }
func (e *marked) Unwrap() error { return e.err }

// GRPCStatus is the status that gRPC would make of the error without the mark.
func (e *marked) GRPCStatus() *status.Status { return statusOf(e.err) }

// Final says that the outcome is known and err is it: it is stored and replayed, whatever its code. It wins over
// [NoEffect]. errors.Is, errors.As and the status of err are kept. Final(nil) is nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &marked{err: err, class: classFinal}
}

// NoEffect says that the handler had no effect: the key is free again, and the next call with it and the same request
// runs. errors.Is, errors.As and the status of err are kept. NoEffect(nil) is nil.
func NoEffect(err error) error {
	if err == nil {
		return nil
	}
	return &marked{err: err, class: classReleased}
}

// statedClass finds the marks of [Final] and [NoEffect] in err's tree; Final wins.
func statedClass(err error) (c class, stated bool) {
	switch e := err.(type) { //nolint:errorlint // the tree is walked here, since both marks may be in it
	case nil:
		return 0, false
	case *marked:
		if e.class == classFinal {
			return classFinal, true
		}
		c, stated = classReleased, true
	}
	switch e := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		if inner, ok := statedClass(e.Unwrap()); ok && (!stated || inner == classFinal) {
			return inner, true
		}
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if inner, ok := statedClass(err); ok && (!stated || inner == classFinal) {
				c, stated = inner, true
			}
		}
	}
	return c, stated
}

// codeClass is what a code alone tells. A code that says "it may have happened" is ambiguous: gRPC itself answers
// UNAVAILABLE for a server that died after its effect, and handlers pass on what their downstreams answered.
func codeClass(code codes.Code) class {
	switch code {
	case codes.OK, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.Unauthenticated, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return classFinal
	}
	return classAmbiguous
}

// errNoReturn is what a run ended with whose handler did not return: it panicked or called runtime.Goexit.
type errNoReturn struct{ what string }

func (e errNoReturn) Error() string { return e.what }
func (e errNoReturn) GRPCStatus() *status.Status {
	return status.New(codes.Internal, "oncerpc: "+e.what)
}

// classify decides what becomes of a handler's error. The first rule that applies decides: a lost mark costs a retry,
// never a second effect.
func (p *policy) classify(err error) class {
	if err == nil {
		return classFinal
	}
	if c, stated := statedClass(err); stated {
		return c
	}
	var noReturn errNoReturn
	returned := !errors.As(err, &noReturn)
	st, isStatus := status.FromError(err)
	isStatus = isStatus && returned && st.Code() != codes.OK
	if c, ok := p.classes[st.Code()]; ok && isStatus {
		return c
	}
	byCode := classAmbiguous
	if isStatus {
		byCode = codeClass(st.Code())
		switch ReasonOf(err) {
		case oncerpcv1.Reason_OUTCOME_UNKNOWN, oncerpcv1.Reason_RECORD_UNREADABLE, oncerpcv1.Reason_RESPONSE_NOT_RETAINED:
			// A downstream that is guarded itself says that its effect may have happened, or has.
			byCode = classAmbiguous
		}
	}
	if p.inTransaction && byCode != classFinal {
		return classReleased
	}
	return byCode
}
