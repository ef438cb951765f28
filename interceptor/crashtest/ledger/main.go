// Command ledger is the server that package crashtest kills.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// The files that the parent passes on.
const (
	listenerFile = 3 // stays open between two processes, so that clients queue instead of being refused
	parentFile   = 4
)

func main() {
	file := flag.String("file", "", "the store's file")
	point := flag.String("point", "", "where to end by SIGKILL")
	k := flag.Int("k", 1, "the how many times the point is reached")
	bug := flag.String("bug", "", "the planted bug")
	flag.Parse()
	if !compiledIn {
		fail("built without the tag oncerpc_failpoints")
	}
	t := newTrap(parent{os.NewFile(parentFile, "parent")}, *point, *k)
	t.arm()
	if err := serve(t, *file, *bug); err != nil {
		fail(err)
	}
	t.tell("closed")
}

func fail(why any) {
	fmt.Fprintln(os.Stderr, "ledger:", why)
	os.Exit(1)
}

// serve serves until standard input ends.
func serve(t *trap, file, bug string) error {
	bolt, err := boltstore.Open(file)
	if err != nil {
		return err
	}
	if err := errors.Join(openBook(bolt), t.watch(bolt)); err != nil {
		return err
	}
	guarded := &records{Store: bolt, trap: t, bug: bug, released: map[store.ID]release{}}
	once := interceptor.NewServer(guarded, interceptor.SharedScope,
		interceptor.WithPolicy("/oncerpc.internal.testpb.TestService/Brief", &oncerpcv1.MethodPolicy{
			Retention:      durationpb.New(30 * time.Millisecond),
			ErrorRetention: durationpb.New(30 * time.Millisecond),
		}))
	srv := grpc.NewServer(grpc.ChainUnaryInterceptor(once.Unary), grpc.StatsHandler(answers{t}))
	testpb.RegisterTestServiceServer(srv, &service{trap: t, bolt: bolt, bug: bug, known: map[string]bool{}})
	lis, err := net.FileListener(os.NewFile(listenerFile, "listener"))
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	t.tell("ready")
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); served <- nil }()
	if err := <-served; err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := once.Drain(ctx); err != nil {
		return err
	}
	srv.GracefulStop()
	return bolt.Close()
}

// answers has the trap at the end of every call, when its answer was handed to the transport.
type answers struct{ trap *trap }

func (a answers) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.End); ok {
		a.trap.at("answer.sent")
	}
}

func (answers) HandleConn(context.Context, stats.ConnStats)                       {}
func (answers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (answers) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
