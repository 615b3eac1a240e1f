package ledger

import (
	"slices"
	"sort"
)

// sortedList holds items in order, in chunks that copies share. It suits items of which most are
// added at an end and removed at the front: that takes constant time, and the chunks are full.
// The time to add or remove other items includes, once for many items, a move of the slice of
// chunks.
type sortedList[T any] struct {
	less       func(a, b T) bool
	chunks     []*chunk[T] // none is empty
	count      int         // number of items
	generation uint32      // chunks of earlier generations are shared with copies
}

type chunk[T any] struct {
	generation uint32
	items      []T
}

const chunkSize = 128 // items

// place is the place of an item in a list: its chunk, and its index there. The index may be one
// beyond the end of the chunk.
type place struct{ chunk, i int }

func newSortedList[T any](less func(a, b T) bool) *sortedList[T] { return &sortedList[T]{less: less} }

// Copy returns a copy, which may only be read.
func (s *sortedList[T]) Copy() *sortedList[T] {
	s.generation++
	return &sortedList[T]{less: s.less, chunks: slices.Clone(s.chunks), count: s.count}
}

// Len returns the number of items.
func (s *sortedList[T]) Len() int { return s.count }

// index returns the place of the item with an index. Its time grows with the number of chunks.
func (s *sortedList[T]) index(index int) place {
	p := place{i: index}
	for p.chunk < len(s.chunks) && p.i >= len(s.chunks[p.chunk].items) {
		p.i -= len(s.chunks[p.chunk].items)
		p.chunk++
	}
	return p
}

// seek returns the place of the first item that is not before item.
func (s *sortedList[T]) seek(item T) place {
	p, last := place{}, len(s.chunks)-1
	switch {
	case last < 1 || s.less(item, s.chunks[1].items[0]):
	case !s.less(item, s.chunks[last].items[0]):
		p.chunk = last
	default: // the last chunk that begins with item or an earlier one
		p.chunk = 1 + sort.Search(last-1, func(i int) bool { return s.less(item, s.chunks[i+2].items[0]) })
	}
	if last < 0 {
		return p
	}
	items := s.chunks[p.chunk].items
	switch n := len(items); {
	case s.less(items[n-1], item):
		p.i = n
	case s.less(items[0], item):
		p.i = sort.Search(n, func(i int) bool { return !s.less(items[i], item) })
	}
	return p
}

// at returns the item at a place; ok is false beyond the last item.
func (s *sortedList[T]) at(p place) (item T, ok bool) {
	if p.chunk < len(s.chunks) && p.i == len(s.chunks[p.chunk].items) {
		p = place{chunk: p.chunk + 1}
	}
	if p.chunk >= len(s.chunks) {
		return item, false
	}
	return s.chunks[p.chunk].items[p.i], true
}

// after returns the place after that of an item.
func (s *sortedList[T]) after(p place) place {
	if p.i == len(s.chunks[p.chunk].items) {
		p = place{chunk: p.chunk + 1}
	}
	p.i++
	return p
}

// find returns the place of an item; ok is false if the list does not have it.
func (s *sortedList[T]) find(item T) (p place, ok bool) {
	p = s.seek(item)
	found, ok := s.at(p)
	return p, ok && !s.less(item, found)
}

// Min returns the first item; ok is false if there is none.
func (s *sortedList[T]) Min() (item T, ok bool) { return s.at(place{}) }

// Rank returns the number of items before item.
func (s *sortedList[T]) Rank(item T) (rank int) {
	p := s.seek(item)
	for i := range p.chunk {
		rank += len(s.chunks[i].items)
	}
	return rank + p.i
}

// Scan yields the items in order, until yield returns false.
func (s *sortedList[T]) Scan(yield func(T) bool) {
	for _, c := range s.chunks {
		for i := range c.items {
			if !yield(c.items[i]) {
				return
			}
		}
	}
}

// Ascend yields the items that are not before from, in order, until yield returns false.
func (s *sortedList[T]) Ascend(from T, yield func(T) bool) {
	for p := s.seek(from); ; p = s.after(p) {
		if item, ok := s.at(p); !ok || !yield(item) {
			return
		}
	}
}

// Descend yields the items that are not after from, in descending order, until yield returns
// false.
func (s *sortedList[T]) Descend(from T, yield func(T) bool) {
	p, ok := s.find(from)
	if ok {
		p.i++
	}
	for ; p.chunk >= 0 && len(s.chunks) > 0; p.chunk-- {
		items := s.chunks[p.chunk].items
		if p.i < 0 {
			p.i = len(items)
		}
		for ; p.i > 0; p.i-- {
			if !yield(items[p.i-1]) {
				return
			}
		}
		p.i = -1
	}
}

// Set adds an item. It replaces one that is neither before nor after it.
func (s *sortedList[T]) Set(item T) {
	p, ok := s.find(item)
	if ok {
		s.own(p.chunk).items[p.i] = item
		return
	}
	s.count++
	if len(s.chunks) == 0 {
		s.addFirst(item)
		return
	}
	c := s.own(p.chunk)
	n := len(c.items)
	if p.i == n && n == cap(c.items) && n >= chunkSize/2 { // as when items are added in order
		p = place{chunk: p.chunk + 1}
		if p.chunk == len(s.chunks) || len(s.chunks[p.chunk].items) == chunkSize {
			s.insert(p.chunk, append(make([]T, 0, chunkSize), item))
			return
		}
		c = s.own(p.chunk)
		n = len(c.items)
	}
	if n == chunkSize {
		s.insert(p.chunk+1, withSpace(c.items[n/2:]))
		c.items = c.items[:n/2]
		if p.i > n/2 {
			c, p.i = s.chunks[p.chunk+1], p.i-n/2
		}
	} else if n == cap(c.items) {
		c.items = withSpace(c.items)
	}
	c.items = slices.Insert(c.items, p.i, item)
}

// addFirst adds an item to an empty list, with one allocation: there are many lists of one item.
func (s *sortedList[T]) addFirst(item T) {
	first := &struct {
		chunk  chunk[T]
		chunks [1]*chunk[T]
		items  [1]T
	}{}
	first.items[0] = item
	first.chunk = chunk[T]{s.generation, first.items[:]}
	first.chunks[0] = &first.chunk
	s.chunks = first.chunks[:]
}

// withSpace returns a copy of the items of a chunk, with space for some more unless they are
// chunkSize. Jobs of several lanes arrive by turns, so that chunks are split that are not filled
// again: space for chunkSize would remain a quarter empty.
func withSpace[T any](items []T) []T {
	space := min(len(items)+chunkSize/8, chunkSize)
	if len(items) < chunkSize/8 {
		space = 2*len(items) + 1
	}
	return append(make([]T, 0, space), items...)
}

// insert inserts a chunk.
func (s *sortedList[T]) insert(index int, items []T) {
	s.chunks = slices.Insert(s.chunks, index, &chunk[T]{s.generation, items})
}

// own returns a chunk that is not shared with copies.
func (s *sortedList[T]) own(index int) *chunk[T] {
	c := s.chunks[index]
	if c.generation != s.generation {
		c = &chunk[T]{s.generation, withSpace(c.items)}
		s.chunks[index] = c
	}
	return c
}

// Delete removes an item, if the list has it.
func (s *sortedList[T]) Delete(item T) {
	p, ok := s.find(item)
	if !ok {
		return
	}
	s.count--
	c := s.own(p.chunk)
	if p.i == 0 && len(c.items) > chunkSize/4 { // a smaller chunk keeps its space
		c.items = c.items[1:]
	} else {
		c.items = slices.Delete(c.items, p.i, p.i+1)
	}
	if len(c.items) > chunkSize/2 {
		return
	}
	if !s.join(p.chunk) {
		s.join(p.chunk - 1)
	}
}

// join removes a chunk that is empty, or joins it with the next one if both are small. It reports
// whether it did.
func (s *sortedList[T]) join(index int) bool {
	if index < 0 {
		return false
	}
	next := index + 1
	if n := len(s.chunks[index].items); n > 0 {
		if next == len(s.chunks) || n+len(s.chunks[next].items) > chunkSize/2 {
			return false
		}
		joined := s.own(next)
		joined.items = withSpace(append(s.chunks[index].items[:n:n], joined.items...))
	}
	if index == 0 {
		s.chunks[0] = nil
		s.chunks = s.chunks[1:]
	} else {
		s.chunks = slices.Delete(s.chunks, index, next)
	}
	return true
}
