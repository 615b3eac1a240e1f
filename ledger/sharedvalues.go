package ledger

// sharedValues numbers the values that many jobs have in common, such as the names of
// functions. A value that no job has any more is removed. The zero value has the number 0.
type sharedValues[T comparable] struct {
	numbers map[T]uint32 // nil in a copy
	values  table[sharedValue[T]]
	clone   func(T) T
}

type sharedValue[T comparable] struct {
	value T
	uses  uint32
}

func newSharedValues[T comparable](clone func(T) T) sharedValues[T] {
	return sharedValues[T]{numbers: make(map[T]uint32), clone: clone}
}

func (s *sharedValues[T]) copy() sharedValues[T] { return sharedValues[T]{values: s.values.copy()} }

// get returns the value with a number.
func (s *sharedValues[T]) get(number uint32) (value T) {
	if number != 0 {
		value = s.values.get(number).value
	}
	return value
}

// replace counts a use of next instead of one of old, whose number it is given, and returns
// the number of next. A job that is new has the zero value as its old one.
func (s *sharedValues[T]) replace(number uint32, old, next T) uint32 {
	if next == old {
		return number
	}
	var none T
	if old != none {
		s.release(number)
	}
	if next == none {
		return 0
	}
	number, ok := s.numbers[next]
	if !ok {
		next = s.clone(next)
		number = s.values.add(sharedValue[T]{value: next})
		s.numbers[next] = number
	}
	s.values.change(number).uses++
	return number
}

// release counts one use less.
func (s *sharedValues[T]) release(number uint32) {
	v := s.values.change(number)
	if v.uses--; v.uses == 0 {
		delete(s.numbers, v.value)
		s.values.remove(number)
	}
}
