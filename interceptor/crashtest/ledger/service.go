package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"go.etcd.io/bbolt"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/crashtest"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// service pays by effects outside of the file (Plain and Brief under HOLD, Rerun), and moves money in it (InTransaction,
// and Required under HOLD). A request's text names the call; its label "do" asks for something other than OK:
//
//	busy    nothing happens at the first run of a process
//	refuse  an error that is final
//	fail    the effect, then an error: ambiguous outside of the file, and rolled back in it
type service struct {
	testpb.UnimplementedTestServiceServer
	trap *trap
	bolt *boltstore.Store
	bug  string

	mu    sync.Mutex
	known map[string]bool
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

func (s *service) InTransaction(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.move(ctx, r)
}

func (s *service) Required(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	return s.move(ctx, r)
}

func (s *service) pay(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	s.trap.at("handler.begun")
	switch {
	case s.first(r, "busy"):
		return nil, interceptor.NoEffect(status.Error(codes.Aborted, "busy"))
	case r.GetLabels()["do"] == "refuse":
		return nil, detailed(codes.FailedPrecondition, "refused")
	}
	s.trap.tell("effect", r.GetText(), interceptor.Attempt(ctx))
	s.trap.at("handler.effect")
	if r.GetLabels()["do"] == "fail" {
		return nil, detailed(codes.Internal, "the processor hung up")
	}
	return receipt(ctx, r)
}

// move moves money in the transaction of the outcome.
func (s *service) move(ctx context.Context, r *testpb.Request) (*testpb.Response, error) {
	s.trap.at("handler.begun")
	if s.first(r, "busy") {
		return nil, interceptor.NoEffect(status.Error(codes.Aborted, "busy"))
	}
	resp, err := receipt(ctx, r)
	if err != nil {
		return nil, err
	}
	if s.bug == crashtest.RecordAfterCommit {
		ctx = context.Background() // a transaction of its own
	}
	resp, err = boltstore.Transact(ctx, s.bolt, func(tx *bbolt.Tx) (*testpb.Response, error) {
		if r.GetLabels()["do"] == "refuse" {
			return nil, boltstore.Commit(errors.Join(detailed(codes.FailedPrecondition, "refused"), decline(tx, r)))
		}
		if err := transfer(tx, r); err != nil {
			return nil, err
		}
		s.trap.at("transact.written")
		if s.first(r, "fail") {
			return nil, detailed(codes.Internal, "on second thoughts")
		}
		return resp, nil
	})
	s.trap.at("transact.returned")
	return resp, err
}

// first reports whether a request asks for something, and is the first with its name in this process.
func (s *service) first(r *testpb.Request, do string) bool {
	if r.GetLabels()["do"] != do {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.known[r.GetText()]
	s.known[r.GetText()] = true
	return !was
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
