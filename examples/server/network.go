package main

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/peer"
)

// network is a TCP listener that can break a caller's connection.
type network struct {
	net.Listener

	mu    sync.Mutex
	conns map[string]net.Conn // by the client's address
}

func listen(addr string) (*network, error) {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &network{Listener: lis, conns: make(map[string]net.Conn)}, nil
}

// Accept remembers the connection until it is closed.
func (n *network) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[conn.RemoteAddr().String()] = conn
	return &remembered{Conn: conn, network: n}, nil
}

// breakOf breaks the connection on which the call of ctx came. The client can make another one at once.
func (n *network) breakOf(ctx context.Context) {
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if conn, ok := n.conns[caller.Addr.String()]; ok {
		_ = conn.Close() // it is to break, and how does not matter
	}
}

type remembered struct {
	net.Conn
	network *network
}

func (r *remembered) Close() error {
	r.network.mu.Lock()
	defer r.network.mu.Unlock()
	delete(r.network.conns, r.RemoteAddr().String())
	return r.Conn.Close()
}
