package ledger

import (
	"sort"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// ListEnded returns jobs of a queue in two states of ended jobs, oldest first: at most
// limit jobs after the first skip ones.
func (j *jobs) ListEnded(queue string, states []job.State, skip, limit int) []job.View {
	q := j.queues.get(queue)
	if q == nil || skip < 0 || limit <= 0 { // skip may have overflowed in the caller
		return nil
	}
	var views []job.View
	a, b := itemsOf(q.lists[states[0]]), itemsOf(q.lists[states[1]])
	for next := skippedOf(a, b, skip); len(views) < limit; {
		fromA, fromB := a.at(next), b.at(skip-next)
		first := fromA
		switch {
		case fromA == nil && fromB == nil:
			return views
		case fromA == nil || fromB != nil && timeLess(*fromB, *fromA):
			first = fromB
		default:
			next++
		}
		skip++
		view, _ := j.at(first.number).view()
		views = append(views, view)
	}
	return views
}

// items is a list of jobs by time, which may be nil.
type items struct{ *btree.BTreeG[timeItem] }

func itemsOf(list *btree.BTreeG[timeItem]) items { return items{list} }

// at returns the item at index i, or nil beyond the end.
func (s items) at(i int) *timeItem {
	if s.BTreeG == nil || i >= s.Len() {
		return nil
	}
	item, _ := s.GetAt(i)
	return &item
}

// skippedOf returns how many of the first skip items of a and b together are in a.
func skippedOf(a, b items, skip int) int {
	return sort.Search(skip, func(n int) bool {
		inA, inB := a.at(n), b.at(skip-1-n)
		return inA == nil || inB != nil && timeLess(*inB, *inA) // so a[n] is not among the first
	})
}
