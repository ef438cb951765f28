package main

import (
	"context"
	"fmt"
	"io"
	"path"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// journal writes down what happens.
type journal struct {
	mu    sync.Mutex
	w     io.Writer
	calls int
}

func (j *journal) printf(who, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, _ = fmt.Fprintf(j.w, "%-9s%s\n", who, fmt.Sprintf(format, args...))
}

// unary is an interceptor outside oncerpc, so it sees every call. Where no line of the bank's follows, nothing was
// taken.
func (j *journal) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	j.mu.Lock()
	j.calls++
	who := fmt.Sprintf("call %d", j.calls)
	j.mu.Unlock()

	j.printf(who, "%s", asked(path.Base(info.FullMethod), req))
	resp, err := next(ctx, req)
	switch reason := interceptor.ReasonOf(err); {
	case ctx.Err() != nil:
		j.printf(who, "has nobody left to answer")
	case reason != oncerpcv1.Reason_REASON_UNSPECIFIED:
		j.printf(who, "is refused: %s, %s", status.Code(err), reason)
	case err != nil:
		j.printf(who, "fails: %s, %s", status.Code(err), status.Convert(err).Message())
	default:
		j.printf(who, "is answered with charge %s", resp.(*paymentpb.Charge).GetId())
	}
	return resp, err
}

func asked(method string, req any) string {
	if r, ok := req.(*paymentpb.ChargeRequest); ok {
		return fmt.Sprintf("%s %s from %s", method, money(r.GetAmountCents()), r.GetCard())
	}
	return method
}
