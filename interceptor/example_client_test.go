package interceptor_test

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
)

// lostOnce is a server whose first answer is lost on the way. It shows the key of every attempt.
func lostOnce(ctx context.Context, n int, _ any) (*testpb.Response, error) {
	fmt.Println("attempt", n, metadata.ValueFromIncomingContext(ctx, interceptor.MetadataKey))
	if n == 1 {
		return nil, status.Error(codes.Unavailable, "connection lost")
	}
	return clientExecuted(ctx)
}

func ExampleNewClient() {
	once := interceptor.NewClient()
	conn, err := grpc.NewClient("dns:///payments.example.com",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithChainUnaryInterceptor(once.Unary),
	)
	if err != nil {
		panic(err)
	}
	defer conn.Close()
}

func ExampleClient_Unary() {
	h := startClientHarness(interceptor.NewClient(), func(ctx context.Context, n int, req any) (*testpb.Response, error) {
		if n == 1 {
			return nil, status.Error(codes.Unavailable, "connection lost")
		}
		return clientExecuted(ctx)
	})
	defer h.stop()

	response, err := h.Guarded(context.Background(), &testpb.Request{Text: "charge 10 EUR"})
	fmt.Println(response.GetText(), err)
	attempts := h.attempts()
	fmt.Println(len(attempts), "attempts, one key:", attempts[0].keys[0] == attempts[1].keys[0])
	// Output:
	// done <nil>
	// 2 attempts, one key: true
}

func ExampleKey() {
	h := startClientHarness(interceptor.NewClient(), lostOnce)
	defer h.stop()

	key := interceptor.KeyFor("charge", "order-1234")
	response, err := h.Guarded(context.Background(), &testpb.Request{}, interceptor.Key(key))
	fmt.Println(response.GetText(), err)
	// Output:
	// attempt 1 [f9062c8c0a3bc19f0f7eda76ea6baeab]
	// attempt 2 [f9062c8c0a3bc19f0f7eda76ea6baeab]
	// done <nil>
}

func ExampleKeyFromError() {
	h := startClientHarness(interceptor.NewClient(interceptor.WithAttempts(1)), func(ctx context.Context, n int, _ any) (*testpb.Response, error) {
		if n == 1 {
			return nil, status.Error(codes.Unavailable, "connection lost")
		}
		return clientExecuted(ctx)
	})
	defer h.stop()

	_, err := h.Guarded(context.Background(), &testpb.Request{})
	fmt.Println(err)
	if key, ok := interceptor.KeyFromError(err); ok { // keep it, and try again later
		response, err := h.Guarded(context.Background(), &testpb.Request{}, interceptor.Key(key))
		fmt.Println(response.GetText(), err)
	}
	// Output:
	// rpc error: code = Unavailable desc = connection lost
	// done <nil>
}

func ExampleStatusOf() {
	h := startClientHarness(interceptor.NewClient(), clientFailing(0, nil))
	defer h.stop()

	var trailer metadata.MD
	_, err := h.Guarded(context.Background(), &testpb.Request{}, grpc.Trailer(&trailer))
	fmt.Println(interceptor.StatusOf(trailer), err)
	// Output: executed <nil>
}

func ExampleWithAttempts() {
	once := interceptor.NewClient(interceptor.WithAttempts(2))
	h := startClientHarness(once, clientFailing(9, status.Error(codes.Unavailable, "down for maintenance")))
	defer h.stop()

	_, err := h.Guarded(context.Background(), &testpb.Request{})
	fmt.Println(len(h.attempts()), err)
	// Output: 2 rpc error: code = Unavailable desc = down for maintenance
}

func ExampleWithAttemptTimeout() {
	once := interceptor.NewClient(interceptor.WithAttemptTimeout(50 * time.Millisecond))
	h := startClientHarness(once, func(ctx context.Context, n int, _ any) (*testpb.Response, error) {
		if n == 1 {
			<-ctx.Done() // a server that hangs
			return nil, ctx.Err()
		}
		return clientExecuted(ctx)
	})
	defer h.stop()

	response, err := h.Guarded(context.Background(), &testpb.Request{})
	fmt.Println(response.GetText(), err)
	// Output: done <nil>
}

func ExampleWithBackoff() {
	once := interceptor.NewClient(interceptor.WithBackoff(10*time.Millisecond, time.Second))
	h := startClientHarness(once, clientFailing(2, status.Error(codes.Unavailable, "connection lost")))
	defer h.stop()

	response, err := h.Guarded(context.Background(), &testpb.Request{})
	fmt.Println(response.GetText(), err)
	// Output: done <nil>
}

func ExampleReasonOf() {
	h := startClientHarness(interceptor.NewClient(), clientFailing(0, nil))
	defer h.stop()

	_, err := h.Guarded(context.Background(), &testpb.Request{}, interceptor.Key("42"))
	fmt.Println(interceptor.ReasonOf(err))
	fmt.Println(err)
	// Output:
	// KEY_INVALID
	// rpc error: code = InvalidArgument desc = oncerpc: the key has 2 characters and needs at least 16; use a UUID, or KeyFor to make a key of a short name
}
