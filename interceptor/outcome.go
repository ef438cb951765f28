package interceptor

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
	"github.com/oncerpc/oncerpc/store"
)

// statusOf makes a status of a handler's error as gRPC does. One that claims to be OK is none that a client could read.
func statusOf(err error) *status.Status {
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	if st.Code() == codes.OK {
		return status.New(codes.Internal, "oncerpc: the handler returned an error with status OK")
	}
	return st
}

// outcome is what a run ended with.
type outcome struct {
	class class
	msg   *oncerpcv1.Outcome
	// whole is a response that is too large to be kept, for callers that are there already.
	whole []byte
}

// newOutcome makes the outcome of a handler's return. resp is nil on errors. An error says why the response cannot be
// kept.
func (s *Server) newOutcome(p *policy, resp any, err error, headers, trailers metadata.MD) (outcome, error) {
	o := outcome{
		class: p.classify(err),
		msg:   &oncerpcv1.Outcome{Headers: kept(headers), Trailers: kept(trailers)},
	}
	if err != nil {
		o.msg.Status, err = proto.Marshal(fit(o.msg, ownStatus(err)))
		return o, err
	}
	fit(o.msg, nil)
	msg, err := p.response(resp)
	if err != nil {
		return o, err
	}
	b, err := proto.MarshalOptions{AllowPartial: true, Deterministic: true}.Marshal(msg)
	if err != nil {
		return o, err
	}
	o.msg.ResponseType = string(msg.ProtoReflect().Descriptor().FullName())
	if len(b) > s.opts.maxResponse {
		o.msg.ResponseDropped = true
		o.whole = b
		return o, nil
	}
	o.msg.Response = b
	return o, nil
}

// response is the message that gRPC would send for what a handler returned: nil is the method's empty message.
func (p *policy) response(resp any) (proto.Message, error) {
	msg, ok := resp.(proto.Message)
	if isNil(resp) {
		switch {
		case p.output != nil:
			return p.output.New().Interface(), nil
		case ok:
			return msg.ProtoReflect().Type().New().Interface(), nil
		}
		return nil, fmt.Errorf("the handler of %s returned no response, and its type is not known here", p.method)
	}
	if !ok {
		return nil, fmt.Errorf("the response of %s is %T, not a proto.Message", p.method, resp)
	}
	if p.output != nil {
		if want, got := p.output.Descriptor().FullName(), msg.ProtoReflect().Descriptor().FullName(); want != got {
			return nil, fmt.Errorf("the response of %s is %s, not %s", p.method, got, want)
		}
	}
	return msg, nil
}

func isNil(v any) bool {
	if v == nil {
		return true
	}
	rv := reflect.ValueOf(v)
	return rv.Kind() == reflect.Pointer && rv.IsNil()
}

// ownStatus is the status of a handler's error without details of oncerpc's domain, so that what a downstream guarded
// by oncerpc answered is not taken for this server's own word.
func ownStatus(err error) *spb.Status {
	p := statusOf(err).Proto()
	p.Message = strings.ToValidUTF8(p.Message, "\uFFFD")
	p.Details = slices.DeleteFunc(p.Details, func(d *anypb.Any) bool {
		return isOurs(d) || !utf8.ValidString(d.GetTypeUrl()) // the latter could be neither sent nor stored
	})
	return p
}

func isOurs(d *anypb.Any) bool {
	info := &errdetails.ErrorInfo{}
	return d.MessageIs(info) && d.UnmarshalTo(info) == nil && info.GetDomain() == Domain
}

// end is what the store is told.
func (o outcome) end(p *policy) (store.End, error) {
	b, err := proto.Marshal(o.msg)
	if err != nil {
		return store.End{}, err
	}
	e := store.End{State: store.Done, Outcome: b, Retention: p.retention}
	switch {
	case o.class == classReleased:
		e.State = store.Released
	case o.class == classAmbiguous:
		e.Ambiguous = true
	case len(o.msg.Status) > 0 && p.errorRetention > 0:
		e.Retention = p.errorRetention
	}
	return e, nil
}

// outcomeOf reads what the store was told.
func outcomeOf(state store.State, ambiguous bool, b []byte) (outcome, error) {
	o := outcome{class: classFinal, msg: &oncerpcv1.Outcome{}}
	switch {
	case state == store.Released:
		o.class = classReleased
	case ambiguous:
		o.class = classAmbiguous
	}
	return o, proto.Unmarshal(b, o.msg)
}

// answer decodes the outcome for one caller: every caller gets a message of its own. The status is that of an error,
// and nil on OK.
func (o outcome) answer() (proto.Message, *status.Status, error) {
	if len(o.msg.Status) > 0 {
		p := &spb.Status{}
		if err := proto.Unmarshal(o.msg.Status, p); err != nil {
			return nil, nil, err
		}
		if codes.Code(p.GetCode()) == codes.OK {
			return nil, nil, errors.New("its error has status OK")
		}
		return nil, status.FromProto(p), nil
	}
	mt, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(o.msg.ResponseType))
	if err != nil {
		return nil, nil, fmt.Errorf("response type %s is not linked into this server", o.msg.ResponseType)
	}
	b := o.msg.Response
	if o.msg.ResponseDropped {
		b = o.whole
	}
	resp := mt.New().Interface()
	return resp, nil, proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(b, resp)
}

// marks is what goes out beside an answer with a stored outcome.
func (o outcome) marks(st Status, first time.Time) metadata.MD {
	md := metadata.Pairs(MetadataStatus, string(st))
	if o.class == classAmbiguous {
		md.Set(MetadataOutcome, ambiguousValue)
	}
	if t := truncated(o.msg); t != "" && st != StatusExecuted {
		md.Set(MetadataTruncated, t)
	}
	if !first.IsZero() {
		md.Set(MetadataFirstSeen, first.UTC().Format(time.RFC3339Nano))
	}
	return md
}

// stopsRetries reports whether an answer with this outcome needs the word "do not retry": only with codes that stock
// retry policies list, since the word drains the channel's retry throttle.
func (o outcome) stopsRetries(code codes.Code) bool {
	if o.class == classReleased {
		return false
	}
	switch code {
	case codes.Unavailable, codes.Aborted, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Canceled,
		codes.Internal, codes.Unknown, codes.DataLoss:
		return true
	}
	return false
}

// withRetryInfo adds a hint when to try again to a released error that is given to callers who did not run, so that a
// downstream that just said "overloaded" is not hit by all of them at once. A hint of the handler's own stands, and the
// pushback follows it. Where the hint would make the answer too large to arrive, the pushback has to do.
func (o outcome) withRetryInfo(st *status.Status) (*status.Status, time.Duration) {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return st, jitter(max(info.GetRetryDelay().AsDuration(), minWait))
		}
	}
	wait := jitter(minWait)
	with, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	if err != nil || tooLarge(o.msg, with.Proto()) {
		return st, wait
	}
	return with, wait
}
