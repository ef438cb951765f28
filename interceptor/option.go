package interceptor

import (
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// ServerOption sets something of a [Server].
type ServerOption interface{ applyServer(*serverOptions) }

// ClientOption sets something of a [Client].
type ClientOption interface{ applyClient(*clientOptions) }

// Option is both a [ServerOption] and a [ClientOption].
type Option interface {
	ServerOption
	ClientOption
}

// commonOptions is what servers and clients have to agree on.
type commonOptions struct {
	policies      map[string]*oncerpcv1.MethodPolicy // by full method
	defaultPolicy *oncerpcv1.MethodPolicy
	keyFormat     func(key string) error
	observers     []Observer
}

type commonOption func(*commonOptions)

func (f commonOption) applyServer(o *serverOptions) { f(&o.common) }
func (f commonOption) applyClient(o *clientOptions) { f(&o.common) }

type serverOption func(*serverOptions)

func (f serverOption) applyServer(o *serverOptions) { f(o) }

type clientOption func(*clientOptions)

func (f clientOption) applyClient(o *clientOptions) { f(o) }
