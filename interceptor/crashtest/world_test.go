package crashtest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/oncerpc/oncerpc/interceptor/crashtest"
)

const (
	clients  = 6
	patience = 20 * time.Second // with what has to come
	lifetime = 5 * time.Second  // of a server that does not come to its point
)

// world is one file with the servers that have it, one after the other, and their clients.
type world struct {
	*tally
	exe, file, bug string
	addr           string
	lis            *os.File
	conns          []*grpc.ClientConn

	ending chan struct{} // closed: clients make no new calls
	done   sync.WaitGroup
	lives  int

	mu     sync.Mutex
	ops    []*op
	byName map[string]*op

	answers atomic.Int64 // kill at the answer that makes it 0
	victim  atomic.Pointer[child]
}

func newWorld(t *testing.T, sum *tally, callers int, exe, bug string) *world {
	t.Helper()
	w := &world{
		tally: sum, exe: exe, bug: bug, file: filepath.Join(t.TempDir(), "ledger.db"),
		ending: make(chan struct{}), byName: map[string]*op{},
	}
	w.addr, w.lis = listen(t)
	for range callers {
		conn := connect(t, w.addr)
		w.conns = append(w.conns, conn)
		w.done.Go(func() { w.client(conn) })
	}
	return w
}

// close ends the connections of a world that is over.
func (w *world) close() {
	for _, conn := range w.conns {
		conn.Close()
	}
	_ = w.lis.Close()
}

// client makes calls until the world ends, each of them until it has a definite answer.
func (w *world) client(conn *grpc.ClientConn) {
	for {
		select {
		case <-w.ending:
			return
		default:
			w.resolve(w.choose(), conn)
		}
	}
}

// choose is mostly a new call, and now and then an earlier one, which may be under way.
func (w *world) choose() *op {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.ops)
	if n > 0 {
		switch rand.N(5) {
		case 0:
			return w.ops[n-1-rand.N(min(n, clients))]
		case 1:
			return w.ops[rand.N(n)]
		}
	}
	o := newOp(fmt.Sprintf("call-%d", n))
	w.ops = append(w.ops, o)
	w.byName[o.name] = o
	return o
}

// resolve makes a call until it has a definite answer. Now and then it leaves early.
func (w *world) resolve(o *op, conn *grpc.ClientConn) {
	began := time.Now()
	for {
		timeout := patience
		if rand.N(10) == 0 {
			timeout = rand.N(4 * time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		a, definite := o.call(ctx, conn, w.tally)
		cancel()
		if definite {
			if w.answers.Add(-1) == 0 {
				w.victim.Load().shoot(crashtest.AnswerReceived)
			}
			o.settle(a, w.tally)
			return
		}
		if time.Since(began) > 3*patience {
			w.violate("%s %s: no definite answer, the last one was %v %.200q", o.method, o.name, a.code, a.bytes)
			return
		}
	}
}

func (w *world) effect(name string, attempt int) {
	w.mu.Lock()
	o := w.byName[name]
	w.mu.Unlock()
	if attempt == 2 {
		w.saw("attempt 2")
	}
	o.effect(attempt)
}

// live is one life of the server, which ends at a point.
func (w *world) live(point string) {
	w.lives++
	w.answers.Store(-1)
	c, err := startChild(w.exe, w.file, w.lis, point, often(point), w.bug, w.effect)
	if err != nil {
		w.violate("the server cannot be started: %v", err)
		return
	}
	w.victim.Store(c)
	switch {
	case point == crashtest.AnyTime:
		c.awaitGone(rand.N(100 * time.Millisecond))
		c.kill()
	case !c.awaitReady(patience):
	case point == crashtest.AnswerReceived:
		w.answers.Store(1 + rand.Int64N(20))
	case strings.HasPrefix(point, "sweep."):
		w.fill(c)
	case strings.HasPrefix(point, "close."):
		c.awaitGone(rand.N(30 * time.Millisecond))
		c.stop()
	}
	if !c.awaitGone(lifetime) {
		c.kill()
		<-c.gone
	}
	if fault := c.fault(); fault != "" {
		w.violate("%s", fault)
	}
	if c.closed {
		w.violate("the server closed its store without coming to %s", point)
	}
	w.killed(c.point)
}

// often is the how many times a point has to be reached.
func often(point string) int {
	for _, once := range []string{"create.", "open.", "sweep.", "close."} {
		if strings.HasPrefix(point, once) {
			return 1
		}
	}
	return 1 + rand.N(1+rand.N(30))
}

// fill makes records that are soon to be swept.
func (w *world) fill(c *child) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	go func() { <-c.gone; cancel() }()
	for range 2 {
		w.mu.Lock()
		o := newOp(fmt.Sprintf("brief-%d", len(w.byName)))
		o.method = "Brief"
		w.byName[o.name] = o
		w.mu.Unlock()
		o.call(ctx, w.conns[0], w.tally)
	}
}

// next is the point that was taken least often.
func (t *tally) next() (point string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	total := t.pending
	for _, n := range t.fired {
		total += n
	}
	if total >= t.kills {
		return "", false
	}
	t.pending++
	points := slices.Clone(t.points)
	rand.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	for _, p := range points {
		if point == "" || t.fired[p] < t.fired[point] {
			point = p
		}
	}
	return point, true
}

// killed counts a life by the point where it ended, empty for any time.
func (t *tally) killed(fired string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending--
	if fired == "" {
		fired = crashtest.AnyTime
	}
	t.fired[fired]++
}
