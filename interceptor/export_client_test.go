package interceptor

import "context"

// WithClientEvents makes the client tell f what it did: "retry", "unguarded" or "ignored", and the method.
func WithClientEvents(f func(kind, method string)) ClientOption {
	return clientOption(func(o *clientOptions) {
		o.observe = func(_ context.Context, e clientEvent) { f(e.kind, e.method) }
	})
}

// KnownConns counts the connections of which c keeps state.
func (c *Client) KnownConns() (n int) {
	c.conns.byConn.Range(func(_, _ any) bool { n++; return true })
	return n
}
