package main

import (
	"bufio"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

func TestServer(t *testing.T) {
	c := config{addr: "127.0.0.1:0", db: filepath.Join(t.TempDir(), "once.db"), lose: true, wait: time.Minute}
	req := &paymentpb.ChargeRequest{Card: "card-1", AmountCents: 2500}
	ctx := metadata.AppendToOutgoingContext(t.Context(), interceptor.MetadataKey, interceptor.KeyFor("charge", "2026-0042"))

	payments, stop := start(t, c)
	_, err := payments.Charge(ctx, req)
	require.Equal(t, codes.Unavailable, status.Code(err), "the answer is lost")
	charge, err := payments.Charge(ctx, req)
	require.NoError(t, err)
	read, err := payments.GetCharge(t.Context(), &paymentpb.GetChargeRequest{Id: charge.GetId()})
	require.NoError(t, err)
	require.Equal(t, charge.GetId(), read.GetId())
	_, err = payments.Charge(ctx, &paymentpb.ChargeRequest{Card: "card-1", AmountCents: 1})
	require.Equal(t, oncerpcv1.Reason_KEY_REUSED, interceptor.ReasonOf(err))
	_, err = payments.Charge(t.Context(), req)
	require.Equal(t, oncerpcv1.Reason_KEY_MISSING, interceptor.ReasonOf(err))
	require.Equal(t, 1, strings.Count(stop(), "takes 25.00"))

	payments, stop = start(t, c)
	again, err := payments.Charge(ctx, req)
	require.NoError(t, err)
	require.Equal(t, charge.GetId(), again.GetId(), "a restart changes nothing")
	require.NotContains(t, stop(), "takes")
}

// start runs the server until stop, which returns what it said after its address.
func start(t *testing.T, c config) (payments paymentpb.PaymentServiceClient, stop func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, c, w)
		_ = w.Close()
	}()
	said := bufio.NewReader(r)
	first, err := said.ReadString('\n')
	require.NoError(t, err)
	_, addr, _ := strings.Cut(first, "listens on ")
	addr, _, _ = strings.Cut(addr, ",")
	rest := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(said)
		rest <- string(text)
	}()

	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	return paymentpb.NewPaymentServiceClient(conn), func() string {
		require.NoError(t, conn.Close())
		cancel()
		require.NoError(t, <-ended)
		return <-rest
	}
}
