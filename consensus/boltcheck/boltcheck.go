package boltcheck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/bits"
	"os"
)

// The file format, version 2. All numbers are little endian.
const (
	magic      = 0xED0CDAED
	version    = 2
	headerSize = 16 // id u64, flags u16, count u16, overflow u32
	elemSize   = 16
	sumOffset  = 56 // of the meta page's checksum, after the page header
	noFreelist = ^uint64(0)

	branchPage = 1
	leafPage   = 2
	bucketFlag = 1

	maxOverflow = 1 << 18 // overflow pages of one page: more than a GiB is invalid
	maxDepth    = 32
)

// Check verifies the file at path, which must not be written meanwhile. The
// error says where it is damaged.
func Check(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	c := checker{file: f, seen: make(map[uint64]bool)}
	root, err := c.metas()
	if err != nil {
		return err
	}
	return c.tree(root, nil, nil, 0)
}

// checker is the state of one verification.
type checker struct {
	file     *os.File
	pageSize uint64
	highPage uint64          // number of pages; higher page ids are not in use
	seen     map[uint64]bool // ids of the pages visited, and of the free list
}

var order = binary.LittleEndian

// metas reads both meta pages, which describe the two last committed states of the
// file, and returns the id of the root page in the newer one. It sets c.pageSize and
// c.highPage, and marks the page of the free list as used.
func (c *checker) metas() (root uint64, err error) {
	// The first meta page has the page size, which is the offset of the second.
	first, err := c.meta(0)
	if err != nil {
		return 0, fmt.Errorf("meta page 0: %w", err)
	}
	c.pageSize = uint64(order.Uint32(first[8:]))
	isPowerOfTwo := bits.OnesCount64(c.pageSize) == 1
	if c.pageSize < 1024 || c.pageSize > 1<<16 || !isPowerOfTwo {
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
	c.highPage = order.Uint64(newer[40:])
	if freelist := order.Uint64(newer[32:]); freelist != noFreelist {
		c.seen[freelist] = true
	}
	return order.Uint64(newer[16:]), nil
}

// meta reads the meta page at an offset. Its content is: magic u32, version
// u32, page size u32, flags u32, root u64, sequence u64, free list u64, number
// of pages u64, transaction u64, checksum u64.
func (c *checker) meta(offset int64) ([]byte, error) {
	page := make([]byte, headerSize+sumOffset+8)
	if _, err := c.file.ReadAt(page, offset); err != nil {
		return nil, fmt.Errorf("the file is cut short: %w", err)
	}
	m := page[headerSize:]
	sum := fnv.New64a()
	sum.Write(m[:sumOffset])
	switch {
	case order.Uint32(m) != magic || order.Uint32(m[4:]) != version:
		return nil, errors.New("not a bbolt meta page")
	case order.Uint64(m[sumOffset:]) != sum.Sum64():
		return nil, errors.New("it does not match its checksum")
	}
	return m, nil
}

// tree checks the page with the given id, which is depth levels below its root,
// and all pages below it. All keys must be at least from and less than to; a nil
// bound means that there is no limit.
func (c *checker) tree(id uint64, from, to []byte, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d: the tree is deeper than %d", id, maxDepth)
	}
	page, err := c.page(id)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return c.elements(page, from, to, depth, fmt.Sprintf("page %d", id))
}

// page reads the page with the given id and the overflow pages that continue it.
// It marks them as used, and returns an error if one of them was used before.
func (c *checker) page(id uint64) ([]byte, error) {
	if id < 2 || id >= c.highPage {
		return nil, fmt.Errorf("outside of the %d pages in use", c.highPage)
	}
	head := make([]byte, headerSize)
	if _, err := c.file.ReadAt(head, int64(id*c.pageSize)); err != nil {
		return nil, fmt.Errorf("the file is cut short: %w", err)
	}
	if header := order.Uint64(head); header != id {
		return nil, fmt.Errorf("its header has page id %d", header)
	}
	overflow := uint64(order.Uint32(head[12:]))
	if overflow > maxOverflow || id+overflow >= c.highPage {
		return nil, fmt.Errorf("it has %d overflow pages, beyond the %d pages in use", overflow, c.highPage)
	}
	for i := id; i <= id+overflow; i++ {
		if c.seen[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		c.seen[i] = true
	}
	page := make([]byte, (overflow+1)*c.pageSize)
	if _, err := c.file.ReadAt(page, int64(id*c.pageSize)); err != nil {
		return nil, fmt.Errorf("the file is cut short: %w", err)
	}
	return page, nil
}

// elements checks the elements of a page, which may be embedded in the value of
// another page, and what they refer to: the child pages of a branch page, and the
// buckets in a leaf page. from, to and depth are as for tree; where names the page
// in errors.
func (c *checker) elements(page, from, to []byte, depth int, where string) error {
	flags, count := order.Uint16(page[8:]), int(order.Uint16(page[10:]))
	if flags != branchPage && flags != leafPage {
		return fmt.Errorf("%s: invalid page type %#x", where, flags)
	}
	if headerSize+count*elemSize > len(page) || flags == branchPage && count == 0 {
		return fmt.Errorf("%s: it has %d elements", where, count)
	}
	var previousKey []byte
	for i := range count {
		e, err := element(page, i, flags)
		if err != nil {
			return fmt.Errorf("%s, element %d: %w", where, i, err)
		}
		outOfOrder := i > 0 && bytes.Compare(previousKey, e.key) >= 0
		outOfRange := from != nil && bytes.Compare(e.key, from) < 0 || to != nil && bytes.Compare(e.key, to) >= 0
		if outOfOrder || outOfRange {
			return fmt.Errorf("%s, element %d: its key is out of order", where, i)
		}
		previousKey = e.key
		switch {
		case flags == branchPage:
			childEnd := to // the keys of a child are less than the key of the next element
			if i+1 < count {
				next, err := element(page, i+1, flags)
				if err != nil {
					return fmt.Errorf("%s, element %d: %w", where, i+1, err)
				}
				childEnd = next.key
			}
			err = c.tree(e.child, e.key, childEnd, depth+1)
		case e.bucket:
			err = c.bucket(e.value, depth, fmt.Sprintf("%s, element %d", where, i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket checks a bucket, which is another tree. Its value contains the id of
// the root page u64, a sequence u64 and, if the id is 0, the root page itself.
func (c *checker) bucket(value []byte, depth int, where string) error {
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

// element decodes element i of a page of the type in flags. In a branch page it
// consists of position u32, key size u32, child page u64; in a leaf page of flags
// u32, position u32, key size u32, value size u32. The key begins at position,
// counted from the element, and the value follows the key.
func element(page []byte, i int, flags uint16) (e elem, err error) {
	offset := uint64(headerSize + i*elemSize)
	raw := page[offset:]
	var position, keySize, valueSize uint64
	if flags == branchPage {
		position, keySize = uint64(order.Uint32(raw)), uint64(order.Uint32(raw[4:]))
		e.child = order.Uint64(raw[8:])
	} else {
		kind := order.Uint32(raw)
		if kind > bucketFlag {
			return e, fmt.Errorf("invalid element flags %#x", kind)
		}
		e.bucket = kind == bucketFlag
		position, keySize, valueSize = uint64(order.Uint32(raw[4:])), uint64(order.Uint32(raw[8:])), uint64(order.Uint32(raw[12:]))
	}
	valueBegin := offset + position + keySize
	if valueBegin+valueSize > uint64(len(page)) {
		return e, errors.New("it ends outside of its page")
	}
	e.key, e.value = page[offset+position:valueBegin], page[valueBegin:valueBegin+valueSize]
	return e, nil
}
