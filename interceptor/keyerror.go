package interceptor

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// KeyFromError returns the key of the call that a [Client] ended with err, to send the call again with [Key] later, also
// from another process. It reports false if err is nil, or comes from a call that carried no key. The text of err does
// not contain the key.
func KeyFromError(err error) (string, bool) {
	e, ok := errors.AsType[interface {
		error
		idempotencyKey() string
	}](err)
	if !ok {
		return "", false
	}
	return e.idempotencyKey(), true
}

// keyedError adds a call's key to its error and changes nothing else.
type keyedError struct {
	err error
	key func() string // a func, because loggers print the fields of a struct
}

// keyedStatus is a keyedError whose err is a status. It answers with that very status, because gRPC makes the message
// of a wrapped one from the text around it.
type keyedStatus struct{ keyedError }

func withErrorKey(err error, key string) error {
	e := keyedError{err: err, key: func() string { return key }}
	if _, ok := status.FromError(err); ok {
		return &keyedStatus{e}
	}
	return &e
}

func (e *keyedError) Error() string          { return e.err.Error() }
func (e *keyedError) Unwrap() error          { return e.err }
func (e *keyedError) idempotencyKey() string { return e.key() }

func (e *keyedStatus) GRPCStatus() *status.Status {
	st, _ := status.FromError(e.err)
	return st
}

// cancelledError is the end of a call whose caller left while the client waited to send it again.
type cancelledError struct{ last error }

func (e *cancelledError) GRPCStatus() *status.Status {
	return status.New(codes.Canceled, "oncerpc: cancelled while waiting to retry: "+status.Convert(e.last).Message())
}

func (e *cancelledError) Error() string   { return e.GRPCStatus().String() }
func (e *cancelledError) Unwrap() []error { return []error{context.Canceled, e.last} }
