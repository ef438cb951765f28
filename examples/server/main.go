// Server is a payment server to run in one terminal while clients pay from another: ../client, grpcurl (the server
// has reflection on), or the programs in other languages in ../interop.
//
//	go run ./examples/server -lose
//
// It says what happens to every call. With -lose the connection breaks as soon as the money is taken, and with -slow
// the charge takes its time after that, so that a client has to retry. The records are in the file that -db names and
// outlive the server: stop it, start it again, and a retry still gets the first answer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// config is what the flags say.
type config struct {
	addr, db   string
	lose       bool
	slow, wait time.Duration
}

func main() {
	var c config
	flag.StringVar(&c.addr, "addr", "127.0.0.1:50051", "`address` to listen on")
	flag.StringVar(&c.db, "db", filepath.Join(os.TempDir(), "oncerpc-payments.db"), "`file` of the records")
	flag.BoolVar(&c.lose, "lose", false, "break the connection once the money is taken")
	flag.DurationVar(&c.slow, "slow", 0, "how long a charge goes on after that")
	flag.DurationVar(&c.wait, "wait", 5*time.Second, "how long a duplicate waits for the first call before it is told IN_PROGRESS")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, c, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, c config, w io.Writer) (err error) {
	records, err := boltstore.Open(c.db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	network, err := listen(c.addr)
	if err != nil {
		return err
	}

	log := &journal{w: w}
	// All callers are one here. A server with several tenants passes a function that names the authenticated one.
	once := interceptor.NewServer(records, interceptor.SharedScope,
		interceptor.WithDefaultPolicy(&oncerpcv1.MethodPolicy{Wait: durationpb.New(c.wait)}))
	srv := grpc.NewServer(
		grpc.ChainUnaryInterceptor(log.unary, once.Unary),
		grpc.ChainStreamInterceptor(once.Stream),
	)
	paymentpb.RegisterPaymentServiceServer(srv, &payments{config: c, bank: &bank{log: log}, network: network, log: log})
	reflection.Register(srv)

	log.printf("server", "listens on %s, records in %s", network.Addr(), c.db)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(network) }()
	select {
	case err = <-served:
		return err
	case <-ctx.Done():
	}

	log.printf("server", "stops: no new charges, and those under way are finished")
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = once.Drain(drain)
	srv.GracefulStop()
	return errors.Join(err, <-served)
}
