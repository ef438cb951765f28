package examples_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// shop keeps its charges in the file of the records.
type shop struct {
	paymentpb.UnimplementedPaymentServiceServer

	records *boltstore.Store
}

func (s *shop) Charge(ctx context.Context, req *paymentpb.ChargeRequest) (*paymentpb.Charge, error) {
	return boltstore.Transact(ctx, s.records, func(tx *bbolt.Tx) (*paymentpb.Charge, error) {
		return addCharge(tx, req) // the write and the record are committed together
	})
}

var charges = []byte("charges")

func addCharge(tx *bbolt.Tx, req *paymentpb.ChargeRequest) (*paymentpb.Charge, error) {
	b, err := tx.CreateBucketIfNotExists(charges)
	if err != nil {
		return nil, err
	}
	n, err := b.NextSequence()
	if err != nil {
		return nil, err
	}
	if err := b.Put(binary.BigEndian.AppendUint64(nil, n), []byte(req.GetCard())); err != nil {
		return nil, err
	}
	if req.GetAmountCents() > 1_000_00 {
		// What was written above stays, and the error is the outcome.
		return nil, boltstore.Commit(status.Error(codes.FailedPrecondition, "over the limit"))
	}
	return &paymentpb.Charge{Id: fmt.Sprintf("ch_%d", n), Card: req.GetCard(), AmountCents: req.GetAmountCents()}, nil
}

// gateway hands charges on to a bank.
type gateway struct {
	paymentpb.UnimplementedPaymentServiceServer

	bank *bank
}

func (g *gateway) Charge(ctx context.Context, req *paymentpb.ChargeRequest) (*paymentpb.Charge, error) {
	id, err := g.bank.pay(ctx, interceptor.ChildKey(ctx, "pay"), req.GetAmountCents())
	switch {
	case errors.Is(err, errDeclined): // known: the bank said no
		return nil, interceptor.Final(status.Error(codes.Aborted, "the bank declines"))
	case errors.Is(err, errNotSent): // known: nothing happened, and the key is free again
		return nil, interceptor.NoEffect(status.Error(codes.Unavailable, "the bank cannot be reached"))
	case err != nil: // it may have paid: ambiguous, by the code
		return nil, status.Error(codes.Unavailable, "the bank did not answer")
	}
	return &paymentpb.Charge{Id: id, Card: req.GetCard(), AmountCents: req.GetAmountCents()}, nil
}

// front hands charges on to another guarded service. Its connection has a Client of the interceptor package.
type front struct {
	paymentpb.UnimplementedPaymentServiceServer

	next paymentpb.PaymentServiceClient
}

func (f *front) Charge(ctx context.Context, req *paymentpb.ChargeRequest) (*paymentpb.Charge, error) {
	return f.next.Charge(ctx, req, interceptor.Child("charge"))
}

// bank is a system elsewhere.
type bank struct {
	dedups bool // a reference that it knows is not paid again
	refs   []string
	err    error
}

var (
	errDeclined = errors.New("declined")
	errNotSent  = errors.New("not sent")
)

func (b *bank) pay(ctx context.Context, ref string, _ int64) (string, error) {
	if b.err != nil {
		return "", b.err
	}
	if id, known, _ := b.find(ctx, ref); known && b.dedups {
		return id, nil
	}
	b.refs = append(b.refs, ref)
	return fmt.Sprintf("ch_%d", len(b.refs)), nil
}

func (b *bank) find(_ context.Context, ref string) (id string, known bool, err error) {
	for i, r := range b.refs {
		if r == ref {
			return fmt.Sprintf("ch_%d", i+1), true, nil
		}
	}
	return "", false, nil
}

// askTheBank is what a server of a gateway is given, so that a crash need not end in OUTCOME_UNKNOWN.
func askTheBank(bank *bank) interceptor.ServerOption {
	return interceptor.WithReconcile(paymentpb.PaymentService_Charge_FullMethodName,
		func(ctx context.Context, _ store.Record, req proto.Message) (proto.Message, error) {
			id, known, err := bank.find(ctx, interceptor.ChildKey(ctx, "pay")) // the key of the run that died
			switch {
			case err != nil:
				return nil, err // cannot tell: the next retry asks again
			case !known:
				return nil, interceptor.NoEffect(status.Error(codes.Aborted, "the charge was not made"))
			}
			charge := req.(*paymentpb.ChargeRequest)
			return &paymentpb.Charge{Id: id, Card: charge.GetCard(), AmountCents: charge.GetAmountCents()}, nil
		})
}

// serve runs a payment service on the records in the file at path, until stop.
func serve(
	path string, handler func(*boltstore.Store) paymentpb.PaymentServiceServer, inside grpc.UnaryServerInterceptor,
	opts ...interceptor.ServerOption,
) (payments paymentpb.PaymentServiceClient, records *boltstore.Store, once *interceptor.Server, stop func() error) {
	records, err := boltstore.Open(path)
	if err != nil {
		panic(err)
	}
	once = interceptor.NewServer(records, interceptor.SharedScope, opts...)
	chain := []grpc.UnaryServerInterceptor{once.Unary}
	if inside != nil {
		chain = append(chain, inside)
	}
	srv := grpc.NewServer(grpc.ChainUnaryInterceptor(chain...))
	paymentpb.RegisterPaymentServiceServer(srv, handler(records))
	listener := bufconn.Listen(1 << 16)
	go func() { _ = srv.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///bufconn",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithChainUnaryInterceptor(interceptor.NewClient(interceptor.WithAttempts(1)).Unary),
	)
	if err != nil {
		panic(err)
	}
	return paymentpb.NewPaymentServiceClient(conn), records, once, func() error {
		err := errors.Join(conn.Close(), once.Drain(context.Background()))
		srv.GracefulStop()
		return errors.Join(err, records.Close())
	}
}

// pay charges for the order and tells what the server says: its status, or its reason.
func pay(payments paymentpb.PaymentServiceClient) (said string) {
	var trailer metadata.MD
	_, err := payments.Charge(context.Background(), &paymentpb.ChargeRequest{Card: "card-1", AmountCents: 2500},
		interceptor.Key(interceptor.KeyFor("charge", "2026-0042")), grpc.Trailer(&trailer))
	if reason := interceptor.ReasonOf(err); reason != oncerpcv1.Reason_REASON_UNSPECIFIED {
		return reason.String()
	}
	return string(interceptor.StatusOf(trailer))
}

// README.md has a table of what the retry sees after a crash. A copy of the file is what the next process would find.
func TestWhereItDies(t *testing.T) {
	policy := func(p *oncerpcv1.MethodPolicy) interceptor.ServerOption {
		return interceptor.WithPolicy(paymentpb.PaymentService_Charge_FullMethodName, p)
	}
	const unknown = "OUTCOME_UNKNOWN"
	for _, way := range []struct {
		name                         string
		before, after, answered      string // what the retry sees
		made                         [3]int // charges in the end
		transact, dedups, reconciles bool
		policy                       *oncerpcv1.MethodPolicy
	}{
		{
			name: "in_the_transaction", transact: true, policy: &oncerpcv1.MethodPolicy{InTransaction: proto.Bool(true)},
			before: "executed", after: "replayed", answered: "replayed", made: [3]int{1, 1, 1},
		},
		{
			name: "in_the_transaction_but_not_said_so", transact: true, policy: &oncerpcv1.MethodPolicy{},
			before: unknown, after: "replayed", answered: "replayed", made: [3]int{0, 1, 1},
		},
		{
			name: "child_key", dedups: true, policy: &oncerpcv1.MethodPolicy{OnCrash: oncerpcv1.MethodPolicy_RERUN.Enum()},
			before: "executed", after: "executed", answered: "replayed", made: [3]int{1, 1, 1},
		},
		{
			name: "neither", policy: &oncerpcv1.MethodPolicy{},
			before: unknown, after: unknown, answered: "replayed", made: [3]int{0, 1, 1},
		},
		{
			name: "reconciled", reconciles: true, policy: &oncerpcv1.MethodPolicy{},
			before: "released", after: "replayed", answered: "replayed", made: [3]int{0, 1, 1},
		},
	} {
		for i, want := range []string{way.before, way.after, way.answered} {
			place := []string{"before_the_effect", "after_it", "after_the_record"}[i]
			t.Run(way.name+"/"+place, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "once.db")
				image := path + ".image"
				bank := &bank{dedups: way.dedups}
				opts := []interceptor.ServerOption{policy(way.policy)}
				if way.reconciles {
					opts = append(opts, askTheBank(bank))
				}
				handler := func(records *boltstore.Store) paymentpb.PaymentServiceServer {
					if way.transact {
						return &shop{records: records}
					}
					return &gateway{bank: bank}
				}
				dies := func(at int) {
					if at == i {
						copyFile(t, path, image)
					}
				}
				payments, _, _, stop := serve(path, handler,
					func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
						dies(0)
						if i == 0 {
							return nil, interceptor.NoEffect(status.Error(codes.Unavailable, "dead"))
						}
						resp, err := next(ctx, req)
						dies(1)
						return resp, err
					}, opts...)
				_ = pay(payments)
				dies(2)
				require.NoError(t, stop())

				payments, records, _, stop := serve(image, handler, nil, opts...)
				require.Equal(t, want, pay(payments))
				made := len(bank.refs)
				if way.transact {
					require.NoError(t, records.View(func(tx *bbolt.Tx) error {
						if b := tx.Bucket(charges); b != nil {
							made = b.Stats().KeyN
						}
						return nil
					}))
				}
				require.Equal(t, way.made[i], made)
				require.NoError(t, stop())
			})
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, b, 0o600))
}
