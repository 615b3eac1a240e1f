package ledger

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// pair is an item that is ordered by its key.
type pair struct{ key, value int }

func comparePairs(a, b pair) int { return cmp.Compare(a.key, b.key) }

// TestSortedList compares a list and its copies with slices, through random changes.
func TestSortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSortedList(func(a, b pair) bool { return a.key < b.key })
		var model []pair
		type snapshot struct {
			copied *sortedList[pair]
			want   []pair
		}
		var snapshots []snapshot
		set := func(p pair) {
			s.Set(p)
			i, found := slices.BinarySearchFunc(model, p, comparePairs)
			if found {
				model[i] = p
			} else {
				model = slices.Insert(model, i, p)
			}
		}
		remove := func(i int) {
			s.Delete(model[i])
			model = slices.Delete(model, i, i+1)
		}
		check := func(s *sortedList[pair], want []pair) {
			if got := slices.Collect(s.Scan); !slices.Equal(got, want) || s.Len() != len(want) {
				t.Fatalf("%d items %v, want %v", s.Len(), got, want)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add in order": func(t *rapid.T) {
				next := rapid.IntRange(0, 5000).Draw(t, "first")
				if rapid.Bool().Draw(t, "at the end") && len(model) > 0 {
					next = model[len(model)-1].key + 1
				}
				for range rapid.IntRange(1, 600).Draw(t, "count") {
					set(pair{next, rapid.IntRange(0, 9).Draw(t, "value")})
					next++
				}
			},
			"add": func(t *rapid.T) {
				for _, key := range rapid.SliceOfN(rapid.IntRange(0, 5000), 1, 100).Draw(t, "keys") {
					set(pair{key, key})
				}
			},
			"remove first": func(t *rapid.T) {
				for range min(len(model), rapid.IntRange(1, 600).Draw(t, "count")) {
					remove(0)
				}
			},
			"remove": func(t *rapid.T) {
				for range min(len(model), rapid.IntRange(1, 200).Draw(t, "count")) {
					remove(rapid.IntRange(0, len(model)-1).Draw(t, "index"))
				}
				s.Delete(pair{key: -1})
			},
			"copy": func(*rapid.T) { snapshots = append(snapshots, snapshot{s.Copy(), slices.Clone(model)}) },
			"": func(t *rapid.T) {
				check(s, model)
				for _, snapshot := range snapshots {
					check(snapshot.copied, snapshot.want)
				}
				if first, ok := s.Min(); ok != (len(model) > 0) || ok && first != model[0] {
					t.Fatalf("the first item is %v, %t", first, ok)
				}
				previous := chunkSize
				for _, c := range s.chunks {
					n := len(c.items)
					if n == 0 || n > chunkSize || n+previous <= chunkSize/2 {
						t.Fatalf("a chunk of %d items after one of %d", n, previous)
					}
					previous = n
				}
				for index := range len(model) + 1 {
					if item, ok := s.at(s.index(index)); ok != (index < len(model)) || ok && item != model[index] {
						t.Fatalf("item %d is %v, %t", index, item, ok)
					}
				}
				from := pair{key: rapid.IntRange(-1, 6000).Draw(t, "from")}
				i, found := slices.BinarySearchFunc(model, from, comparePairs)
				var up, down []pair
				s.Ascend(from, func(p pair) bool { up = append(up, p); return true })
				s.Descend(from, func(p pair) bool { down = append(down, p); return true })
				if found {
					i++
				}
				slices.Reverse(down)
				if !slices.Equal(down, model[:i]) {
					t.Fatalf("down from %d: %v", from.key, down)
				}
				if found {
					i--
				}
				if !slices.Equal(up, model[i:]) || s.Rank(from) != i {
					t.Fatalf("up from %d, rank %d: %v", from.key, s.Rank(from), up)
				}
			},
		})
	})
}
