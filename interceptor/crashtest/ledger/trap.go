package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

// parent is the pipe to the test's process. A line that was written survives this process.
type parent struct{ pipe *os.File }

func (p parent) tell(words ...any) {
	if _, err := p.pipe.Write(fmt.Appendln(nil, words...)); err != nil {
		os.Exit(3) // nobody is there
	}
}

// trap ends this process when a point is reached for the k-th time.
type trap struct {
	parent
	point   string
	left    atomic.Int64
	commits atomic.Int64
}

func newTrap(p parent, point string, k int) *trap {
	t := &trap{parent: p, point: point}
	t.left.Store(int64(k))
	return t
}

func (t *trap) at(point string) {
	switch {
	case point == "commit.durable":
		t.commits.Add(1)
	case point == "commit.applied" && t.point == "commit.soon" && t.left.Add(-1) <= 0:
		go t.soon(t.commits.Load())
	}
	if point == t.point && t.left.Add(-1) == 0 {
		t.spring()
	}
}

// soon lets the commit that is about to begin go on for a while. If it is over then, the next one is tried.
func (t *trap) soon(commits int64) {
	runtime.LockOSThread()
	end := time.Now().Add(rand.N(time.Millisecond))
	for time.Now().Before(end) {
		if t.commits.Load() != commits {
			return
		}
	}
	t.spring()
}

func (t *trap) spring() {
	t.tell("point", t.point)
	t.kill()
}

func (t *trap) kill() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {}
}
