package main

import (
	"net"
	"sync"
)

// network is a TCP listener whose connections can be broken.
type network struct {
	net.Listener
	log *account

	mu    sync.Mutex
	conns []net.Conn
	due   bool
}

func listen(log *account) (*network, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &network{Listener: lis, log: log}, nil
}

// Accept remembers every connection.
func (n *network) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, conn)
	n.log.event("network", "a client connects")
	return conn, nil
}

// breakNext makes the next call of breakIfDue break all connections. New ones can be made at once.
func (n *network) breakNext() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.due = true
}

func (n *network) breakIfDue() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.due {
		return
	}
	n.due = false
	n.log.event("network", "the connection breaks before the answer is out")
	for _, conn := range n.conns {
		_ = conn.Close() // it is to break, and how does not matter
	}
	n.conns = nil
}
