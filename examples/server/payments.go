package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
)

// payments is the service. It knows nothing of oncerpc.
type payments struct {
	paymentpb.UnimplementedPaymentServiceServer

	config  config
	bank    *bank
	network *network
	log     *journal
}

// Charge takes the money, and then whatever the flags say goes wrong.
func (p *payments) Charge(ctx context.Context, req *paymentpb.ChargeRequest) (*paymentpb.Charge, error) {
	if req.GetCard() == "" || req.GetAmountCents() <= 0 {
		return nil, status.Error(codes.InvalidArgument, "a charge needs a card and an amount")
	}
	charge := p.bank.take(req.GetCard(), req.GetAmountCents())
	if p.config.lose {
		p.log.printf("network", "the connection breaks before the answer is out")
		p.network.breakOf(ctx)
	}
	time.Sleep(p.config.slow) // the money is taken: there is nothing left to cancel
	return charge, nil
}

// GetCharge reads a charge.
func (p *payments) GetCharge(_ context.Context, req *paymentpb.GetChargeRequest) (*paymentpb.Charge, error) {
	charge, ok := p.bank.find(req.GetId())
	if !ok {
		return nil, status.Errorf(codes.NotFound, "no charge %q", req.GetId())
	}
	return charge, nil
}

// bank is the outside world. It lasts as long as this program.
type bank struct {
	log *journal

	mu      sync.Mutex
	charges []*paymentpb.Charge
}

func (b *bank) take(card string, cents int64) *paymentpb.Charge {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &paymentpb.Charge{Id: "ch_" + rand.Text()[:8], Card: card, AmountCents: cents}
	b.charges = append(b.charges, c)
	b.log.printf("bank", "takes %s from %s: charge %s, charges: %d", money(cents), card, c.GetId(), len(b.charges))
	return c
}

func (b *bank) find(id string) (*paymentpb.Charge, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.charges {
		if c.GetId() == id {
			return c, true
		}
	}
	return nil, false
}

// money writes cents as people do.
func money(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }
