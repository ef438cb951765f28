package crashtest_test

import (
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/crashtest"
	"github.com/oncerpc/oncerpc/store"
	"github.com/oncerpc/oncerpc/store/boltstore"
)

// finish lets every client have its answer, and audits what there is then.
func (w *world) finish() {
	defer w.close()
	close(w.ending)
	if !w.serve(w.done.Wait) {
		return
	}
	w.auditFile()
	if !w.serve(w.replayAll) {
		return
	}
	for _, o := range w.ops {
		if !o.inFile() {
			w.auditOp(o)
		}
	}
	w.auditBook()
}

// serve has a server that is not killed, stops it gracefully after f, and checks the file.
func (w *world) serve(f func()) bool {
	w.answers.Store(-1)
	c, err := startChild(w.exe, w.file, w.lis, "", 0, w.bug, w.effect)
	if err != nil {
		w.violate("the server cannot be started: %v", err)
		return false
	}
	finished := make(chan struct{})
	go func() { f(); close(finished) }()
	select {
	case <-finished:
		c.stop()
	case <-c.gone:
	}
	if !c.awaitGone(patience) {
		w.violate("the server does not end")
		c.kill()
		<-c.gone
	}
	if !c.closed {
		w.violate("the server did not close its store: %s", c.fault())
		return false
	}
	w.checkPages()
	return true
}

// checkPages lets bbolt go through the file.
func (w *world) checkPages() {
	w.view(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			w.violate("bbolt: %v", err)
		}
		return nil
	})
}

// view reads the file while no server has it.
func (w *world) view(f func(*bbolt.Tx) error) {
	db, err := bbolt.Open(w.file, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
	if err == nil {
		err = errors.Join(db.View(f), db.Close())
	}
	if err != nil {
		w.violate("bbolt: %v", err)
	}
}

// auditFile looks at what the records say when every client has its answer.
func (w *world) auditFile() {
	records, err := boltstore.Open(w.file)
	if err != nil {
		w.violate("%v", err)
		return
	}
	defer func() {
		if err := records.Close(); err != nil {
			w.violate("%v", err)
		}
	}()
	ids := interceptor.NewServer(records, interceptor.SharedScope)
	scope, _ := interceptor.SharedScope(context.Background())
	unknown := map[store.ID]*op{}
	for _, o := range w.ops {
		if a := o.answered(); a != nil && a.unknown {
			unknown[ids.ID(scope, o.key())] = o
		}
	}
	for rec, err := range records.List(context.Background(), store.Query{}) {
		switch {
		case err != nil:
			w.violate("a record cannot be read: %v", err)
		case rec.State == store.Running:
			w.violate("%s is left running", rec.Method)
		case rec.State == store.Abandoned && rec.Method == service+"Brief":
		case rec.State == store.Abandoned && unknown[rec.ID] == nil:
			w.violate("%s is abandoned, and no caller was told", rec.Method)
		case rec.State == store.Abandoned:
			delete(unknown, rec.ID)
		}
	}
	for _, o := range unknown {
		w.violate("%s %s: answered OUTCOME_UNKNOWN, and it is not abandoned", o.method, o.name)
	}
}

// replayAll makes every call once more.
func (w *world) replayAll() {
	next := make(chan *op)
	go func() {
		defer close(next)
		for _, o := range w.ops {
			next <- o
		}
	}()
	stopped := make(chan struct{})
	for _, conn := range w.conns {
		go func(conn *grpc.ClientConn) {
			for o := range next {
				w.replay(o, conn)
			}
			stopped <- struct{}{}
		}(conn)
	}
	for range w.conns {
		<-stopped
	}
}

func (w *world) replay(o *op, conn *grpc.ClientConn) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a, definite := o.call(ctx, conn, w.tally)
	if !definite || a.st != interceptor.StatusReplayed && !a.unknown {
		w.violate("%s %s: a fresh process answers %v (%s) instead of a replay", o.method, o.name, a.code, a.st)
		return
	}
	o.settle(a, w.tally)
}

// auditBook compares the ledger with the answers of the calls that moved money in it.
func (w *world) auditBook() {
	journal, declined := w.numbers(crashtest.JournalBucket), w.numbers(crashtest.DeclinedBucket)
	balances := map[string]int64{}
	for i := range crashtest.Accounts {
		balances[strconv.Itoa(i)] = crashtest.Balance
	}
	for _, o := range w.ops {
		a := o.answered()
		if a == nil || !o.inFile() {
			continue
		}
		moved, refused := journal[o.name], declined[o.name]
		delete(journal, o.name)
		delete(declined, o.name)
		balances[o.req.GetLabels()["from"]] -= moved * o.req.GetNumber()
		balances[o.req.GetLabels()["to"]] += moved * o.req.GetNumber()
		var wantMoved, wantRefused int64
		switch {
		case a.unknown && o.method == "InTransaction":
			w.violate("%s %s: answered OUTCOME_UNKNOWN", o.method, o.name)
		case a.unknown:
		case a.code == codes.OK:
			wantMoved = 1
		case a.code == codes.FailedPrecondition:
			wantRefused = 1
		}
		if moved != wantMoved || refused != wantRefused {
			w.violate("%s %s: in the journal %d times, declined %d times, and answered %v, unknown %t",
				o.method, o.name, moved, refused, a.code, a.unknown)
		}
	}
	if len(journal)+len(declined) > 0 {
		w.violate("the journal has calls that nobody made: %v %v", journal, declined)
	}
	sum := int64(0)
	for account, balance := range w.numbers(crashtest.AccountsBucket) {
		sum += balance
		if balance != balances[account] {
			w.violate("account %s has %d, and by the journal %d", account, balance, balances[account])
		}
	}
	if sum != crashtest.Accounts*crashtest.Balance {
		w.violate("%d in all accounts, and %d at first", sum, crashtest.Accounts*crashtest.Balance)
	}
}

// numbers reads a bucket of the ledger.
func (w *world) numbers(bucket []byte) map[string]int64 {
	all := map[string]int64{}
	w.view(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(k, v []byte) error {
			all[string(k)] = int64(binary.BigEndian.Uint64(v))
			return nil
		})
	})
	return all
}

// auditOp compares a call's effects outside of the file with its answer.
func (w *world) auditOp(o *op) {
	a := o.answered()
	if a == nil {
		return // reported already
	}
	n := 0
	for attempt, times := range o.effects {
		n += times
		if times > 1 {
			w.violate("%s %s: %d effects in attempt %d", o.method, o.name, times, attempt)
		}
	}
	most := 1
	if o.method == "Rerun" {
		most = 2
	}
	if n > most {
		w.violate("%s %s: %d effects", o.method, o.name, n)
	}
	switch {
	case a.unknown:
	case o.do == "refuse" && n > 0:
		w.violate("%s %s: %d effects and answered %v", o.method, o.name, n, a.code)
	case o.do != "refuse" && n == 0:
		w.violate("%s %s: no effect and answered %v", o.method, o.name, a.code)
	}
}
