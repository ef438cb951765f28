package examples_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// tempFolder is where an example keeps its file.
func tempFolder() (folder string, remove func()) {
	folder, err := os.MkdirTemp("", "oncerpc")
	if err != nil {
		panic(err)
	}
	return folder, func() { _ = os.RemoveAll(folder) }
}

type tenant struct{}

func tenantOf(ctx context.Context) (string, error) {
	name, _ := ctx.Value(tenant{}).(string) // what authenticate put there; empty is refused with SCOPE_MISSING
	return name, nil
}

func passUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	return next(ctx, req)
}

func passStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return next(srv, stream)
}

// A server with several tenants, and everything in its place in the chain.
func Example_chain() {
	folder, remove := tempFolder()
	defer remove()
	records, err := boltstore.Open(filepath.Join(folder, "idempotency.db"))
	if err != nil {
		panic(err)
	}
	defer func() { _ = records.Close() }()
	secret := make([]byte, 32) // from where the server's other secrets are
	recovery, logging, authenticate, limitRate, validate, mapErrors := passUnary, passUnary, passUnary, passUnary, passUnary, passUnary
	authenticateStream := passStream

	once := interceptor.NewServer(records, tenantOf,
		interceptor.WithSecret(secret),
		interceptor.WithObserver(interceptor.SlogObserver(slog.Default())),
	)
	srv := grpc.NewServer(
		grpc.ChainUnaryInterceptor(recovery, logging, authenticate, limitRate, validate, once.Unary, mapErrors),
		grpc.ChainStreamInterceptor(authenticateStream, once.Stream),
	)
	srv.Stop()
	fmt.Println(records.Stats().Running, "claims")
	// Output: 0 claims
}

// A policy in Go, for a schema that one cannot change.
func Example_policy() {
	policy := interceptor.WithPolicy(paymentpb.PaymentService_Charge_FullMethodName, &oncerpcv1.MethodPolicy{
		Retention: durationpb.New(7 * 24 * time.Hour),
		Outcomes: []*oncerpcv1.MethodPolicy_OutcomeRule{
			// This handler says ABORTED only before it calls the bank.
			{Code: oncerpcv1.MethodPolicy_ABORTED, Class: oncerpcv1.MethodPolicy_RELEASED},
		},
	})
	folder, remove := tempFolder()
	defer remove()
	aborted := status.Error(codes.Aborted, "the card is in use")
	payments, _, _, stop := serve(filepath.Join(folder, "once.db"), func(*boltstore.Store) paymentpb.PaymentServiceServer {
		return &gateway{bank: &bank{}}
	}, func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		return nil, aborted
	}, policy)
	fmt.Println(pay(payments))
	fmt.Println(stop())
	// Output:
	// released
	// <nil>
}

// A client whose calls can be retried by another process.
func Example_client() {
	folder, remove := tempFolder()
	defer remove()
	payments, _, _, stop := serve(filepath.Join(folder, "once.db"), func(*boltstore.Store) paymentpb.PaymentServiceServer {
		return &gateway{bank: &bank{err: errNotSent}}
	}, nil)
	ctx, orderID := context.Background(), "2026-0042"
	req := &paymentpb.ChargeRequest{Card: "card-1", AmountCents: 2500}
	putAside := func(key string, req *paymentpb.ChargeRequest) {
		fmt.Println("later again:", req.GetAmountCents(), key == interceptor.KeyFor("charge", orderID))
	}

	charge, err := payments.Charge(ctx, req, interceptor.Key(interceptor.KeyFor("charge", orderID)))
	if key, ok := interceptor.KeyFromError(err); ok {
		putAside(key, req) // whoever calls with both later, in any process, retries this call
	}
	fmt.Println(charge.GetId(), status.Code(err))
	fmt.Println(stop())
	// Output:
	// later again: 2500 true
	//  Unavailable
	// <nil>
}

// A client that gives up on an attempt before it gives up on the call.
func Example_attempts() {
	once := interceptor.NewClient(
		interceptor.WithAttempts(10),
		interceptor.WithAttemptTimeout(2*time.Second), // an attempt; the call as a whole ends with its context
		interceptor.WithObserver(interceptor.SlogObserver(nil)),
	)
	conn, err := grpc.NewClient("dns:///payments.example.com",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithChainUnaryInterceptor(once.Unary),
	)
	fmt.Println(err, conn.Close())
	// Output: <nil> <nil>
}

// What waits for somebody, and how it is settled.
func Example_resolve() {
	folder, remove := tempFolder()
	defer remove()
	payments, records, once, stop := serve(filepath.Join(folder, "once.db"), func(*boltstore.Store) paymentpb.PaymentServiceServer {
		return &gateway{bank: &bank{err: context.DeadlineExceeded}}
	}, nil)
	fmt.Println(pay(payments))
	ctx, tenant, orderID := context.Background(), "shared", "2026-0042"
	report := func(rec store.Record, err error) {
		fmt.Println(rec.State, rec.Method, rec.ID == once.ID(tenant, interceptor.KeyFor("charge", orderID)), err)
	}

	for _, q := range []store.Query{{State: store.Abandoned}, {State: store.Done, Ambiguous: true}} {
		for rec, err := range records.List(ctx, q) {
			report(rec, err)
		}
	}
	// The bank says that it has paid. Instead of nil, an error says how the call failed, and NoEffect that it did nothing.
	err := once.Resolve(ctx, tenant, interceptor.KeyFor("charge", orderID), &paymentpb.Charge{Id: "ch_7"}, nil)
	fmt.Println(err, pay(payments))
	fmt.Println(stop())
	// Output:
	// executed
	// done /payment.v1.PaymentService/Charge true <nil>
	// <nil> replayed
	// <nil>
}

// A copy of the file while it is in use.
func Example_backup() {
	folder, remove := tempFolder()
	defer remove()
	path := filepath.Join(folder, "idempotency.db")
	payments, records, _, stop := serve(path, func(*boltstore.Store) paymentpb.PaymentServiceServer {
		return &gateway{bank: &bank{}}
	}, nil)
	fmt.Println(pay(payments))

	backup, err := os.OpenFile(path+".backup", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		panic(err)
	}
	err = records.View(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(backup)
		return err
	})
	err = errors.Join(err, backup.Sync(), backup.Close())
	fmt.Println(err, stop())
	payments, _, _, stop = serve(path+".backup", func(*boltstore.Store) paymentpb.PaymentServiceServer {
		return &gateway{bank: &bank{}}
	}, nil)
	fmt.Println(pay(payments), stop())
	// Output:
	// executed
	// <nil> <nil>
	// replayed <nil>
}

// The three answers of a handler that knows what became of its effect.
func Example_outcomes() {
	for _, err := range []error{nil, errDeclined, errNotSent, context.DeadlineExceeded} {
		folder, remove := tempFolder()
		payments, _, _, stop := serve(filepath.Join(folder, "once.db"), func(*boltstore.Store) paymentpb.PaymentServiceServer {
			return &gateway{bank: &bank{err: err}}
		}, nil)
		fmt.Println(err, "–", pay(payments), pay(payments), stop())
		remove()
	}
	// Output:
	// <nil> – executed replayed <nil>
	// declined – executed replayed <nil>
	// not sent – released released <nil>
	// context deadline exceeded – executed replayed <nil>
}

// One guarded service in front of another.
func Example_child() {
	folder, remove := tempFolder()
	defer remove()
	bank := &bank{}
	next, _, _, stopNext := serve(filepath.Join(folder, "next.db"), func(*boltstore.Store) paymentpb.PaymentServiceServer {
		return &gateway{bank: bank}
	}, nil)
	payments, _, _, stop := serve(filepath.Join(folder, "front.db"), func(*boltstore.Store) paymentpb.PaymentServiceServer {
		return &front{next: next}
	}, nil)
	fmt.Println(pay(payments), pay(payments), len(bank.refs))
	fmt.Println(stop(), stopNext())
	// Output:
	// executed replayed 1
	// <nil> <nil>
}

// A smaller file, made while nobody uses it.
func Example_compact() {
	folder, remove := tempFolder()
	defer remove()
	path := filepath.Join(folder, "idempotency.db")
	handler := func(*boltstore.Store) paymentpb.PaymentServiceServer { return &gateway{bank: &bank{}} }
	payments, _, _, stop := serve(path, handler, nil)
	fmt.Println(pay(payments), stop())

	compact := func(from, to string) error { // as the command bbolt compact does
		src, err := bbolt.Open(from, 0o600, &bbolt.Options{ReadOnly: true})
		if err != nil {
			return err
		}
		dst, err := bbolt.Open(to, 0o600, nil)
		if err != nil {
			return errors.Join(err, src.Close())
		}
		return errors.Join(bbolt.Compact(dst, src, 1<<20), src.Close(), dst.Close())
	}
	fmt.Println(compact(path, path+".small"))
	payments, _, _, stop = serve(path+".small", handler, nil)
	fmt.Println(pay(payments), stop())
	// Output:
	// executed <nil>
	// <nil>
	// replayed <nil>
}
