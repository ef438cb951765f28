package interceptor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// WithPolicy sets the policy of one method, "/package.Service/Method", for a schema that one cannot change. Field by
// field it goes before the schema; outcomes are merged by code. A later WithPolicy for the same method replaces an
// earlier one. p is copied.
//
// NewServer and NewClient panic if p is nil or makes no sense, if the method streams, or if it is not linked into this
// program, since a mistyped name would leave the meant method unguarded.
//
// Changing key_field or ignore_fields changes the fingerprints of requests: retries of calls made before the deploy
// are refused with KEY_REUSED after it, as are retries that meet servers of both kinds during it. A new field of a
// request does not, but give it to servers before clients send it: a server can put a field that it does not know into
// the one form that fingerprints are made of only as far as its sender did.
func WithPolicy(fullMethod string, p *oncerpcv1.MethodPolicy) Option {
	p = proto.CloneOf(p)
	return commonOption(func(o *commonOptions) {
		if o.policies == nil {
			o.policies = make(map[string]*oncerpcv1.MethodPolicy)
		}
		o.policies[fullMethod] = p
	})
}

// WithDefaultPolicy sets the policy of every unary method, field by field, where neither [WithPolicy], the schema nor
// the method's idempotency_level decides. Its key_field and ignore_fields apply to requests that have such fields. p is
// copied; nil, the default, leaves those methods to the built-in defaults.
//
// With it a client makes keys for, and retries, all methods but those without side effects: give it to clients whose
// servers honour keys everywhere. NewServer and NewClient panic if p makes no sense.
//
// Changing key_field or ignore_fields changes the fingerprints of requests: retries of calls made before the deploy
// are refused with KEY_REUSED after it, as are retries that meet servers of both kinds during it.
func WithDefaultPolicy(p *oncerpcv1.MethodPolicy) Option {
	p = proto.CloneOf(p)
	return commonOption(func(o *commonOptions) { o.defaultPolicy = p })
}

// policy is how calls of one method are treated, with every default filled in.
type policy struct {
	method     string
	guarded    bool // a policy names the method, and its keys are honoured
	idempotent bool // its idempotency_level says that a retry needs no key

	key            oncerpcv1.MethodPolicy_Key
	retention      time.Duration
	errorRetention time.Duration
	timeout        time.Duration
	wait           time.Duration
	lease          time.Duration
	rerun          bool
	maxAttempts    int
	inTransaction  bool
	classes        map[codes.Code]class

	linked    bool // the method's descriptor is known
	streaming bool
	output    protoreflect.MessageType // nil if the method or its response type is not linked

	fields fieldSources
	plan   *plan // of the linked request type, or nil
	plans  *plans
}

// requestKey returns the value of the request's key field, and "" if there is none.
func (p *policy) requestKey(req any) string {
	key, _ := p.fieldKey(req)
	return key
}

func (p *policy) fieldKey(req any) (string, error) {
	m, ok := req.(proto.Message)
	if !ok || p.streaming {
		return "", nil
	}
	r := m.ProtoReflect()
	pl, err := p.planOf(r.Descriptor())
	if err != nil || pl.key == nil {
		return "", err
	}
	return r.Get(pl.key).String(), nil
}

// planOf returns the plan of a request type. It is the linked one's but for servers that build messages at run time.
func (p *policy) planOf(desc protoreflect.MessageDescriptor) (*plan, error) {
	if p.plan != nil && p.plan.desc == desc {
		return p.plan, nil
	}
	pl, err := p.plans.request(desc, p.fields)
	if err != nil {
		return nil, fmt.Errorf("policy of %s: %w", p.method, err)
	}
	return pl, nil
}

// policies holds the policy of every method. It is safe for concurrent use.
type policies struct {
	options  map[string]*oncerpcv1.MethodPolicy
	fallback *oncerpcv1.MethodPolicy
	unlinked policy   // what methods get that are not linked
	linked   sync.Map // full method → resolution, of linked methods only: other names come from the wire
	plans    *plans
}

type resolution struct {
	policy *policy
	err    error
}

func newPolicies(c commonOptions) (*policies, error) {
	p := &policies{options: c.policies, fallback: c.defaultPolicy, plans: newPlans()}
	if err := checkPolicy(c.defaultPolicy); err != nil {
		return nil, fmt.Errorf("oncerpc: default policy: %w", err)
	}
	unlinked, err := p.settle(fieldSources{fallback: p.fallback}, nil)
	if err != nil {
		return nil, fmt.Errorf("oncerpc: default policy: %w", err)
	}
	unlinked.guarded = p.fallback != nil && unlinked.key != oncerpcv1.MethodPolicy_IGNORED
	p.unlinked = *unlinked
	for _, method := range slices.Sorted(maps.Keys(c.policies)) {
		if c.policies[method] == nil {
			return nil, fmt.Errorf("oncerpc: policy of %s: it is nil", method)
		}
		if linkedMethod(method) == nil {
			return nil, fmt.Errorf("oncerpc: policy of %s: no such method is linked into this program; "+
				"the name has the form /package.Service/Method", method)
		}
		if err := checkPolicy(c.policies[method]); err != nil {
			return nil, fmt.Errorf("oncerpc: policy of %s: %w", method, err)
		}
		if _, err := p.of(method); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// of returns the policy of a method. An error says what makes no sense in the schema.
func (p *policies) of(fullMethod string) (*policy, error) {
	if r, ok := p.linked.Load(fullMethod); ok {
		return r.(*resolution).policy, r.(*resolution).err
	}
	md := linkedMethod(fullMethod)
	if md == nil {
		unlinked := p.unlinked
		unlinked.method = fullMethod
		return &unlinked, nil
	}
	r := &resolution{}
	if r.policy, r.err = p.resolve(fullMethod, md); r.err != nil {
		r.err = fmt.Errorf("oncerpc: policy of %s: %w", fullMethod, r.err)
	}
	first, _ := p.linked.LoadOrStore(fullMethod, r)
	return first.(*resolution).policy, first.(*resolution).err
}

// linkedMethod finds the descriptor of "/package.Service/Method", nil if there is none.
func linkedMethod(fullMethod string) protoreflect.MethodDescriptor {
	service, method, ok := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	if !ok || !strings.HasPrefix(fullMethod, "/") {
		return nil
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + method))
	if err != nil {
		return nil
	}
	md, ok := d.(protoreflect.MethodDescriptor)
	if !ok || string(md.Name()) != method {
		return nil
	}
	return md
}

// resolve makes the policy of a linked method.
func (p *policies) resolve(fullMethod string, md protoreflect.MethodDescriptor) (*policy, error) {
	schema := &oncerpcv1.MethodPolicy{}
	found, err := readOption(md.Options(), oncerpcv1.E_Method, schema)
	if err != nil {
		return nil, err
	}
	if !found {
		schema = nil
	}
	from := fieldSources{option: p.options[fullMethod], schema: schema, fallback: p.fallback}
	streaming := md.IsStreamingClient() || md.IsStreamingServer()
	if streaming {
		from.fallback = nil // a default is for methods that can have keys
	}

	var level *oncerpcv1.MethodPolicy
	o, _ := md.Options().(*descriptorpb.MethodOptions)
	if o.GetIdempotencyLevel() != descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN {
		level = &oncerpcv1.MethodPolicy{Key: oncerpcv1.MethodPolicy_IGNORED.Enum()}
	}
	pol, err := p.settle(from, level)
	if err != nil {
		return nil, err
	}
	ignored := pol.key == oncerpcv1.MethodPolicy_IGNORED
	pol.method = fullMethod
	pol.linked = true
	pol.streaming = streaming
	pol.idempotent = level != nil && ignored
	if t, err := protoregistry.GlobalTypes.FindMessageByName(md.Output().FullName()); err == nil {
		pol.output = t
	}
	if streaming {
		if (from.option != nil || from.schema != nil) && !ignored {
			return nil, errors.New("key: a streaming method cannot have keys; take the policy away or say IGNORED")
		}
		return pol, nil
	}
	if pol.plan, err = p.plans.request(md.Input(), from); err != nil {
		return nil, err
	}
	pol.guarded = !ignored && (from != fieldSources{} || pol.plan.key != nil)
	return pol, nil
}

// builtIn decides what nothing else does.
var builtIn = &oncerpcv1.MethodPolicy{
	Key:         oncerpcv1.MethodPolicy_OPTIONAL.Enum(),
	Retention:   durationpb.New(24 * time.Hour),
	Timeout:     durationpb.New(time.Minute),
	Wait:        durationpb.New(5 * time.Second),
	OnCrash:     oncerpcv1.MethodPolicy_HOLD.Enum(),
	MaxAttempts: proto.Int32(3),
	Lease:       durationpb.New(30 * time.Second),
}

// settle lays the sources over each other, field by field. level is what the method's idempotency_level says.
func (p *policies) settle(from fieldSources, level *oncerpcv1.MethodPolicy) (*policy, error) {
	merged := &oncerpcv1.MethodPolicy{}
	classes := make(map[codes.Code]class)
	for _, source := range []*oncerpcv1.MethodPolicy{builtIn, from.fallback, level, from.schema, from.option} {
		source.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if fd.Enum() == nil || v.Enum() != 0 { // 0: not decided here
				merged.ProtoReflect().Set(fd, v)
			}
			return true
		})
		rules, err := outcomeClasses(source)
		if err != nil {
			return nil, err
		}
		maps.Copy(classes, rules)
	}
	if err := checkPolicy(merged); err != nil {
		return nil, err
	}
	pol := &policy{
		key:            merged.GetKey(),
		retention:      merged.GetRetention().AsDuration(),
		errorRetention: merged.GetRetention().AsDuration(),
		timeout:        merged.GetTimeout().AsDuration(),
		wait:           merged.GetWait().AsDuration(),
		lease:          merged.GetLease().AsDuration(),
		rerun:          merged.GetOnCrash() == oncerpcv1.MethodPolicy_RERUN,
		maxAttempts:    int(merged.GetMaxAttempts()),
		inTransaction:  merged.GetInTransaction(),
		classes:        classes,
		fields:         from,
		plans:          p.plans,
	}
	if merged.ErrorRetention != nil {
		pol.errorRetention = merged.GetErrorRetention().AsDuration()
	}
	return pol, nil
}

// readOption reads an option of ours into p and reports whether it is set. Descriptors that were built at run time may
// hold it as a message of another type, or as bytes.
func readOption(options proto.Message, x protoreflect.ExtensionType, p proto.Message) (found bool, err error) {
	if options == nil || !options.ProtoReflect().IsValid() {
		return false, nil
	}
	m, ours := options.ProtoReflect(), x.TypeDescriptor()
	var raw []byte
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.FullName() != ours.FullName() || fd.Message() == nil || fd.IsList() {
			return true
		}
		found = true
		raw, err = proto.Marshal(v.Message().Interface())
		return false
	})
	for b := m.GetUnknown(); err == nil && len(b) > 0; {
		num, typ, n := protowire.ConsumeField(b)
		if n < 0 {
			return false, protowire.ParseError(n)
		}
		if num == ours.Number() && typ == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(b)
			value, _ := protowire.ConsumeBytes(b[tag:])
			found = true
			raw = append(raw, value...)
		}
		b = b[n:]
	}
	if err == nil {
		err = proto.Unmarshal(raw, p)
	}
	if err != nil {
		return false, fmt.Errorf("option (%s), number %d: %w", ours.FullName(), ours.Number(), err)
	}
	return found, nil
}
