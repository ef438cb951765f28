// Transfer shows what the store's transaction is for. A server moves money between two accounts that are kept in the
// same file as the idempotency records, and is killed over and over while clients hammer it. Each transfer and its record
// are committed together, so that every transfer happens exactly once, whatever the server was doing when it died.
//
//	go run ./examples/transfer                        # the audit is clean
//	go run ./examples/transfer -without-transaction   # the same, but the record is written after the transfer
//
// It starts its own server as a child process and kills it by SIGKILL. Nothing is left at the end. ledger.go holds the
// handler, which is all that a program of yours would have.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

func main() {
	without := flag.Bool("without-transaction", false, "transfer in a transaction of its own, and let the record follow")
	duration := flag.Duration("for", 10*time.Second, "how long the clients and the killing go on")
	serve := flag.String("serve", "", "address: be the server (the program starts itself so)")
	file := flag.String("file", "", "path: the server's file")
	flag.Parse()

	if *serve != "" {
		fail(serveTransfers(*serve, *file, *without))
		return
	}
	clean, err := run(os.Stdout, *duration, *without)
	fail(err)
	if !clean {
		os.Exit(1)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "transfer:", err)
		os.Exit(1)
	}
}

// run lets clients transfer and kills their server, for a while, and then audits the ledger. clean: it is as it should
// be.
func run(w io.Writer, duration time.Duration, without bool) (clean bool, err error) {
	dir, err := os.MkdirTemp("", "oncerpc-transfer-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "bank.db")
	how := "in the store's transaction"
	if without {
		how = "in a transaction of its own, before the record's"
	}
	_, _ = fmt.Fprintf(w, "For %v, %d clients transfer money while their server is killed at random.\nThe handler writes %s.\n", duration, clients, how)

	server, err := startKillable(file, without)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), duration)
	defer cancel()
	killed := make(chan int, 1)
	go func() { killed <- server.killUntil(ctx) }()
	done, err := hammer(ctx, server.addr)
	kills := <-killed
	if err := errors.Join(err, server.stop()); err != nil {
		return false, err
	}
	a, err := audit(file, done)
	if err != nil {
		return false, err
	}
	_, _ = fmt.Fprintf(w, "\nThe server was killed %d times.\n%v", kills, a)
	return a.clean(), nil
}
