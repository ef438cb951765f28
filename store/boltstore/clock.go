package boltstore

import (
	"math"
	"time"
)

// clock is the store's own: it never runs backwards within an opening, and starts no earlier than the last commit of
// the opening before.
type clock struct {
	opened time.Time // with its monotonic reading
	floor  time.Time // what the clock showed then
}

func startClock(lastCommit time.Time) clock {
	opened := time.Now()
	floor := opened.Round(0).UTC()
	if lastCommit.After(floor) {
		floor = lastCommit
	}
	return clock{opened: opened, floor: floor}
}

func (c clock) now() time.Time { return c.floor.Add(time.Since(c.opened)) }

// expired reports whether a record that expires then is absent now. The zero time never comes.
func expired(expires, now time.Time) bool { return !expires.IsZero() && !now.Before(expires) }

// later is now + d, as far as nanoseconds since 1970 reach.
func later(now time.Time, d time.Duration) time.Time {
	if n := now.UnixNano(); d > 0 && n > math.MaxInt64-int64(d) {
		return instant(math.MaxInt64)
	}
	return now.Add(d)
}

// instant and nanos are the form that times have on disk; 0 is no time.
func instant(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos).UTC()
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
