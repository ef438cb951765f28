// Quickstart shows what oncerpc is for. A payment server charges a card, and the connection breaks before the answer
// is out. The client cannot know whether the money was taken, so it tries again. Without oncerpc that takes the money
// twice; with it once, and the second call gets the answer that the first one lost, even from a server that was
// restarted in between.
//
// It is real gRPC over TCP on 127.0.0.1 with a real store on disk, and nothing of it is left at the end. server.go and
// client.go hold what a program of yours would have; the handler, the bank, the client's loop and the breaking network
// are the same with oncerpc and without.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// What the customer of every scene buys.
const (
	orderID = "2026-0042"
	amount  = 2500 // cents
)

// run plays four scenes, writes an account of them to w, and returns an error if a promise was not kept.
func run(w io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	dir, err := os.MkdirTemp("", "oncerpc-quickstart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "idempotency.db")

	log := &account{w: w}
	log.title("Order %s costs %s. The bank takes the money, then the connection breaks.", orderID, money(amount))
	var seen evidence

	log.scene("Without oncerpc")
	without := stage{log: log, bank: &bank{log: log}, server: unguarded, dial: dialUnguarded}
	err = without.visit(ctx, func(c *client) {
		c.network.breakNext()
		seen.without = c.pay(ctx, amount)
	})
	if err != nil {
		return err
	}

	// From here on there is one bank and one store. The key is the same in every process that knows the order.
	with := stage{log: log, bank: &bank{log: log}, server: guarded(path), dial: dialGuarded}
	key := interceptor.Key(interceptor.KeyFor("charge", orderID))

	log.scene("With oncerpc: same handler, same client loop")
	err = with.visit(ctx, func(c *client) {
		c.network.breakNext()
		seen.with = c.pay(ctx, amount, key)
	})
	if err != nil {
		return err
	}

	log.scene("The server has been restarted, and another client pays the same order")
	err = with.visit(ctx, func(c *client) {
		seen.late = c.pay(ctx, amount, key)

		log.scene("The same key with another amount")
		seen.reused = c.pay(ctx, 2*amount, key)
	})
	if err != nil {
		return err
	}
	return log.verdict(seen.promises())
}

// stage is what a scene is played on.
type stage struct {
	log    *account
	bank   *bank
	server newServer
	dial   func(addr string) (*grpc.ClientConn, error)
}

// visit starts a server, lets a client of it act, and stops both.
func (s stage) visit(ctx context.Context, act func(*client)) (err error) {
	network, err := listen(s.log)
	if err != nil {
		return err
	}
	srv, stop, err := s.server(&payments{bank: s.bank, network: network})
	if err != nil {
		return errors.Join(err, network.Close())
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(network) }()
	defer func() { err = errors.Join(err, stop(ctx), <-served) }()

	conn, err := s.dial(network.Addr().String())
	if err != nil {
		return err
	}
	act(&client{log: s.log, bank: s.bank, network: network, payments: paymentpb.NewPaymentServiceClient(conn)})
	return conn.Close()
}
