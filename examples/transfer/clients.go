package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
)

const clients = 8

// transfer is what a client was told of one of its orders.
type transfer struct {
	order  string // its key
	cents  int64
	number uint64 // in the ledger, as the answer says
}

// hammer has clients transfer from alice to bob until ctx ends, and gives what they were told. Every order is called
// until there is an answer, also after ctx has ended.
func hammer(ctx context.Context, addr string) ([]transfer, error) {
	conn, err := dial(addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	bank := paymentpb.NewTransferServiceClient(conn)
	var mu sync.Mutex
	var done []transfer
	var failed error
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				t := transfer{order: interceptor.KeyFor("transfer", fmt.Sprint(client), fmt.Sprint(n)), cents: int64(1 + n%100)}
				err := t.do(bank)
				mu.Lock()
				if err != nil {
					failed = err
				}
				done = append(done, t)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return done, failed
}

// do calls until there is an answer. The client interceptor retries for as long as its budget lasts, and this loop does
// what a job queue would: it comes again later with the same key.
func (t *transfer) do(bank paymentpb.TransferServiceClient) error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	for {
		answer, err := bank.Transfer(ctx, &paymentpb.TransferRequest{From: "alice", To: "bob", AmountCents: t.cents}, interceptor.Key(t.order))
		if err == nil {
			t.number = answer.GetNumber()
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("order %s got no answer in time: %w", t.order, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func dial(addr string) (*grpc.ClientConn, error) {
	once := interceptor.NewClient(interceptor.WithBackoff(10*time.Millisecond, 100*time.Millisecond))
	return grpc.NewClient(addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithChainUnaryInterceptor(once.Unary),
		// The server is back at once: do not wait a second for it.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
	)
}
