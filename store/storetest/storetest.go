package storetest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/store"
)

// Subject is a store under test, empty when a case gets it.
type Subject struct {
	// Store is the store. Closing it is the matter of who opened it, by t.Cleanup.
	Store store.Store
	// Reopen ends the store that is open as a crash of its process would, and returns the one that is opened on what
	// was left. It may be called again, for a crash of that one. The former store is not used any more. Nil skips the
	// cases that need it.
	Reopen func() store.Store
	// Advance lets time pass on the store's clock. Nil says that the clock is time.Now: every case then runs in a
	// testing/synctest bubble, where time passes by time.Sleep.
	Advance func(time.Duration)
}

// Run tests a store against the contract of package store. It calls open once beforehand, to see what the subject
// says of itself, and then once for every case, with the case's own t. Cases that the store cannot be put to are
// skipped, and say why.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	var bubble bool
	opened := t.Run("open", func(t *testing.T) { bubble = open(t).Advance == nil })
	if !opened {
		return
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.cases {
				t.Run(c.name, func(t *testing.T) {
					within(t, bubble, func(t *testing.T) { c.run(newCheck(t, open(t), bubble)) })
				})
			}
		})
	}
}

type group struct {
	name  string
	cases []testCase
}

type testCase struct {
	name string
	run  func(c *check)
}

var groups = []group{
	{"begin", beginCases},
	{"takeover", takeoverCases},
	{"finish", finishCases},
	{"expire", expireCases},
	{"values", valueCases},
	{"context", contextCases},
	{"race", raceCases},
	{"wait", waitCases},
	{"renew", renewCases},
	{"resolve", resolveCases},
	{"list", listCases},
	{"reopen", reopenCases},
}

// within calls run in a bubble or as it is.
func within(t *testing.T, bubble bool, run func(t *testing.T)) {
	if bubble {
		synctest.Test(t, run)
		return
	}
	run(t)
}

// testingT is what the cases need of a *testing.T. The suite's own tests give them one that only takes notes.
type testingT interface {
	require.TestingT
	Helper()
	Context() context.Context
	Skip(args ...any)
}
