package ledger

import (
	"container/heap"

	"github.com/yardmaster-dev/yardmaster/job"
)

// listIter iterates over the items of a list of waiting jobs in the order of their queue. In a
// queue that ages, it merges the priorities, each of which is in this order.
type listIter struct {
	queue *queue
	list  *sortedList[orderItem]
	heads []listHead // one, or one for each priority
	item  orderItem  // the present item, after next
}

// listHead is the next item of a part of a list.
type listHead struct {
	place place
	item  orderItem
}

func newListIter(q *queue, list *sortedList[orderItem]) *listIter {
	it := &listIter{queue: q, list: list}
	if q.config.Age == 0 {
		it.add(place{})
		return it
	}
	for key, found := uint64(0), true; found; {
		p := list.seek(orderItem{key: key})
		item, ok := list.at(p)
		if found = ok; found {
			it.heads = append(it.heads, listHead{p, item})
			if item.priority() == 0 {
				break
			}
			key = orderKey(item.priority()-1, 0)
		}
	}
	return it
}

// add adds the item at a place to the heads, if there is one.
func (it *listIter) add(p place) {
	if item, ok := it.list.at(p); ok {
		it.heads = append(it.heads, listHead{p, item})
	}
}

// next moves to the next item and reports whether there is one.
func (it *listIter) next() bool {
	if len(it.heads) == 0 {
		return false
	}
	first := 0
	for i := 1; i < len(it.heads); i++ {
		if it.queue.before(&it.heads[i].item, &it.heads[first].item) {
			first = i
		}
	}
	head := &it.heads[first]
	it.item = head.item
	head.place = it.list.after(head.place)
	following, ok := it.list.at(head.place)
	if !ok || it.queue.config.Age > 0 && following.priority() != it.item.priority() {
		it.heads[first] = it.heads[len(it.heads)-1]
		it.heads = it.heads[:len(it.heads)-1]
		return true
	}
	head.item = following
	return true
}

// scan yields the items of a list of the queue in its order, until yield returns false.
func (q *queue) scan(list *sortedList[orderItem], yield func(orderItem) bool) {
	if q.config.Age == 0 {
		list.Scan(yield)
		return
	}
	for it := newListIter(q, list); it.next(); {
		if !yield(it.item) {
			return
		}
	}
}

// rank returns how many items of a list of the queue are before an item.
func (q *queue) rank(list *sortedList[orderItem], item orderItem) (rank int) {
	if q.config.Age == 0 {
		return list.Rank(item)
	}
	virtual := q.virtual(&item)
	for priority := range uint64(job.MaxPriority + 1) {
		class := priority << orderTimeBits
		worth := priority * uint64(q.config.Age.Microseconds())
		if virtual < worth {
			continue
		}
		pivot := item
		pivot.key = class | (virtual-worth)&(1<<orderTimeBits-1)
		rank += list.Rank(pivot) - list.Rank(orderItem{key: class})
	}
	return rank
}

// groupMerge merges the jobs of groups in the order of their queue. It leaves out jobs that are
// in flight, and yields of each group no more than the bounds of keys permit.
type groupMerge struct {
	jobs     *jobs
	inFlight InFlight
	open     []*groupIter // a heap by the present job
}

// groupIter iterates over the jobs of a group that may start.
type groupIter struct {
	*listIter
	job  storedJob // the present one
	left int       // how many more the bounds of keys permit after it
}

// add adds a group, if it has a job that may start.
func (m *groupMerge) add(g *group) {
	it := &groupIter{listIter: newListIter(g.waitlist.queue, g.jobs), left: m.room(g)}
	if m.advance(it) {
		heap.Push(m, it)
	}
}

// room returns how many jobs of a group may start, as far as the bounds of keys permit.
func (m *groupMerge) room(g *group) int {
	room := g.jobs.Len()
	for _, bound := range g.waitlist.bounds {
		if !bound.BoundsKeys() {
			continue
		}
		key := g.keyFor(bound.Name)
		ofKey, _ := bound.keyRoom(key, m.jobs.limits.now)
		room = min(room, ofKey-m.inFlight.Starts(job.LimitUse{Limit: bound.Name, Key: key}))
	}
	return room
}

// advance moves to the next job of a group that may start and reports whether there is one.
func (m *groupMerge) advance(it *groupIter) bool {
	for it.left > 0 && it.next() {
		it.job = storedJob{}
		m.jobs.load(&it.job, it.item.number)
		if !m.inFlight.Placed(job.DispatchID{Job: it.job.id, N: it.job.n}) {
			it.left--
			return true
		}
	}
	return false
}

// first returns the item of the first job; there must be one.
func (m *groupMerge) first() *orderItem { return &m.open[0].item }

// next removes the first job and returns it.
func (m *groupMerge) next() WaitingJob {
	it := m.open[0]
	w := it.job.waitingJob()
	if m.advance(it) {
		heap.Fix(m, 0)
	} else {
		heap.Pop(m)
	}
	return w
}

// Len, Less, Swap, Push and Pop implement [heap.Interface].
func (m *groupMerge) Len() int { return len(m.open) }

func (m *groupMerge) Less(a, b int) bool {
	return m.open[a].queue.before(&m.open[a].item, &m.open[b].item)
}

func (m *groupMerge) Swap(a, b int) { m.open[a], m.open[b] = m.open[b], m.open[a] }

func (m *groupMerge) Push(x any) { m.open = append(m.open, x.(*groupIter)) }

func (m *groupMerge) Pop() any {
	last := len(m.open) - 1
	it := m.open[last]
	m.open = m.open[:last]
	return it
}
