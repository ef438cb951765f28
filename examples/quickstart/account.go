package main

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc/status"

	"github.com/oncerpc/oncerpc/examples/paymentpb"
	"github.com/oncerpc/oncerpc/interceptor"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// payment is what the client got, and what the bank had taken by then.
type payment struct {
	charge  *paymentpb.Charge
	err     error
	status  interceptor.Status
	taken   int64
	charges int
}

func (p payment) String() string {
	if reason := interceptor.ReasonOf(p.err); reason != oncerpcv1.Reason_REASON_UNSPECIFIED {
		return fmt.Sprintf("is refused: %s, %s", status.Code(p.err), reason)
	}
	if p.err != nil {
		return fmt.Sprintf("fails: %v", p.err)
	}
	if p.status == interceptor.StatusNone {
		return fmt.Sprintf("is told that charge %s is made", p.charge.GetId())
	}
	return fmt.Sprintf("is told that charge %s is made (%s)", p.charge.GetId(), p.status)
}

// evidence is what the scenes brought to light.
type evidence struct{ without, with, late, reused payment }

// promise is what oncerpc says, and whether it was kept.
type promise struct {
	text string
	kept bool
}

func (e evidence) promises() []promise {
	lost := e.with.charge.GetId()
	shared := e.with.status == interceptor.StatusReplayed || e.with.status == interceptor.StatusJoined
	refused := interceptor.ReasonOf(e.reused.err) == oncerpcv1.Reason_KEY_REUSED
	return []promise{
		{"without oncerpc the retry took the money twice", e.without.charges == 2 && e.without.taken == 2*amount},
		{"with it the money was taken once", e.with.charges == 1 && e.with.taken == amount},
		{"the retry got the answer that was lost", shared && lost == "ch_1"},
		{"another client got it too, after the restart", e.late.status == interceptor.StatusReplayed &&
			e.late.charge.GetId() == lost && e.late.charges == 1},
		{"the key was refused for another amount", refused && e.reused.charges == 1},
	}
}

// account writes down what happens, in the order in which it happens.
type account struct {
	mu     sync.Mutex
	w      io.Writer
	scenes int
	err    error // of the first write that failed
}

func (a *account) title(format string, args ...any) { a.printf(format+"\n", args...) }

func (a *account) scene(text string) {
	a.scenes++
	a.printf("\n%d. %s\n", a.scenes, text)
}

func (a *account) event(who, format string, args ...any) {
	a.printf("   %-9s%s\n", who+":", fmt.Sprintf(format, args...))
}

// verdict lists the promises, and returns an error if one was not kept.
func (a *account) verdict(promises []promise) error {
	a.printf("\nSo:\n")
	var broken []error
	for _, p := range promises {
		word := "ok"
		if !p.kept {
			word = "BROKEN"
			broken = append(broken, fmt.Errorf("not kept: %s", p.text))
		}
		a.printf("   %-7s%s\n", word, p.text)
	}
	return errors.Join(append(broken, a.err)...)
}

func (a *account) printf(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := fmt.Fprintf(a.w, format, args...); err != nil && a.err == nil {
		a.err = err
	}
}
