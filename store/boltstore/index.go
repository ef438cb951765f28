package boltstore

// location is where a record lies: the handle of its segment, and its position in it. Zero is no location.
type location uint32

const (
	positionBits = 12
	maxPositions = 1 << positionBits
	maxHandles   = 1<<(32-positionBits) - 1
)

func at(handle, position int) location {
	return location(handle+1)<<positionBits | location(position)
}

func (l location) handle() int   { return int(l>>positionBits) - 1 }
func (l location) position() int { return int(l & (maxPositions - 1)) }

// tag is the part of an ID's hash that the index keeps.
func tag(hash uint64) uint32 { return uint32(hash >> 32) }

// index finds the locations at which the record of an ID may lie: open addressing with linear probing, eight bytes a
// slot, the tag above the location. It keeps no IDs, so every hit is verified in the record. It consists of parts
// that grow by themselves, so that no growth takes long.
type index struct {
	parts [1 << partBits]part
	len   int
}

const (
	partBits = 6
	minSlots = 8
)

type part struct {
	slots []uint64
	used  int
	bits  int // len(slots) is 1 << bits
}

func (x *index) part(tag uint32) *part { return &x.parts[tag>>(32-partBits)] }

func (p *part) home(slot uint64) int {
	return int((slot >> 32 << (32 + partBits)) >> (64 - p.bits))
}

// find appends to found the locations under tag.
func (x *index) find(tag uint32, found []location) []location {
	p := x.part(tag)
	if p.used == 0 {
		return found
	}
	mask := len(p.slots) - 1
	for i := p.home(uint64(tag) << 32); p.slots[i] != 0; i = (i + 1) & mask {
		if uint32(p.slots[i]>>32) == tag {
			found = append(found, location(p.slots[i]))
		}
	}
	return found
}

// add puts a location under tag. The caller sees to it that it is not there yet.
func (x *index) add(tag uint32, l location) {
	p := x.part(tag)
	switch {
	case p.slots == nil:
		p.resize(minSlots)
	case (p.used+1)*5 > len(p.slots)*4:
		p.resize(2 * len(p.slots))
	}
	p.insert(uint64(tag)<<32 | uint64(l))
	x.len++
}

// remove takes a location from under tag, and reports whether it was there.
func (x *index) remove(tag uint32, l location) bool {
	p := x.part(tag)
	if p.used == 0 {
		return false
	}
	slot := uint64(tag)<<32 | uint64(l)
	mask := len(p.slots) - 1
	i := p.home(slot)
	for ; p.slots[i] != slot; i = (i + 1) & mask {
		if p.slots[i] == 0 {
			return false
		}
	}
	p.clear(i)
	x.len--
	if len(p.slots) > minSlots && p.used*6 < len(p.slots) {
		p.resize(len(p.slots) / 2)
	}
	return true
}

func (p *part) insert(slot uint64) {
	mask := len(p.slots) - 1
	i := p.home(slot)
	for p.slots[i] != 0 {
		i = (i + 1) & mask
	}
	p.slots[i] = slot
	p.used++
}

// clear empties slot i and moves back those behind it that would not be found past the gap.
func (p *part) clear(i int) {
	mask := len(p.slots) - 1
	for j := (i + 1) & mask; p.slots[j] != 0; j = (j + 1) & mask {
		if (j-p.home(p.slots[j]))&mask >= (j-i)&mask {
			p.slots[i] = p.slots[j]
			i = j
		}
	}
	p.slots[i] = 0
	p.used--
}

func (p *part) resize(n int) {
	old := p.slots
	p.slots, p.used, p.bits = make([]uint64, n), 0, 0
	for 1<<p.bits < n {
		p.bits++
	}
	for _, slot := range old {
		if slot != 0 {
			p.insert(slot)
		}
	}
}
