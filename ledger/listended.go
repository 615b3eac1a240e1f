package ledger

import (
	"sort"

	"github.com/yardmaster-dev/yardmaster/job"
)

// ListEnded returns jobs of a queue in some states of ended jobs, oldest first: at most
// limit jobs after the first skip ones.
func (j *jobs) ListEnded(queue string, states []job.State, skip, limit int) []job.View {
	q := j.queues.get(queue)
	if q == nil || skip < 0 || limit <= 0 { // skip may have overflowed in the caller
		return nil
	}
	lists := make([]*sortedList[timeItem], len(states))
	for i, state := range states {
		lists[i] = itemsOf(q.lists[state])
	}
	places := make([]place, len(lists)) // of the next job in each list
	for i, list := range lists {
		places[i] = list.index(sort.Search(list.Len(), func(n int) bool {
			item, _ := list.at(list.index(n))
			return rankIn(lists, item) >= skip
		}))
	}
	var views []job.View
	for len(views) < limit {
		first, next := -1, timeItem{}
		for i, list := range lists {
			if item, ok := list.at(places[i]); ok && (first < 0 || timeLess(item, next)) {
				first, next = i, item
			}
		}
		if first < 0 {
			break
		}
		places[first] = lists[first].after(places[first])
		view, _ := j.at(next.number).view()
		views = append(views, view)
	}
	return views
}

// rankIn returns how many items of the lists are before an item.
func rankIn(lists []*sortedList[timeItem], item timeItem) (rank int) {
	for _, list := range lists {
		rank += list.Rank(item)
	}
	return rank
}

// itemsOf returns a queue's list, which may be nil.
func itemsOf(list *sortedList[timeItem]) *sortedList[timeItem] {
	if list == nil {
		return newSortedList(timeLess)
	}
	return list
}
