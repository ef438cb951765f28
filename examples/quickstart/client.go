package main

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
)

// dialGuarded makes a connection whose calls carry keys and are retried.
func dialGuarded(addr string) (*grpc.ClientConn, error) {
	once := interceptor.NewClient()
	return grpc.NewClient(addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(), // retrying is done in one place
		grpc.WithChainUnaryInterceptor(once.Unary),
	)
}

// dialUnguarded makes a connection as it is.
func dialUnguarded(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// client is a customer's program.
type client struct {
	log      *account
	bank     *bank
	network  *network
	payments paymentpb.PaymentServiceClient
}

// pay charges the card for the order, as programs do everywhere: when there is no answer, it tries again. With oncerpc
// the client interceptor tries again before this loop hears of it.
func (c *client) pay(ctx context.Context, cents int64, opts ...grpc.CallOption) payment {
	req := &paymentpb.ChargeRequest{Card: "card-1", AmountCents: cents}
	var trailer metadata.MD
	opts = append(slices.Clip(opts), grpc.Trailer(&trailer))
	for attempt := 1; ; attempt++ {
		charge, err := c.payments.Charge(ctx, req, opts...)
		if status.Code(err) == codes.Unavailable && attempt < 3 {
			c.log.event("client", "no answer (%s), so it tries again", status.Code(err))
			continue
		}
		p := payment{charge: charge, err: err, status: interceptor.StatusOf(trailer)}
		p.taken, p.charges = c.bank.taken()
		c.log.event("client", "%s", p)
		c.log.event("bank", "has taken %s in all, charges: %d", money(p.taken), p.charges)
		return p
	}
}
