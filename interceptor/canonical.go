package interceptor

import (
	"cmp"
	"errors"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// canonicalBytes encodes a request so that requests that are equal have equal bytes, also on servers that know
// different fields of it: every message's records stand in the order of their field numbers, and unknown ones, whose
// insides nobody may look into, stand among them as they came. Dropped fields are left out.
func canonicalBytes(pl *plan, req proto.Message) ([]byte, error) {
	in, err := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(req)
	if err != nil {
		return nil, err
	}
	return canonicalize(pl, in)
}

func canonicalize(pl *plan, in []byte) ([]byte, error) {
	c := canonical{in: in, out: make([]byte, len(in)), at: len(in)}
	var few [16]record
	c.records = few[:0]
	if err := c.message(pl, 0, len(in)); err != nil {
		return nil, err
	}
	return c.out[c.at:], nil
}

// canonical writes a message's canonical bytes from the end to the front, since a message's length, which stands before
// it, is known only when it is written. So every byte is written once, however deep it lies.
type canonical struct {
	in, out []byte
	at      int         // out[at:] is written
	records []record    // of all messages that are being written, as a stack
	groups  map[int]int // where groups end in in, by where their content starts
}

// record is one record, or several neighbours that are copied together.
type record struct {
	num        protowire.Number
	start, end int   // tag and value in in
	message    *plan // of the value; nil: it is copied
}

// message writes the records in in[from:to].
func (c *canonical) message(pl *plan, from, to int) error {
	base := len(c.records)
	sorted, err := c.scan(pl, from, to)
	if err != nil {
		return err
	}
	if !sorted {
		slices.SortFunc(c.records[base:], func(a, b record) int {
			return cmp.Or(cmp.Compare(a.num, b.num), cmp.Compare(a.start, b.start))
		})
	}
	for len(c.records) > base {
		r := c.records[len(c.records)-1]
		c.records = c.records[:len(c.records)-1]
		if err := c.write(r); err != nil {
			return err
		}
	}
	return nil
}

// scan pushes the records in in[from:to] that are not dropped, and reports whether they are in order.
func (c *canonical) scan(pl *plan, from, to int) (sorted bool, err error) {
	base := len(c.records)
	sorted = true
	for at := from; at < to; {
		num, typ, n := protowire.ConsumeTag(c.in[at:to])
		if n < 0 {
			return false, protowire.ParseError(n)
		}
		start := at
		if at, err = c.skip(num, typ, start+n, to); err != nil {
			return false, err
		}
		r := record{num: num, start: start, end: at}
		if f := pl.fields[num]; f != nil {
			if f.dropped {
				continue
			}
			if f.wire == typ {
				r.message = f.message
			}
		}
		if len(c.records) > base {
			last := &c.records[len(c.records)-1]
			if r.message == nil && last.message == nil && last.num == num && last.end == start {
				last.end = at
				continue
			}
			sorted = sorted && last.num <= num
		}
		c.records = append(c.records, r)
	}
	return sorted, nil
}

// write puts one record before what is written.
func (c *canonical) write(r record) error {
	if r.message == nil {
		c.put(c.in[r.start:r.end])
		return nil
	}
	_, typ, n := protowire.ConsumeTag(c.in[r.start:r.end])
	from := r.start + n
	if typ == protowire.StartGroupType {
		end := c.groups[from]
		c.put(c.in[end:r.end])
		if err := c.message(r.message, from, end); err != nil {
			return err
		}
	} else {
		_, m := protowire.ConsumeVarint(c.in[from:r.end])
		end := c.at
		if err := c.message(r.message, from+m, r.end); err != nil {
			return err
		}
		var length [10]byte
		c.put(protowire.AppendVarint(length[:0], uint64(end-c.at)))
	}
	c.put(c.in[r.start:from])
	return nil
}

func (c *canonical) put(b []byte) {
	c.at -= len(b)
	copy(c.out[c.at:], b)
}

// skip returns where the value that starts at from ends, its end tag included if it is a group.
func (c *canonical) skip(num protowire.Number, typ protowire.Type, from, to int) (int, error) {
	if typ != protowire.StartGroupType {
		n := protowire.ConsumeFieldValue(num, typ, c.in[from:to])
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		return from + n, nil
	}
	end, ok := c.groups[from]
	if !ok {
		return c.skipGroup(num, from, to)
	}
	_, _, n := protowire.ConsumeTag(c.in[end:to])
	return end + n, nil
}

// skipGroup notes the ends of all groups inside too, so that groups in groups are not read once for every level.
func (c *canonical) skipGroup(num protowire.Number, from, to int) (int, error) {
	if c.groups == nil {
		c.groups = make(map[int]int)
	}
	type group struct {
		num  protowire.Number
		from int
	}
	open := []group{{num, from}}
	for at := from; at < to; {
		num, typ, n := protowire.ConsumeTag(c.in[at:to])
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		last := open[len(open)-1]
		switch typ {
		case protowire.StartGroupType:
			open = append(open, group{num, at + n})
			at += n
		case protowire.EndGroupType:
			if num != last.num {
				return 0, errors.New("mismatching end group marker")
			}
			c.groups[last.from] = at
			at += n
			if open = open[:len(open)-1]; len(open) == 0 {
				return at, nil
			}
		default:
			m := protowire.ConsumeFieldValue(num, typ, c.in[at+n:to])
			if m < 0 {
				return 0, protowire.ParseError(m)
			}
			at += n + m
		}
	}
	return 0, io.ErrUnexpectedEOF
}
