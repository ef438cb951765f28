package crashtest_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/oncerpc/oncerpc/interceptor"
	"github.com/oncerpc/oncerpc/interceptor/crashtest"
	"github.com/oncerpc/oncerpc/interceptor/internal/testpb"
	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// op is one logical call: a name, from which its key is made, and a request.
type op struct {
	name, method, do string
	req              *testpb.Request

	mu      sync.Mutex
	first   *answer
	effects map[int]int // outside of the file, by attempt
}

// answer is a definite one, in a form that can be compared.
type answer struct {
	code    codes.Code
	unknown bool // OUTCOME_UNKNOWN
	bytes   string
	st      interceptor.Status
}

// methods and how often each is chosen.
var methods = []string{"Plain", "Plain", "Rerun", "Rerun", "InTransaction", "InTransaction", "Required"}

func newOp(name string) *op {
	o := &op{name: name, method: methods[rand.N(len(methods))], effects: map[int]int{}}
	switch rand.N(12) {
	case 0, 1:
		o.do = "busy"
	case 2:
		o.do = "refuse"
	case 3:
		o.do = "fail"
	}
	o.req = &testpb.Request{
		Text:   name,
		Number: 1 + rand.Int64N(50),
		Labels: map[string]string{
			"do":   o.do,
			"from": strconv.Itoa(rand.N(crashtest.Accounts)),
			"to":   strconv.Itoa(rand.N(crashtest.Accounts)),
		},
	}
	return o
}

// inFile reports whether the effect of a call is in the file.
func (o *op) inFile() bool { return o.method == "InTransaction" || o.method == "Required" }

func (o *op) key() string { return interceptor.KeyFor("crash", o.name) }

// connect returns a connection with the client interceptor.
func connect(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	once := interceptor.NewClient(interceptor.WithBackoff(2*time.Millisecond, 20*time.Millisecond), interceptor.WithAttempts(8))
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithChainUnaryInterceptor(once.Unary),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.5, MaxDelay: 20 * time.Millisecond},
			MinConnectTimeout: 10 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	require.NoError(t, err)
	return conn
}

const service = "/oncerpc.internal.testpb.TestService/"

// call makes one call. definite: the answer will not change any more. Otherwise the call has to be made again.
func (o *op) call(ctx context.Context, conn *grpc.ClientConn, t *tally) (a *answer, definite bool) {
	var header, trailer metadata.MD
	resp := &testpb.Response{}
	err := conn.Invoke(ctx, service+o.method, o.req, resp, interceptor.Key(o.key()), grpc.Header(&header), grpc.Trailer(&trailer))
	st, reason := interceptor.StatusOf(trailer), interceptor.ReasonOf(err)
	if st != interceptor.StatusNone {
		t.saw(string(st))
	}
	if reason != oncerpcv1.Reason_REASON_UNSPECIFIED {
		t.saw(reason.String())
	}
	a = &answer{code: status.Code(err), unknown: reason == oncerpcv1.Reason_OUTCOME_UNKNOWN, st: st}
	if err == nil {
		a.bytes = marshal(resp) + "\n" + strings.Join(header.Get("ledger-run"), "\n")
	} else {
		a.bytes = marshal(status.Convert(err).Proto()) + "\n" + strings.Join(trailer.Get(interceptor.MetadataOutcome), "\n")
	}
	switch reason {
	case oncerpcv1.Reason_REASON_UNSPECIFIED:
	case oncerpcv1.Reason_OUTCOME_UNKNOWN:
		return a, true
	case oncerpcv1.Reason_IN_PROGRESS, oncerpcv1.Reason_STORE_UNAVAILABLE, oncerpcv1.Reason_DRAINING, oncerpcv1.Reason_OVERLOADED:
		return a, false
	default:
		t.violate("%s %s: answered %v", o.method, o.name, err)
		return a, true
	}
	switch st {
	case interceptor.StatusExecuted, interceptor.StatusReplayed, interceptor.StatusJoined:
		return a, true
	case interceptor.StatusReleased, interceptor.StatusUnrecorded:
		return a, false
	}
	if !slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled}, a.code) {
		t.violate("%s %s: answered %v without a status", o.method, o.name, err)
	}
	return a, false
}

func marshal(m proto.Message) string {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// settle compares a definite answer with the first one.
func (o *op) settle(a *answer, t *tally) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.first == nil {
		o.first = a
	}
	if o.first.code != a.code || o.first.unknown != a.unknown || o.first.bytes != a.bytes && !a.unknown {
		t.violate("%s %s: answered %v (%s, unknown %t) and then %v (%s, unknown %t), %.80q and %.80q", o.method, o.name,
			o.first.code, o.first.st, o.first.unknown, a.code, a.st, a.unknown, o.first.bytes, a.bytes)
	}
}

func (o *op) answered() *answer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.first
}

func (o *op) effect(attempt int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.effects[attempt]++
}
