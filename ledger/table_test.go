package ledger

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// all yields the values with their numbers.
func (s *table[T]) all(yield func(uint32, *T) bool) {
	for index, p := range s.pages {
		for place := 0; p != nil && place < pageSize; place++ {
			if p.inUse[place/64]>>(place%64)&1 == 1 && !yield(uint32(index<<pageBits+place)+1, &p.values[place]) {
				return
			}
		}
	}
}

// TestTable compares a table and its copies with maps, through random changes.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s table[int]
		model := make(map[uint32]int)
		type snapshot struct {
			copied table[int]
			want   map[uint32]int
		}
		var snapshots []snapshot
		next := 0
		anyNumber := func(t *rapid.T) uint32 {
			if len(model) == 0 {
				t.Skip("empty")
			}
			return rapid.SampledFrom(slices.Sorted(maps.Keys(model))).Draw(t, "number")
		}
		check := func(s *table[int], want map[uint32]int) {
			for number, value := range want {
				if got := *s.get(number); got != value {
					t.Fatalf("number %d has the value %d, want %d", number, got, value)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for range rapid.IntRange(1, 300).Draw(t, "count") {
					next++
					number := s.add(next)
					if _, taken := model[number]; taken || number == 0 {
						t.Fatalf("number %d is given twice, or is 0", number)
					}
					model[number] = next
				}
			},
			"change": func(t *rapid.T) {
				number := anyNumber(t)
				next++
				*s.change(number), model[number] = next, next
			},
			"remove": func(t *rapid.T) {
				number := anyNumber(t)
				s.remove(number)
				delete(model, number)
			},
			"remove many": func(t *rapid.T) {
				keep := rapid.IntRange(0, 10).Draw(t, "keep")
				for _, number := range slices.Sorted(maps.Keys(model)) {
					if len(model) <= keep {
						return
					}
					s.remove(number)
					delete(model, number)
				}
			},
			"copy": func(*rapid.T) { snapshots = append(snapshots, snapshot{s.copy(), maps.Clone(model)}) },
			"": func(*rapid.T) {
				check(&s, model)
				if s.count != len(model) {
					t.Fatalf("%d values, want %d", s.count, len(model))
				}
				for number, value := range s.all {
					if model[number] != *value {
						t.Fatalf("number %d has the value %d, want %d", number, *value, model[number])
					}
				}
				for i := range snapshots {
					check(&snapshots[i].copied, snapshots[i].want)
				}
				pages := make(map[uint32]bool)
				for number := range model {
					pages[(number-1)>>pageBits] = true
				}
				for i, p := range s.pages {
					if (p != nil) != pages[uint32(i)] && (p == nil || p.used != 0) {
						t.Fatalf("page %d is %v, with values: %t", i, p, pages[uint32(i)])
					}
				}
			},
		})
	})
}

// TestTable_Reuse checks that a table does not grow while values come and go.
func TestTable_Reuse(t *testing.T) {
	var s table[int]
	numbers := make([]uint32, 0, 10*pageSize)
	for range cap(numbers) {
		numbers = append(numbers, s.add(1))
	}
	for i := range 100 * pageSize { // the oldest are removed, as finished jobs are
		s.remove(numbers[i%len(numbers)])
		numbers[i%len(numbers)] = s.add(1)
	}
	if len(s.pages) > 11 {
		t.Errorf("%d pages for 10 pages of values", len(s.pages))
	}
	if len(s.partial) > len(s.pages) || len(s.empty) > len(s.pages) {
		t.Errorf("%d pages are listed as partial, %d as empty, of %d", len(s.partial), len(s.empty), len(s.pages))
	}
}

// TestSharedValues checks that a value has one number as long as it is used, and is forgotten
// afterwards.
func TestSharedValues(t *testing.T) {
	s := newSharedValues(strings.Clone)
	first := s.replace(0, "", "send")
	if second := s.replace(0, "", "send"); second != first || first == 0 {
		t.Fatalf("the numbers are %d and %d", first, second)
	}
	copied := s.copy()
	if number := s.replace(first, "send", ""); number != 0 || s.get(first) != "send" {
		t.Errorf("number %d, value %q", number, s.get(first))
	}
	other := s.replace(first, "send", "fetch")
	if len(s.numbers) != 1 || s.get(other) != "fetch" || s.get(0) != "" {
		t.Errorf("%v, %q", s.numbers, s.get(other))
	}
	if copied.get(first) != "send" {
		t.Errorf("in the copy, %q", copied.get(first))
	}
}
