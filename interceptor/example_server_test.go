package interceptor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

const guardedMethod = testService + "Guarded"

// openExample opens a store in a temporary folder.
func openExample() (records *boltstore.Store, closeAll func()) {
	folder, err := os.MkdirTemp("", "oncerpc")
	if err != nil {
		panic(err)
	}
	records, err = boltstore.Open(filepath.Join(folder, "idempotency.db"))
	if err != nil {
		panic(err)
	}
	return records, func() {
		_ = records.Close()
		_ = os.RemoveAll(folder)
	}
}

// callExample calls handler as gRPC would, with a key.
func callExample(once *interceptor.Server, key string, handler grpc.UnaryHandler) {
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(interceptor.MetadataKey, key))
	resp, err := once.Unary(ctx, &testpb.Request{Text: "charge"}, &grpc.UnaryServerInfo{FullMethod: guardedMethod}, handler)
	if err != nil {
		fmt.Println(status.Code(err), interceptor.ReasonOf(err))
		return
	}
	fmt.Println("charge", resp.(*testpb.Response).GetNumber())
}

func ExampleNewServer() {
	records, closeAll := openExample()
	defer closeAll()
	tenantOf := interceptor.MetadataScope("x-authenticated-tenant") // set by one's own gateway
	once := interceptor.NewServer(records, tenantOf)
	srv := grpc.NewServer(
		grpc.ChainUnaryInterceptor(once.Unary), // after authentication, before what maps errors
		grpc.ChainStreamInterceptor(once.Stream),
	)
	defer srv.Stop()
}

func ExampleServer_Unary() {
	records, closeAll := openExample()
	defer closeAll()
	once := interceptor.NewServer(records, interceptor.SharedScope)
	charges := int64(0)
	charge := func(context.Context, any) (any, error) {
		charges++
		return &testpb.Response{Number: charges}, nil
	}
	callExample(once, "order-2026-0000042", charge)
	callExample(once, "order-2026-0000042", charge)
	callExample(once, "order-2026-0000043", charge)
	// Output:
	// charge 1
	// charge 1
	// charge 2
}

func ExampleNoEffect() {
	records, closeAll := openExample()
	defer closeAll()
	once := interceptor.NewServer(records, interceptor.SharedScope)
	locked := true
	charge := func(context.Context, any) (any, error) {
		if locked {
			locked = false
			// Nothing was done yet, so the same key may try again.
			return nil, interceptor.NoEffect(status.Error(codes.Unavailable, "account is locked"))
		}
		return &testpb.Response{Number: 1}, nil
	}
	callExample(once, "order-2026-0000042", charge)
	callExample(once, "order-2026-0000042", charge)
	// Output:
	// Unavailable REASON_UNSPECIFIED
	// charge 1
}

func ExampleFinal() {
	runs := 0
	records, closeAll := openExample()
	defer closeAll()
	once := interceptor.NewServer(records, interceptor.SharedScope)
	charge := func(context.Context, any) (any, error) {
		runs++
		// By its code alone this would be ambiguous: the handler knows that the bank said no.
		return nil, interceptor.Final(status.Error(codes.Aborted, "the bank declines"))
	}
	callExample(once, "order-2026-0000042", charge)
	callExample(once, "order-2026-0000042", charge)
	fmt.Println(runs, "run")
	// Output:
	// Aborted REASON_UNSPECIFIED
	// Aborted REASON_UNSPECIFIED
	// 1 run
}

func ExampleServer_Resolve() {
	records, closeAll := openExample()
	defer closeAll()
	once := interceptor.NewServer(records, interceptor.SharedScope)
	charge := func(context.Context, any) (any, error) {
		return nil, errors.New("connection to the bank is lost") // was the charge made?
	}
	callExample(once, "order-2026-0000042", charge)
	// Somebody looks it up at the bank: it was.
	scope, _ := interceptor.SharedScope(context.Background())
	err := once.Resolve(context.Background(), scope, "order-2026-0000042", &testpb.Response{Number: 7}, nil)
	fmt.Println("resolved:", err)
	callExample(once, "order-2026-0000042", charge)
	// Output:
	// Unknown REASON_UNSPECIFIED
	// resolved: <nil>
	// charge 7
}

func ExampleServer_ID() {
	records, closeAll := openExample()
	defer closeAll()
	once := interceptor.NewServer(records, interceptor.SharedScope)
	callExample(once, "order-2026-0000042", func(context.Context, any) (any, error) { return &testpb.Response{Number: 1}, nil })
	scope, _ := interceptor.SharedScope(context.Background())
	rec, err := records.Get(context.Background(), once.ID(scope, "order-2026-0000042"))
	fmt.Println(rec.State, rec.Method, err)
	// Output:
	// charge 1
	// done /oncerpc.internal.testpb.TestService/Guarded <nil>
}

func ExampleWithReconcile() {
	records, closeAll := openExample()
	defer closeAll()
	// bank.Find asks whether a charge of this order is known.
	find := func(context.Context, string) (id int64, known bool, err error) { return 7, true, nil }
	once := interceptor.NewServer(records, interceptor.SharedScope, interceptor.WithReconcile(guardedMethod,
		func(ctx context.Context, _ store.Record, req proto.Message) (proto.Message, error) {
			id, known, err := find(ctx, req.(*testpb.Request).GetText())
			switch {
			case err != nil:
				return nil, err // cannot tell: the next retry asks again
			case !known:
				return nil, interceptor.NoEffect(status.Error(codes.Aborted, "the charge was not made"))
			}
			return &testpb.Response{Number: id}, nil
		}))
	_ = once
}

func ExampleAttempt() {
	records, closeAll := openExample()
	defer closeAll()
	once := interceptor.NewServer(records, interceptor.SharedScope)
	callExample(once, "order-2026-0000042", func(ctx context.Context, _ any) (any, error) {
		if interceptor.Attempt(ctx) > 1 {
			fmt.Println("an earlier run died: look what it has done")
		}
		return &testpb.Response{Number: int64(interceptor.Attempt(ctx))}, nil
	})
	// Output:
	// charge 1
}

func ExampleChildKey() {
	records, closeAll := openExample()
	defer closeAll()
	once := interceptor.NewServer(records, interceptor.SharedScope)
	var keys []string
	busy := func(ctx context.Context, _ any) (any, error) {
		keys = append(keys, interceptor.ChildKey(ctx, "charge-card"))
		return nil, interceptor.NoEffect(status.Error(codes.Aborted, "busy"))
	}
	callExample(once, "order-2026-0000042", busy)
	callExample(once, "order-2026-0000042", busy)
	fmt.Println("one key for both runs:", keys[0] == keys[1])
	// Output:
	// Aborted REASON_UNSPECIFIED
	// Aborted REASON_UNSPECIFIED
	// one key for both runs: true
}

func ExampleServer_Drain() {
	records, closeAll := openExample()
	defer closeAll()
	once := interceptor.NewServer(records, interceptor.SharedScope)
	srv := grpc.NewServer(grpc.ChainUnaryInterceptor(once.Unary))
	// On SIGTERM:
	err := once.Drain(context.Background())
	srv.GracefulStop()
	fmt.Println("drained:", err)
	callExample(once, "order-2026-0000042", nil)
	// Output:
	// drained: <nil>
	// Unavailable DRAINING
}

func ExampleWithPolicy() {
	records, closeAll := openExample()
	defer closeAll()
	once := interceptor.NewServer(records, interceptor.SharedScope,
		interceptor.WithPolicy(guardedMethod, &oncerpcv1.MethodPolicy{
			Key:       oncerpcv1.MethodPolicy_REQUIRED.Enum(),
			Retention: durationpb.New(48 * time.Hour),
		}))
	_, err := once.Unary(context.Background(), &testpb.Request{}, &grpc.UnaryServerInfo{FullMethod: guardedMethod}, nil)
	fmt.Println(status.Code(err), interceptor.ReasonOf(err))
	// Output:
	// InvalidArgument KEY_MISSING
}

func ExampleSlogObserver() {
	records, closeAll := openExample()
	defer closeAll()
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "duration" || a.Key == "id" {
			return slog.Attr{}
		}
		return a
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: withoutTime}))
	once := interceptor.NewServer(records, interceptor.SharedScope, interceptor.WithObserver(interceptor.SlogObserver(logger)))
	callExample(once, "order-2026-0000042", func(context.Context, any) (any, error) { return &testpb.Response{Number: 1}, nil })
	// Output:
	// level=DEBUG msg=oncerpc event=executed method=/oncerpc.internal.testpb.TestService/Guarded code=OK attempt=1
	// charge 1
}
