package ledger

import (
	"math/bits"
	"slices"
)

// table stores values of one type under numbers, in pages. A copy shares the pages, and a
// value is changed in its own copy of its page. Values without pointers cost the garbage
// collector nothing, however many there are. A number that is free is used again, so numbers
// differ between ledgers that are equal.
type table[T any] struct {
	pages      []*page[T] // nil: no value is in the page
	count      int        // number of values
	generation uint32     // pages of earlier generations are shared with copies
	filling    int        // the page that new values go to
	partial    []int      // pages with free places; may be outdated
	empty      []int      // indexes of pages that are nil
}

const (
	pageBits = 8
	pageSize = 1 << pageBits // values
)

type page[T any] struct {
	generation uint32
	used       uint32                // number of places in use
	inUse      [pageSize / 64]uint64 // one bit for each place
	values     [pageSize]T
}

// copy returns a copy, which may only be read.
func (s *table[T]) copy() table[T] {
	s.generation++
	return table[T]{pages: slices.Clone(s.pages), count: s.count}
}

// get returns the value with a number, to be read.
func (s *table[T]) get(number uint32) *T {
	number--
	return &s.pages[number>>pageBits].values[number%pageSize]
}

// change returns the value with a number, to be changed.
func (s *table[T]) change(number uint32) *T {
	number--
	return &s.own(int(number >> pageBits)).values[number%pageSize]
}

// own returns a page that is not shared with copies.
func (s *table[T]) own(index int) *page[T] {
	p := s.pages[index]
	if p.generation != s.generation {
		p = new(*p)
		p.generation, s.pages[index] = s.generation, p
	}
	return p
}

// all yields the values with their numbers. A value may be changed or removed while it is yielded.
func (s *table[T]) all(yield func(uint32, *T) bool) {
	for index, p := range s.pages {
		for place := 0; p != nil && place < pageSize; place++ {
			if p.inUse[place/64]>>(place%64)&1 == 1 && !yield(uint32(index<<pageBits+place)+1, &p.values[place]) {
				return
			}
		}
	}
}

// after returns the lowest number after another one that has a value; ok is false if there is none.
func (s *table[T]) after(number uint32) (next uint32, ok bool) {
	index, place := int(number>>pageBits), int(number%pageSize) // of the number after it
	for ; index < len(s.pages); index, place = index+1, 0 {
		p := s.pages[index]
		if p == nil {
			continue
		}
		for word := place / 64; word < len(p.inUse); word++ {
			inUse := p.inUse[word]
			if word == place/64 {
				inUse &= ^uint64(0) << (place % 64)
			}
			if inUse != 0 {
				return uint32(index<<pageBits+word*64+bits.TrailingZeros64(inUse)) + 1, true
			}
		}
	}
	return 0, false
}

// add stores a value and returns its number, which is not 0.
func (s *table[T]) add(value T) (number uint32) {
	if s.filling >= len(s.pages) || s.pages[s.filling] == nil || s.pages[s.filling].used == pageSize {
		s.filling = s.free()
	}
	p := s.own(s.filling)
	for word, inUse := range p.inUse {
		if bit := bits.TrailingZeros64(^inUse); bit < 64 {
			p.inUse[word] |= 1 << bit
			p.used++
			s.count++
			place := word*64 + bit
			p.values[place] = value
			return uint32(s.filling<<pageBits+place) + 1
		}
	}
	panic("ledger: a page with free places has none")
}

// free returns the index of a page with a free place, which it adds if there is none.
func (s *table[T]) free() (index int) {
	for len(s.partial) > 0 {
		index = s.partial[len(s.partial)-1]
		s.partial = s.partial[:len(s.partial)-1]
		if p := s.pages[index]; p != nil && p.used < pageSize {
			return index
		}
	}
	if last := len(s.empty) - 1; last >= 0 {
		index, s.empty = s.empty[last], s.empty[:last]
		s.pages[index] = &page[T]{generation: s.generation}
		return index
	}
	s.pages = append(s.pages, &page[T]{generation: s.generation})
	return len(s.pages) - 1
}

// remove removes the value with a number.
func (s *table[T]) remove(number uint32) {
	number--
	s.count--
	index := int(number >> pageBits)
	if s.pages[index].used == 1 {
		s.pages[index] = nil
		s.empty = append(s.empty, index)
		return
	}
	p := s.own(index)
	if p.used == pageSize && index != s.filling {
		s.partial = append(s.partial, index)
	}
	place := number % pageSize
	var none T
	p.values[place] = none
	p.inUse[place/64] &^= 1 << (place % 64)
	p.used--
}

// put stores next in the place of old, and returns its number: 0 for the zero value, which is
// not stored.
func put[T comparable](s *table[T], number uint32, old, next T) uint32 {
	var none T
	switch {
	case next == old:
	case next == none:
		s.remove(number)
		return 0
	case number == 0:
		return s.add(next)
	default:
		*s.change(number) = next
	}
	return number
}
