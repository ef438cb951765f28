package main

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// newServer makes a server of payments and the way to stop it.
type newServer func(payments paymentpb.PaymentServiceServer) (*grpc.Server, stopServer, error)

type stopServer func(context.Context) error

// guarded makes servers with oncerpc. Their records are in the file at path and outlive them.
func guarded(path string) newServer {
	return func(payments paymentpb.PaymentServiceServer) (*grpc.Server, stopServer, error) {
		records, err := boltstore.Open(path)
		if err != nil {
			return nil, nil, err
		}
		once := interceptor.NewServer(records, interceptor.SharedScope)
		srv := grpc.NewServer(
			grpc.ChainUnaryInterceptor(once.Unary),
			grpc.ChainStreamInterceptor(once.Stream),
		)
		paymentpb.RegisterPaymentServiceServer(srv, payments)

		stop := func(ctx context.Context) error {
			err := once.Drain(ctx)
			srv.GracefulStop()
			return errors.Join(err, records.Close())
		}
		return srv, stop, nil
	}
}

// unguarded makes servers as they are without it.
func unguarded(payments paymentpb.PaymentServiceServer) (*grpc.Server, stopServer, error) {
	srv := grpc.NewServer()
	paymentpb.RegisterPaymentServiceServer(srv, payments)

	stop := func(context.Context) error {
		srv.GracefulStop()
		return nil
	}
	return srv, stop, nil
}
