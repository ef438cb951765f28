package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
)

// payments is the service. It knows nothing of oncerpc.
type payments struct {
	paymentpb.UnimplementedPaymentServiceServer

	bank    *bank
	network *network
}

// Charge takes the money. The connection may break right after it: that is the moment this program is about.
func (p *payments) Charge(_ context.Context, req *paymentpb.ChargeRequest) (*paymentpb.Charge, error) {
	charge := p.bank.charge(req.GetCard(), req.GetAmountCents())
	p.network.breakIfDue()
	return charge, nil
}

// bank is the outside world: whatever happens to the server, money that was taken stays taken.
type bank struct {
	log *account

	mu      sync.Mutex
	charges []*paymentpb.Charge
}

func (b *bank) charge(card string, cents int64) *paymentpb.Charge {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &paymentpb.Charge{Id: fmt.Sprintf("ch_%d", len(b.charges)+1), Card: card, AmountCents: cents}
	b.charges = append(b.charges, c)
	b.log.event("bank", "takes %s, charge %s", money(cents), c.GetId())
	return c
}

// taken is what the bank took in all.
func (b *bank) taken() (cents int64, charges int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.charges {
		cents += c.GetAmountCents()
	}
	return cents, len(b.charges)
}

// money writes cents as people do.
func money(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }
