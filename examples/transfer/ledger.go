package main

import (
	"context"
	"encoding/binary"
	"errors"
	"net"

	"go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// The buckets of the ledger stand beside the store's own in one file.
var (
	accounts = []byte("accounts") // name → balance in cents
	journal  = []byte("journal")  // number → key of the call that made the transfer
)

const opening = 1_000_000_00 // what each account holds at first, in cents

// bank is the service.
type bank struct {
	paymentpb.UnimplementedTransferServiceServer
	records *boltstore.Store
	without bool
}

// Transfer moves money. The write and the record of the call are committed together.
func (b *bank) Transfer(ctx context.Context, req *paymentpb.TransferRequest) (*paymentpb.Transfer, error) {
	order := metadata.ValueFromIncomingContext(ctx, interceptor.MetadataKey)[0]
	transactCtx := ctx
	if b.without {
		// Outside of the guarded call Transact is a plain transaction: the record is written when the handler returns.
		transactCtx = context.Background()
	}
	return boltstore.Transact(transactCtx, b.records, func(tx *bbolt.Tx) (*paymentpb.Transfer, error) {
		return move(tx, order, req)
	})
}

// move is the business write.
func move(tx *bbolt.Tx, order string, req *paymentpb.TransferRequest) (*paymentpb.Transfer, error) {
	from, to := balance(tx, req.GetFrom()), balance(tx, req.GetTo())
	if from < req.GetAmountCents() {
		return nil, status.Error(codes.FailedPrecondition, "not enough money")
	}
	number, err := tx.Bucket(journal).NextSequence()
	if err != nil {
		return nil, err
	}
	from -= req.GetAmountCents()
	err = errors.Join(
		setBalance(tx, req.GetFrom(), from),
		setBalance(tx, req.GetTo(), to+req.GetAmountCents()),
		tx.Bucket(journal).Put(binary.BigEndian.AppendUint64(nil, number), []byte(order)),
	)
	if err != nil {
		return nil, err
	}
	return &paymentpb.Transfer{Number: number, FromBalanceCents: from}, nil
}

func balance(tx *bbolt.Tx, account string) int64 {
	if v := tx.Bucket(accounts).Get([]byte(account)); v != nil {
		return int64(binary.BigEndian.Uint64(v))
	}
	return opening
}

func setBalance(tx *bbolt.Tx, account string, cents int64) error {
	return tx.Bucket(accounts).Put([]byte(account), binary.BigEndian.AppendUint64(nil, uint64(cents)))
}

// serveTransfers is the server process. It ends by being killed.
func serveTransfers(addr, file string, without bool) error {
	records, err := boltstore.Open(file)
	if err != nil {
		return err
	}
	_, err = boltstore.Transact(context.Background(), records, func(tx *bbolt.Tx) (any, error) {
		_, err := tx.CreateBucketIfNotExists(accounts)
		if err != nil {
			return nil, err
		}
		_, err = tx.CreateBucketIfNotExists(journal)
		return nil, err
	})
	if err != nil {
		return err
	}
	once := interceptor.NewServer(records, interceptor.SharedScope)
	srv := grpc.NewServer(grpc.ChainUnaryInterceptor(once.Unary))
	paymentpb.RegisterTransferServiceServer(srv, &bank{records: records, without: without})
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return srv.Serve(lis)
}
