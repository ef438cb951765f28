package crashtest_test

import (
	"flag"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncerpc/oncerpc/interceptor/crashtest"
)

var kills = flag.Int("kills", 60, "how often servers are killed")

const workers = 2 // worlds at a time

// everywhere is all that a server can be killed at.
var everywhere = append([]string{crashtest.AnswerReceived, crashtest.AnyTime}, crashtest.Points...)

// run kills servers until enough have died, or a violation was found and first is set.
func run(t *testing.T, sum *tally, exe, bug string, first bool) {
	t.Helper()
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			var w *world
			for {
				point, ok := sum.next()
				if !ok || first && sum.violated() {
					break
				}
				if strings.HasPrefix(point, "create.") {
					created := newWorld(t, sum, 2, exe, bug)
					created.live(point)
					created.finish()
					continue
				}
				if w != nil && w.lives >= sum.lives {
					w.finish()
					w = nil
				}
				if w == nil {
					w = newWorld(t, sum, clients, exe, bug)
				}
				w.live(point)
			}
			if w != nil {
				w.finish()
			}
		})
	}
	group.Wait()
}

func (t *tally) violated() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.violations) > 0
}

func TestKills(t *testing.T) {
	exe := buildLedger(t)
	sum := newTally(*kills, 40, everywhere...)
	run(t, sum, exe, "", false)
	for _, p := range slices.Sorted(maps.Keys(sum.fired)) {
		t.Logf("%6d kills: %s", sum.fired[p], p)
	}
	for _, s := range slices.Sorted(maps.Keys(sum.seen)) {
		t.Logf("%6d times: %s", sum.seen[s], s)
	}
	require.Empty(t, sum.violations)
	for _, p := range append(crashtest.Points, crashtest.AnswerReceived) {
		require.GreaterOrEqual(t, sum.fired[p], *kills/40, "kills at %s", p)
	}
	for _, s := range []string{"replayed", "OUTCOME_UNKNOWN", "attempt 2"} {
		require.Positive(t, sum.seen[s], "%s was not seen", s)
	}
}

// TestPlantedBugs kills servers that have a bug, mostly where it shows, and requires that the audit finds it. A long run
// kills them everywhere.
func TestPlantedBugs(t *testing.T) {
	exe := buildLedger(t)
	for bug, points := range map[string][]string{
		crashtest.RecordAfterCommit:  {"transact.returned", "finish.before"},
		crashtest.TokenUnchecked:     {crashtest.AnswerReceived},
		crashtest.HoldRerun:          {"handler.effect", "finish.before"},
		crashtest.AnswerBeforeCommit: {"finish.before", crashtest.AnswerReceived},
	} {
		t.Run(bug, func(t *testing.T) {
			sum := newTally(200, 6, points...)
			if *kills >= 1000 {
				sum = newTally(600, 20, everywhere...)
			}
			run(t, sum, exe, bug, true)
			require.NotEmpty(t, sum.violations, "the audit has found nothing")
			n := 0
			for _, fired := range sum.fired {
				n += fired
			}
			t.Logf("after %d kills: %s", n, sum.violations[0])
		})
	}
}
