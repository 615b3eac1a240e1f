package boltcheck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
)

// The format of version 2, all little endian as on the machines it runs on.
const (
	magic      = 0xED0CDAED
	version    = 2
	headerSize = 16 // id u64, flags u16, count u16, overflow u32
	elemSize   = 16
	sumOffset  = 56 // of the meta page's checksum, behind its header
	noFreelist = ^uint64(0)

	branchPage = 1
	leafPage   = 2
	bucketFlag = 1

	maxOverflow = 1 << 18 // pages of one, a GiB: more is nonsense
	maxDepth    = 32
)

// File checks the file at path, which nobody may be writing. The error says
// where it is damaged.
func File(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	c := check{file: f, seen: make(map[uint64]bool)}
	root, err := c.metas()
	if err != nil {
		return err
	}
	return c.tree(root, nil, nil, 0)
}

// check is one reading of a file.
type check struct {
	file     *os.File
	pageSize uint64
	high     uint64 // pages from here on are not in use
	seen     map[uint64]bool
}

var order = binary.LittleEndian

// metas reads both meta pages and gives the root of the newer one.
func (c *check) metas() (root uint64, err error) {
	// Where the second one lies is told by the first.
	first, err := c.meta(0)
	if err != nil {
		return 0, fmt.Errorf("meta page 0: %w", err)
	}
	c.pageSize = uint64(order.Uint32(first[8:]))
	if c.pageSize < 1024 || c.pageSize > 1<<16 || c.pageSize&(c.pageSize-1) != 0 {
		return 0, fmt.Errorf("meta page 0: pages of %d bytes", c.pageSize)
	}
	second, err := c.meta(int64(c.pageSize))
	if err != nil {
		return 0, fmt.Errorf("meta page 1: %w", err)
	}
	newer := first
	if order.Uint64(second[48:]) > order.Uint64(first[48:]) {
		newer = second
	}
	c.high = order.Uint64(newer[40:])
	if list := order.Uint64(newer[32:]); list != noFreelist {
		c.seen[list] = true
	}
	return order.Uint64(newer[16:]), nil
}

// meta reads the meta page at an offset: magic u32, version u32, page size u32,
// flags u32, root u64, sequence u64, free list u64, high water u64, transaction
// u64, checksum u64.
func (c *check) meta(at int64) ([]byte, error) {
	page := make([]byte, headerSize+sumOffset+8)
	if _, err := c.file.ReadAt(page, at); err != nil {
		return nil, fmt.Errorf("the file is cut short: %w", err)
	}
	m := page[headerSize:]
	sum := fnv.New64a()
	sum.Write(m[:sumOffset])
	switch {
	case order.Uint32(m) != magic || order.Uint32(m[4:]) != version:
		return nil, errors.New("it is not bbolt's")
	case order.Uint64(m[sumOffset:]) != sum.Sum64():
		return nil, errors.New("it does not match its checksum")
	}
	return m, nil
}

// tree checks the page id and what is below it. All keys must be at least from
// and less than to; nil is no bound.
func (c *check) tree(id uint64, from, to []byte, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d: the tree is deeper than %d", id, maxDepth)
	}
	page, err := c.page(id)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return c.elements(page, from, to, depth, fmt.Sprintf("page %d", id))
}

// page reads a page with its overflow.
func (c *check) page(id uint64) ([]byte, error) {
	if id < 2 || id >= c.high {
		return nil, fmt.Errorf("it is outside of the %d pages in use", c.high)
	}
	head := make([]byte, headerSize)
	if _, err := c.file.ReadAt(head, int64(id*c.pageSize)); err != nil {
		return nil, fmt.Errorf("the file is cut short: %w", err)
	}
	if own := order.Uint64(head); own != id {
		return nil, fmt.Errorf("it says that it is page %d", own)
	}
	over := uint64(order.Uint32(head[12:]))
	if over > maxOverflow || id+over >= c.high {
		return nil, fmt.Errorf("it goes on for %d pages, beyond the %d in use", over, c.high)
	}
	for i := id; i <= id+over; i++ {
		if c.seen[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		c.seen[i] = true
	}
	page := make([]byte, (over+1)*c.pageSize)
	if _, err := c.file.ReadAt(page, int64(id*c.pageSize)); err != nil {
		return nil, fmt.Errorf("the file is cut short: %w", err)
	}
	return page, nil
}

// elements checks the elements of a page, which may lie inside of another one.
func (c *check) elements(page, from, to []byte, depth int, where string) error {
	flags, count := order.Uint16(page[8:]), int(order.Uint16(page[10:]))
	if flags != branchPage && flags != leafPage {
		return fmt.Errorf("%s: it is of no kind that can be there (%#x)", where, flags)
	}
	if headerSize+count*elemSize > len(page) || flags == branchPage && count == 0 {
		return fmt.Errorf("%s: it has %d elements", where, count)
	}
	var last []byte
	for i := range count {
		e, err := element(page, i, flags)
		if err != nil {
			return fmt.Errorf("%s, element %d: %w", where, i, err)
		}
		switch {
		case i > 0 && bytes.Compare(last, e.key) >= 0, from != nil && bytes.Compare(e.key, from) < 0, to != nil && bytes.Compare(e.key, to) >= 0:
			return fmt.Errorf("%s, element %d: its key is out of order", where, i)
		}
		last = e.key
		switch {
		case flags == branchPage:
			end := to
			if i+1 < count {
				next, err := element(page, i+1, flags)
				if err != nil {
					return fmt.Errorf("%s, element %d: %w", where, i+1, err)
				}
				end = next.key
			}
			err = c.tree(e.child, e.key, end, depth+1)
		case e.bucket:
			err = c.bucket(e.value, depth, fmt.Sprintf("%s, element %d", where, i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket checks a bucket: root u64, sequence u64, and its only page if the root
// is 0.
func (c *check) bucket(value []byte, depth int, where string) error {
	if len(value) < 16 {
		return fmt.Errorf("%s: a bucket of %d bytes", where, len(value))
	}
	if root := order.Uint64(value); root != 0 {
		return c.tree(root, nil, nil, depth+1)
	}
	if len(value) < 16+headerSize {
		return fmt.Errorf("%s: a bucket of %d bytes", where, len(value))
	}
	return c.elements(value[16:], nil, nil, depth+1, where)
}

// elem is an element of a branch or a leaf.
type elem struct {
	key, value []byte
	child      uint64
	bucket     bool
}

// element reads element i: in a branch pos u32, key size u32, page u64; in a
// leaf flags u32, pos u32, key size u32, value size u32. Positions count from
// the element.
func element(page []byte, i int, flags uint16) (e elem, err error) {
	at := uint64(headerSize + i*elemSize)
	raw := page[at:]
	var pos, ksize, vsize uint64
	if flags == branchPage {
		pos, ksize = uint64(order.Uint32(raw)), uint64(order.Uint32(raw[4:]))
		e.child = order.Uint64(raw[8:])
	} else {
		kind := order.Uint32(raw)
		if kind > bucketFlag {
			return e, fmt.Errorf("it is of no kind that can be there (%#x)", kind)
		}
		e.bucket = kind == bucketFlag
		pos, ksize, vsize = uint64(order.Uint32(raw[4:])), uint64(order.Uint32(raw[8:])), uint64(order.Uint32(raw[12:]))
	}
	begin := at + pos
	if begin+ksize+vsize > uint64(len(page)) {
		return e, errors.New("it ends outside of its page")
	}
	e.key, e.value = page[begin:begin+ksize], page[begin+ksize:begin+ksize+vsize]
	return e, nil
}
