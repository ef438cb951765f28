package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// The form of bbolt's pages, which is that of version 2 of its file format. They are read here by themselves because
// bbolt trusts them: what it meets in a damaged page ends in a fault or in endless recursion, which nothing recovers.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2

	pageHead    = 16 // id 8, flags 2, count 2, overflow 4
	metaLen     = 64
	elementLen  = 16
	inlineHead  = 16 // root page 8, sequence 8
	noFreelist  = ^uint64(0)
	branchPage  = 0x01
	leafPage    = 0x02
	freePage    = 0x10
	bucketLeaf  = 0x01
	maxDepth    = 64
	minPageSize = 1 << 10
	maxPageSize = 16 << 20
)

type boltMeta struct {
	pageSize, root, freelist, pages, tx uint64
}

// check goes through all pages of a bbolt file, and returns an error if bbolt could not read one.
func check(f io.ReaderAt, size int64) error {
	m, err := newestMeta(f, size)
	if err != nil {
		return err
	}
	if m.pages < 3 || m.pages > uint64(size)/m.pageSize {
		return fmt.Errorf("the file is truncated: it has %d bytes and needs %d", size, m.pages*m.pageSize)
	}
	c := &checker{file: f, meta: m, seen: make([]byte, m.pages/8+1)}
	for id := range uint64(2) {
		c.mark(id)
	}
	err = c.page(m.root, 0, nil, nil)
	if err == nil && m.freelist != noFreelist {
		err = c.freelist()
	}
	if err != nil {
		return fmt.Errorf("the file is damaged: %w: restore it from a copy", err)
	}
	return nil
}

// newestMeta returns the newest meta page that is whole, as bbolt would choose it.
func newestMeta(f io.ReaderAt, size int64) (m boltMeta, err error) {
	if size == 0 {
		return m, errors.New("the file is empty, so it is no store: remove it, if nothing else uses it")
	}
	first, ok := readMeta(f, 0)
	from, to := int64(minPageSize), int64(maxPageSize)
	if ok {
		m, from, to = first, int64(first.pageSize), int64(first.pageSize)
	}
	for at := from; at <= to && at >= minPageSize; at *= 2 {
		if second, ok := readMeta(f, at); ok && second.pageSize == uint64(at) && second.tx >= m.tx {
			m = second
			break
		}
	}
	if m.pageSize < minPageSize || m.pageSize > maxPageSize || m.pageSize&(m.pageSize-1) != 0 {
		return m, errors.New("the file is no bbolt database, or both of its meta pages are damaged")
	}
	return m, nil
}

func readMeta(f io.ReaderAt, at int64) (m boltMeta, ok bool) {
	var b [pageHead + metaLen]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		return m, false
	}
	order, p := binary.NativeEndian, b[pageHead:]
	h := fnv.New64a()
	_, _ = h.Write(p[:56])
	if order.Uint32(p) != boltMagic || order.Uint32(p[4:]) != boltVersion || order.Uint64(p[56:]) != h.Sum64() {
		return m, false
	}
	return boltMeta{
		pageSize: uint64(order.Uint32(p[8:])),
		root:     order.Uint64(p[16:]),
		freelist: order.Uint64(p[32:]),
		pages:    order.Uint64(p[40:]),
		tx:       order.Uint64(p[48:]),
	}, true
}

type checker struct {
	file io.ReaderAt
	meta boltMeta
	seen []byte // a bit for each page
}

// mark notes that a page is in use, and reports whether it was already.
func (c *checker) mark(id uint64) bool {
	bit := byte(1) << (id % 8)
	was := c.seen[id/8]&bit != 0
	c.seen[id/8] |= bit
	return was
}

// read returns a page with its overflow.
func (c *checker) read(id uint64) ([]byte, error) {
	if id < 2 || id >= c.meta.pages {
		return nil, fmt.Errorf("page %d is out of range", id)
	}
	head := make([]byte, c.meta.pageSize)
	if _, err := c.file.ReadAt(head, int64(id*c.meta.pageSize)); err != nil {
		return nil, err
	}
	order := binary.NativeEndian
	n := 1 + uint64(order.Uint32(head[12:]))
	if order.Uint64(head) != id || n > c.meta.pages-id {
		return nil, fmt.Errorf("page %d has a wrong header", id)
	}
	for i := range n {
		if c.mark(id + i) {
			return nil, fmt.Errorf("page %d is used twice", id+i)
		}
	}
	if n == 1 {
		return head, nil
	}
	all := make([]byte, n*c.meta.pageSize)
	_, err := c.file.ReadAt(all, int64(id*c.meta.pageSize))
	return all, err
}

// page checks a page of a bucket and all below it. Its keys must be from low to before high, nil being no bound.
func (c *checker) page(id uint64, depth int, low, high []byte) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d is too deep", id)
	}
	b, err := c.read(id)
	if err != nil {
		return err
	}
	return c.elements(b, depth, low, high)
}

// elements checks the elements of a page, or of a bucket that is kept inside a value.
func (c *checker) elements(b []byte, depth int, low, high []byte) error {
	order := binary.NativeEndian
	id, flags, count := order.Uint64(b), order.Uint16(b[8:]), int(order.Uint16(b[10:]))
	if flags != leafPage && flags != branchPage || flags == branchPage && count == 0 ||
		pageHead+count*elementLen > len(b) {
		return fmt.Errorf("page %d has a wrong header", id)
	}
	elements := make([]element, count)
	for i := range elements {
		e, ok := readElement(b, flags, i)
		if !ok {
			return fmt.Errorf("page %d: element %d is out of range", id, i)
		}
		if i > 0 && bytes.Compare(elements[i-1].key, e.key) >= 0 ||
			bytes.Compare(e.key, low) < 0 || high != nil && bytes.Compare(e.key, high) >= 0 {
			return fmt.Errorf("page %d: keys out of order", id)
		}
		elements[i] = e
	}
	for i, e := range elements {
		var err error
		switch {
		case flags == branchPage && i+1 < count:
			err = c.page(e.child, depth+1, e.key, elements[i+1].key)
		case flags == branchPage:
			err = c.page(e.child, depth+1, e.key, high)
		case e.bucket:
			err = c.bucket(e.value, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type element struct {
	key, value []byte
	child      uint64 // in a branch page
	bucket     bool   // in a leaf page
}

func readElement(b []byte, flags uint16, i int) (e element, ok bool) {
	order := binary.NativeEndian
	at := pageHead + i*elementLen
	head := b[at : at+elementLen]
	pos, keyLen, valueLen := order.Uint32(head), order.Uint32(head[4:]), uint32(0)
	if flags == leafPage {
		pos, keyLen, valueLen = order.Uint32(head[4:]), order.Uint32(head[8:]), order.Uint32(head[12:])
		e.bucket = order.Uint32(head)&bucketLeaf != 0
	} else {
		e.child = order.Uint64(head[8:])
	}
	if uint64(at)+uint64(pos)+uint64(keyLen)+uint64(valueLen) > uint64(len(b)) || pos < elementLen {
		return e, false
	}
	b = b[at+int(pos):]
	e.key, e.value = b[:keyLen], b[keyLen:keyLen+valueLen]
	return e, true
}

func (c *checker) bucket(v []byte, depth int) error {
	if len(v) < inlineHead {
		return errors.New("a bucket is too short")
	}
	if root := binary.NativeEndian.Uint64(v); root != 0 {
		return c.page(root, depth, nil, nil)
	}
	if len(v) < inlineHead+pageHead || depth > maxDepth {
		return errors.New("a bucket is too short, or too deep")
	}
	return c.elements(v[inlineHead:], depth, nil, nil)
}

// freelist checks that no page is both free and in use.
func (c *checker) freelist() error {
	b, err := c.read(c.meta.freelist)
	if err != nil {
		return err
	}
	order := binary.NativeEndian
	count, ids := uint64(order.Uint16(b[10:])), b[pageHead:]
	if count == 0xffff {
		count, ids = order.Uint64(ids), ids[8:]
	}
	if order.Uint16(b[8:]) != freePage || count > uint64(len(ids)/8) {
		return errors.New("the free list has a wrong header")
	}
	for ; count > 0; count, ids = count-1, ids[8:] {
		if id := order.Uint64(ids); id < 2 || id >= c.meta.pages || c.mark(id) {
			return fmt.Errorf("page %d is both free and in use, or out of range", id)
		}
	}
	return nil
}
