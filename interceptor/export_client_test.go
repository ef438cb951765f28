package interceptor

// KnownConns counts the connections of which c keeps state.
func (c *Client) KnownConns() (n int) {
	c.conns.byConn.Range(func(_, _ any) bool { n++; return true })
	return n
}
