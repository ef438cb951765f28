package interceptor

import "context"

// WithClientEvents makes the client tell f what it did: "retry", "unguarded" or "ignored", and the method.
func WithClientEvents(f func(kind, method string)) ClientOption {
	return WithObserver(observerFunc(func(e Event) { f(string(e.Kind), e.Method) }))
}

type observerFunc func(Event)

func (f observerFunc) Observe(_ context.Context, e Event) { f(e) }

// KnownConns counts the connections of which c keeps state.
func (c *Client) KnownConns() (n int) {
	c.conns.byConn.Range(func(_, _ any) bool { n++; return true })
	return n
}
