package ledger

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

// checkTables checks that each part of a job is in its table once, and nothing else, that shared
// values count their uses, and that the index has each id once.
func checkTables(l *Ledger) error {
	j := &l.jobs
	used := make(map[string]map[uint32]uint32) // by table: how often a number is used
	use := func(table string, number uint32, isSet bool) error {
		if (number != 0) != isSet {
			return fmt.Errorf("%s: number %d of a value that is set: %t", table, number, isSet)
		}
		if used[table] == nil {
			used[table] = make(map[uint32]uint32)
		}
		if used[table][number]++; number == 0 {
			delete(used[table], number)
		}
		return nil
	}
	for number := range j.records.all {
		r := j.at(number)
		if err := errors.Join(
			use("options", r.optionsNumber, r.options != options{}), use("runs", r.runNumber, r.run != run{}), use("ends", r.run.endNumber, r.run.end != end{}),
			use("traits", r.traitsNumber, true), use("functions", r.functionNumber, r.function != ""), use("executors", r.run.executorNumber, r.run.executor != executor{}),
		); err != nil {
			return err
		}
	}
	for table, count := range map[string]int{"options": j.options.count, "runs": j.runs.count, "ends": j.ends.count} {
		for number, n := range used[table] {
			if n > 1 {
				return fmt.Errorf("%s: %d jobs have number %d", table, n, number)
			}
		}
		if len(used[table]) != count {
			return fmt.Errorf("%s: jobs have %d, the table %d", table, len(used[table]), count)
		}
	}
	slots := 0
	for i := range j.byID.shards {
		for _, slot := range j.byID.shards[i].slots {
			if !slot.isFree() && slot.place()&forgottenPlace == 0 {
				slots++
			}
		}
	}
	if slots != j.records.count {
		return fmt.Errorf("%d ids for %d records", slots, j.records.count)
	}
	for _, slab := range j.forgotten.slabs {
		for i := range slab.ids {
			if place, ok := j.byID.find(j, &slab.ids[i]); !ok || j.idAt(place) != &slab.ids[i] {
				return fmt.Errorf("the id %s of a forgotten job is not indexed", slab.ids[i])
			}
		}
	}
	return errors.Join(checkTraits(j, used["traits"]), checkUses(&j.functions, used["functions"]), checkUses(&j.executors, used["executors"]))
}

// checkTraits compares the traits with the jobs that have them.
func checkTraits(j *jobs, uses map[uint32]uint32) error {
	s := &j.traits
	if len(s.byID) != len(uses) || s.numbers.count != len(uses) {
		return fmt.Errorf("%d traits are used, %d have ids, the table has %d", len(uses), len(s.byID), s.numbers.count)
	}
	unfinished, grouped := make(map[*traits]int), make(map[*traits]int)
	for number := range j.records.all {
		if r := j.at(number); !r.state.Ended() {
			unfinished[r.traits]++
			if r.state != job.Delayed {
				grouped[r.traits]++
			}
		}
	}
	for id, t := range s.byID {
		if t.traitsID != id || s.get(t.number) != t || t.jobs != int(uses[t.number]) || t.unfinished != unfinished[t] || (t.waitlist != nil) != (t.unfinished > 0) ||
			t.grouped != grouped[t] || (t.group != nil) != (t.grouped > 0) {
			return fmt.Errorf("%+v: %d jobs are counted, of which %d have not ended; there are %d, and %d", t, t.jobs, t.unfinished, uses[t.number], unfinished[t])
		}
	}
	return nil
}

// checkUses compares the counts of shared values with their uses.
func checkUses[T comparable](s *sharedValues[T], uses map[uint32]uint32) error {
	if len(s.numbers) != len(uses) || s.values.count != len(uses) {
		return fmt.Errorf("%d values are used, %d have numbers, the table has %d", len(uses), len(s.numbers), s.values.count)
	}
	for value, number := range s.numbers {
		if got := s.values.get(number); got.value != value || got.uses != uses[number] {
			return fmt.Errorf("%v is counted %d times, used %d times", got.value, got.uses, uses[number])
		}
	}
	return nil
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
