package main

import (
	"encoding/binary"
	"fmt"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/oncerpc/oncerpc/store/boltstore"
)

// auditing is what the ledger says, beside what the clients were told.
type auditing struct {
	answered int   // orders whose clients were told that they are done
	inLedger int   // transfers in the ledger
	lost     int   // orders that were answered and are not there
	twice    int   // orders that are there more than once
	wrong    int   // answers that name another transfer
	moved    int64 // what bob has got, in cents
	ordered  int64 // what he should have got
	total    int64 // money in all
}

// audit opens the ledger of a dead server and compares it with what the clients were told.
func audit(file string, done []transfer) (a auditing, err error) {
	records, err := boltstore.Open(file)
	if err != nil {
		return a, err
	}
	made := map[string][]uint64{} // order → numbers
	err = records.View(func(tx *bbolt.Tx) error {
		a.moved = balance(tx, "bob") - opening
		a.total = balance(tx, "alice") + balance(tx, "bob")
		return tx.Bucket(journal).ForEach(func(k, order []byte) error {
			a.inLedger++
			made[string(order)] = append(made[string(order)], binary.BigEndian.Uint64(k))
			return nil
		})
	})
	if err != nil {
		return a, err
	}
	for _, t := range done {
		a.answered++
		a.ordered += t.cents
		numbers := made[t.order]
		switch {
		case len(numbers) == 0:
			a.lost++
		case len(numbers) > 1:
			a.twice++
		case numbers[0] != t.number:
			a.wrong++
		}
	}
	return a, records.Close()
}

func (a auditing) clean() bool {
	return a.lost == 0 && a.twice == 0 && a.wrong == 0 && a.inLedger == a.answered && a.moved == a.ordered && a.total == 2*opening
}

// String is the audit as a reader wants it.
func (a auditing) String() string {
	var b strings.Builder
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(&b, "   "+format+"\n", args...) }
	line("orders answered        %d", a.answered)
	line("transfers in ledger    %d", a.inLedger)
	line("orders lost            %d", a.lost)
	line("orders done twice      %d", a.twice)
	line("answers that are wrong %d", a.wrong)
	line("bob should have got    %s", euros(a.ordered))
	line("bob has got            %s", euros(a.moved))
	line("money in all           %s of %s", euros(a.total), euros(2*opening))
	if a.clean() {
		line("The audit is clean: every transfer happened exactly once.")
	} else {
		line("The audit is not clean: the ledger and the answers differ.")
	}
	return b.String()
}

func euros(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }
