package ledger

import (
	"sort"

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
	skipped := skippedOf(a, b, skip)
	inA, inB := a.index(skipped), b.index(skip-skipped)
	for len(views) < limit {
		first, ok := a.at(inA)
		fromB, okB := b.at(inB)
		switch {
		case !ok && !okB:
			return views
		case !ok || okB && timeLess(fromB, first):
			first = fromB
			inB = b.after(inB)
		default:
			inA = a.after(inA)
		}
		view, _ := j.at(first.number).view()
		views = append(views, view)
	}
	return views
}

// itemsOf returns a queue's list, which may be nil.
func itemsOf(list *sortedList[timeItem]) *sortedList[timeItem] {
	if list == nil {
		return newSortedList(timeLess)
	}
	return list
}

// skippedOf returns how many of the first skip items of a and b together are in a.
func skippedOf(a, b *sortedList[timeItem], skip int) int {
	return sort.Search(skip, func(n int) bool {
		fromA, inA := a.at(a.index(n))
		fromB, inB := b.at(b.index(skip - 1 - n))
		return !inA || inB && timeLess(fromB, fromA) // so a[n] is not among the first
	})
}
