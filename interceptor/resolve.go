package interceptor

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/oncerpc/oncerpc/store"
)

// ID returns the name under which the store keeps the record of a scope and key.
func (s *Server) ID(scope, key string) store.ID {
	return identity{secret: s.opts.secret}.id(scope, key)
}

// Resolve says by hand how a call ended whose record is abandoned (retries get OUTCOME_UNKNOWN), or, once, one whose
// outcome is ambiguous. From then on retries get resp, or err if it is not nil; [NoEffect] of an error frees the key, so
// that the next call runs. A call whose response is too large to keep gets RESPONSE_NOT_RETAINED, as ever.
//
// It fails if there is no such record, if it is of another kind, if another Resolve came before, if resp is not of the
// method's response type, and if the store fails or has no power to resolve ([store.Resolver]). After a failure of the
// store the record may be resolved or not: call it again.
func (s *Server) Resolve(ctx context.Context, scope, key string, resp proto.Message, err error) error {
	resolver, ok := store.As[store.Resolver](s.store)
	if !ok {
		return errors.New("interceptor: resolve: this store has no power to resolve records")
	}
	id := s.ID(scope, key)
	rec, getErr := s.store.Get(ctx, id)
	if getErr != nil {
		return fmt.Errorf("interceptor: resolve: %w", getErr)
	}
	switch {
	case rec.State == store.Absent:
		return errors.New("interceptor: resolve: there is no record of this scope and key: the scope is what the server's Scope returned, and another secret than that of the call finds none")
	case rec.State == store.Running:
		return errors.New("interceptor: resolve: the call is running: its own outcome is on its way")
	case rec.State != store.Abandoned && !rec.Ambiguous:
		return fmt.Errorf("interceptor: resolve: the record is %v and its outcome is known", rec.State)
	}
	p, policyErr := s.policies.of(rec.Method)
	if policyErr != nil {
		return fmt.Errorf("interceptor: resolve: %w", policyErr)
	}
	if err == nil && isNil(resp) {
		return errors.New("interceptor: resolve: neither a response nor an error")
	}
	if _, stated := statedClass(err); !stated {
		err = Final(err)
	}
	var value any
	if err == nil {
		value = resp
	}
	o, outcomeErr := s.newOutcome(p, value, err, nil, nil)
	if outcomeErr != nil {
		return fmt.Errorf("interceptor: resolve: %w", outcomeErr)
	}
	e, outcomeErr := o.end(p)
	if outcomeErr != nil {
		return fmt.Errorf("interceptor: resolve: %w", outcomeErr)
	}
	if err := resolver.Resolve(ctx, id, rec.Token, newToken(), e); err != nil {
		return fmt.Errorf("interceptor: resolve: %w", err)
	}
	return nil
}
