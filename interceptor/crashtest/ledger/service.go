package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
)

// service pays by effects outside of the file (Plain and Brief under HOLD, Rerun), and moves money in it. A request's
// text names the call; its label "do" asks for something other than OK:
//
//	busy    nothing happens at the first run of a process
//	refuse  an error that is final
//	fail    the effect, then an error that is ambiguous
type service struct {
	testpb.UnimplementedTestServiceServer
	trap *trap

	mu   sync.Mutex
	busy map[string]bool
}

func (s *service) Plain(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.pay(ctx, r)
}

func (s *service) Brief(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.pay(ctx, r)
}

func (s *service) Rerun(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.pay(ctx, r)
}

func (s *service) pay(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	s.trap.at("handler.begun")
	if err := s.turnedAway(r); err != nil {
		return nil, err
	}
	s.trap.tell("effect", r.GetText(), interceptor.Attempt(ctx))
	s.trap.at("handler.effect")
	if r.GetLabels()["do"] == "fail" {
		return nil, detailed(codes.Internal, "the processor hung up")
	}
	return receipt(ctx, r)
}

// turnedAway is the error of a call that has no effect, nil of one that has.
func (s *service) turnedAway(r *testpb.Request) error {
	switch r.GetLabels()["do"] {
	case "busy":
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.busy[r.GetText()] {
			s.busy[r.GetText()] = true
			return interceptor.NoEffect(status.Error(codes.Aborted, "busy"))
		}
	case "refuse":
		return detailed(codes.FailedPrecondition, "refused")
	}
	return nil
}

// receipt is an OK answer that no other run gives.
func receipt(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	run := fmt.Sprint(rand.Int64())
	if err := grpc.SetHeader(ctx, metadata.Pairs("ledger-run", run)); err != nil {
		return nil, err
	}
	return &testpb.Response{Text: r.GetText(), Number: rand.Int64(), Blob: make([]byte, rand.N(600))}, nil
}

// detailed is an error that no other run gives.
func detailed(code codes.Code, text string) error {
	st, err := status.New(code, text).WithDetails(&errdetails.RequestInfo{RequestId: fmt.Sprint(rand.Int64())})
	if err != nil {
		return err
	}
	return st.Err()
}
