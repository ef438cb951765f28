// Client pays for an order at ../server, and says how the answer came about.
//
//	go run ./examples/client -order 2026-0042 -amount 2500
//
// The key is made of the order, so a second run for the same order is a retry, tomorrow and from another machine too:
// it gets the first answer and pays nothing. With another amount it is refused.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// payment is what the flags say.
type payment struct {
	addr, order, key, card string
	cents                  int64
	timeout                time.Duration
}

func main() {
	var p payment
	flag.StringVar(&p.addr, "addr", "127.0.0.1:50051", "`address` of the server")
	flag.StringVar(&p.order, "order", "2026-0042", "`number` of the order to pay for")
	flag.StringVar(&p.key, "key", "", "idempotency `key`, instead of one made of the order")
	flag.StringVar(&p.card, "card", "card-1", "`card` to charge")
	flag.Int64Var(&p.cents, "amount", 2500, "what to pay, in `cents`")
	flag.DurationVar(&p.timeout, "timeout", 30*time.Second, "how long to try")
	flag.Parse()
	if p.key == "" {
		p.key = interceptor.KeyFor("charge", p.order)
	}
	if err := p.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

// run pays.
func (p payment) run(ctx context.Context) error {
	once := interceptor.NewClient()
	conn, err := grpc.NewClient(p.addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(), // retrying is done in one place
		grpc.WithChainUnaryInterceptor(once.Unary, attempts()),
	)
	if err != nil {
		return err
	}
	defer conn.Close()

	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var trailer metadata.MD
	fmt.Printf("order %s: %d.%02d from %s, key %s\n", p.order, p.cents/100, p.cents%100, p.card, p.key)
	charge, err := paymentpb.NewPaymentServiceClient(conn).Charge(ctx,
		&paymentpb.ChargeRequest{Card: p.card, AmountCents: p.cents},
		interceptor.Key(p.key), grpc.Trailer(&trailer))
	if err != nil {
		return explain(err)
	}
	fmt.Printf("charge %s is made (%s)\n", charge.GetId(), interceptor.StatusOf(trailer))
	return nil
}

// attempts is an interceptor inside oncerpc's, so it runs for every attempt of a call.
func attempts() grpc.UnaryClientInterceptor {
	n := 0 // this program makes one call
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		n++
		err := invoker(ctx, method, req, reply, cc, opts...)
		if err != nil {
			fmt.Printf("attempt %d: %v\n", n, err)
		}
		return err
	}
}

// explain tells an error of oncerpc's, which says what to do, from the server's own.
func explain(err error) error {
	switch interceptor.ReasonOf(err) {
	case oncerpcv1.Reason_REASON_UNSPECIFIED:
		return err
	case oncerpcv1.Reason_KEY_REUSED:
		return fmt.Errorf("the order has been paid for with another card or amount (KEY_REUSED)")
	default:
		return fmt.Errorf("%s: %s", interceptor.ReasonOf(err), status.Convert(err).Message())
	}
}
