package interceptor

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	oncerpcv1 "github.com/oncerpc/oncerpc/proto/oncerpc/v1"
)

// plan is what the canonical form has to know of a message type. It never changes.
type plan struct {
	desc   protoreflect.MessageDescriptor
	key    protoreflect.FieldDescriptor       // of a request: its key field, or nil
	fields map[protowire.Number]*plannedField // those that are dropped or hold messages; all others are copied
}

type plannedField struct {
	dropped bool
	wire    protowire.Type // of a message
	message *plan
}

// fieldSources are the policies that may name the key field and ignored fields of a method's request; each may be nil.
type fieldSources struct{ option, schema, fallback *oncerpcv1.MethodPolicy }

// ignored returns the ignore_fields that hold, and whether each has to exist.
func (s fieldSources) ignored() (paths []string, required bool) {
	for _, p := range []*oncerpcv1.MethodPolicy{s.option, s.schema} {
		if len(p.GetIgnoreFields()) > 0 {
			return p.GetIgnoreFields(), true
		}
	}
	return s.fallback.GetIgnoreFields(), false
}

// plans makes plans and keeps them. It is safe for concurrent use.
type plans struct {
	mu       sync.Mutex
	requests map[planKey]*plan
	messages map[protoreflect.MessageDescriptor]*plan // below requests, where no path of a policy leads
}

type planKey struct {
	desc protoreflect.MessageDescriptor
	from fieldSources
}

// maxPlans bounds what is kept for servers that make new descriptors all the time.
const maxPlans = 10_000

func newPlans() *plans {
	p := &plans{}
	p.reset()
	return p
}

func (p *plans) reset() {
	p.requests = make(map[planKey]*plan)
	p.messages = make(map[protoreflect.MessageDescriptor]*plan)
}

// request returns the plan of a request type under the policies of its method.
func (p *plans) request(desc protoreflect.MessageDescriptor, from fieldSources) (*plan, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pl, ok := p.requests[planKey{desc, from}]; ok {
		return pl, nil
	}
	ignored, err := ignoredPaths(desc, from)
	if err != nil {
		return nil, err
	}
	key, err := keyField(desc, from)
	if err != nil {
		return nil, err
	}
	pl := &plan{desc: desc, key: key}
	planner := planner{done: p.messages, fresh: make(map[protoreflect.MessageDescriptor]*plan)}
	if err := planner.fill(pl, ignored); err != nil {
		return nil, err
	}
	if key != nil {
		pl.set(key.Number(), &plannedField{dropped: true})
	}
	if len(p.requests)+len(p.messages)+len(planner.fresh) >= maxPlans {
		p.reset()
	}
	p.requests[planKey{desc, from}] = pl
	maps.Copy(p.messages, planner.fresh)
	return pl, nil
}

func (pl *plan) set(n protowire.Number, f *plannedField) {
	if pl.fields == nil {
		pl.fields = make(map[protowire.Number]*plannedField)
	}
	pl.fields[n] = f
}

// keyField finds the field of a request that carries the key, nil if there is none.
func keyField(desc protoreflect.MessageDescriptor, from fieldSources) (protoreflect.FieldDescriptor, error) {
	if from.option != nil && from.option.KeyField != nil {
		return namedKeyField(desc, from.option.GetKeyField())
	}
	var key protoreflect.FieldDescriptor
	if from.schema != nil && from.schema.KeyField != nil {
		named, err := namedKeyField(desc, from.schema.GetKeyField())
		if err != nil {
			return nil, err
		}
		key = named
	}
	for i := range desc.Fields().Len() {
		fd := desc.Fields().Get(i)
		role, err := fieldPolicy(fd)
		if err != nil {
			return nil, err
		}
		switch {
		case !role.GetKey() || fd == key:
			continue
		case key != nil:
			return nil, fmt.Errorf("key field: %s and %s are both named; a request has one", key.FullName(), fd.FullName())
		case !canCarryKey(fd):
			return nil, fmt.Errorf("key field: %s is not a singular string", fd.FullName())
		}
		key = fd
	}
	if key == nil {
		if fd := desc.Fields().ByName(protoreflect.Name(from.fallback.GetKeyField())); fd != nil && canCarryKey(fd) {
			key = fd
		}
	}
	return key, nil
}

func namedKeyField(desc protoreflect.MessageDescriptor, name string) (protoreflect.FieldDescriptor, error) {
	fd := desc.Fields().ByName(protoreflect.Name(name))
	if fd == nil {
		return nil, fmt.Errorf("key_field: %s has no field %q; it names a top-level field", desc.FullName(), name)
	}
	if !canCarryKey(fd) {
		return nil, fmt.Errorf("key_field: %s is not a singular string", fd.FullName())
	}
	return fd, nil
}

func canCarryKey(fd protoreflect.FieldDescriptor) bool {
	return fd.Kind() == protoreflect.StringKind && !fd.IsList()
}

func fieldPolicy(fd protoreflect.FieldDescriptor) (*oncerpcv1.FieldPolicy, error) {
	role := &oncerpcv1.FieldPolicy{}
	if _, err := readOption(fd.Options(), oncerpcv1.E_Field, role); err != nil {
		return nil, fmt.Errorf("field %s: %w", fd.FullName(), err)
	}
	return role, nil
}

// paths is a tree of ignored fields: what ends here is ignored, what goes on leads to ignored fields below.
type paths struct {
	ends bool
	on   map[protoreflect.Name]*paths
}

// ignoredPaths reads the ignore_fields of a method's policies.
func ignoredPaths(desc protoreflect.MessageDescriptor, from fieldSources) (*paths, error) {
	list, required := from.ignored()
	tree := &paths{}
	for _, path := range list {
		names := strings.Split(path, ".")
		if err := checkPath(desc, names); err != nil {
			if required {
				return nil, fmt.Errorf("ignore_fields: %q: %w", path, err)
			}
			continue
		}
		at := tree
		for _, name := range names {
			at = at.grow(protoreflect.Name(name))
		}
		at.ends = true
	}
	return tree, nil
}

func checkPath(desc protoreflect.MessageDescriptor, names []string) error {
	for i, name := range names {
		fd := desc.Fields().ByName(protoreflect.Name(name))
		switch last := i == len(names)-1; {
		case fd == nil:
			return fmt.Errorf("%s has no field %q", desc.FullName(), name)
		case last:
			return nil
		case fd.IsMap():
			return fmt.Errorf("%s is a map, and a path cannot go on inside", fd.FullName())
		case fd.Message() == nil:
			return fmt.Errorf("%s is not a message, and a path cannot go on inside", fd.FullName())
		}
		desc = fd.Message()
	}
	return errors.New("it is empty")
}

func (p *paths) grow(name protoreflect.Name) *paths {
	if p.on == nil {
		p.on = make(map[protoreflect.Name]*paths)
	}
	if p.on[name] == nil {
		p.on[name] = &paths{}
	}
	return p.on[name]
}

// planner makes the plans of messages that may contain each other.
type planner struct {
	done, fresh map[protoreflect.MessageDescriptor]*plan
}

func (r *planner) fill(pl *plan, ignored *paths) error {
	for i := range pl.desc.Fields().Len() {
		fd := pl.desc.Fields().Get(i)
		if err := r.field(pl, fd, ignored.on[fd.Name()]); err != nil {
			return err
		}
	}
	var err error
	protoregistry.GlobalTypes.RangeExtensionsByMessage(pl.desc.FullName(), func(x protoreflect.ExtensionType) bool {
		err = r.field(pl, x.TypeDescriptor(), nil)
		return err == nil
	})
	return err
}

func (r *planner) field(pl *plan, fd protoreflect.FieldDescriptor, ignored *paths) error {
	role, err := fieldPolicy(fd)
	if err != nil {
		return err
	}
	if role.GetIgnore() || ignored != nil && ignored.ends {
		pl.set(fd.Number(), &plannedField{dropped: true})
		return nil
	}
	if fd.Message() == nil {
		return nil
	}
	below, err := r.message(fd.Message(), ignored)
	if err != nil {
		return err
	}
	wire := protowire.BytesType
	if fd.Kind() == protoreflect.GroupKind {
		wire = protowire.StartGroupType
	}
	pl.set(fd.Number(), &plannedField{wire: wire, message: below})
	return nil
}

func (r *planner) message(desc protoreflect.MessageDescriptor, ignored *paths) (*plan, error) {
	if ignored != nil {
		pl := &plan{desc: desc}
		return pl, r.fill(pl, ignored)
	}
	if pl, ok := r.done[desc]; ok {
		return pl, nil
	}
	if pl, ok := r.fresh[desc]; ok {
		return pl, nil
	}
	pl := &plan{desc: desc}
	r.fresh[desc] = pl
	return pl, r.fill(pl, &paths{})
}
