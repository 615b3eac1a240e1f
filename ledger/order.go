package ledger

import (
	"github.com/yardmaster-dev/yardmaster/job"
)

// listIter iterates over the items of a list of waiting jobs in the order of their queue. In a
// queue that ages, it merges the priorities, each of which is in this order.
type listIter struct {
	queue *queue
	list  *sortedList[orderItem]
	place place      // of the next item, in a queue that does not age
	heads []listHead // one for each priority, in a queue that ages
	item  orderItem  // the present item, after next
}

// listHead is the next item of a part of a list.
type listHead struct {
	place place
	item  orderItem
}

func newListIter(q *queue, list *sortedList[orderItem]) listIter {
	it := listIter{queue: q, list: list}
	if q.config.Age == 0 {
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

// next moves to the next item and reports whether there is one.
func (it *listIter) next() (ok bool) {
	if it.queue.config.Age == 0 {
		if it.item, ok = it.list.at(it.place); ok {
			it.place = it.list.after(it.place)
		}
		return ok
	}
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
	if !ok || following.priority() != it.item.priority() {
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
	open     []groupIter // a heap by the present item
}

// groupIter iterates over the jobs of a group.
type groupIter struct {
	listIter
	left int // how many more may start as far as the bounds of keys permit, with the present one
}

// add adds a group, if it has a job that may start.
func (m *groupMerge) add(g *group) {
	it := groupIter{newListIter(g.waitlist.queue, g.jobs), m.room(g)}
	if !it.advance() {
		return
	}
	m.open = append(m.open, it)
	for i := len(m.open) - 1; i > 0 && m.less(i, (i-1)/2); i = (i - 1) / 2 {
		m.swap(i, (i-1)/2)
	}
}

// room returns how many jobs of a group may start, as far as the bounds of keys permit.
func (m *groupMerge) room(g *group) int {
	room := g.jobs.Len()
	for _, use := range g.uses {
		if use.key != nil {
			ofKey, _ := use.limit.keyRoom(use.key, m.jobs.limits.elapsed)
			room = min(room, ofKey-m.inFlight.Starts(use))
		}
	}
	return room
}

// advance moves to the next job of the group and reports whether there is one.
func (it *groupIter) advance() bool { return it.left > 0 && it.next() }

// first returns the first item; there must be one.
func (m *groupMerge) first() *orderItem { return &m.open[0].item }

// next yields the first job, unless it is in flight, and removes it. If yield returns false, ok is
// false.
func (m *groupMerge) next(yield func(WaitingJob) bool) (yielded, ok bool) {
	it := &m.open[0]
	r := m.jobs.records.get(it.item.number)
	if !m.inFlight.Placed(job.DispatchID{Job: r.id, N: r.n}) {
		if !yield(m.jobs.at(it.item.number).waitingJob()) {
			return true, false
		}
		yielded = true
		it.left--
	}
	if !it.advance() {
		last := len(m.open) - 1
		m.open[0] = m.open[last]
		m.open = m.open[:last]
	}
	m.down()
	return yielded, true
}

// down restores the order of the heap after its first item has changed.
func (m *groupMerge) down() {
	for i := 0; ; {
		first := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(m.open); child++ {
			if m.less(child, first) {
				first = child
			}
		}
		if first == i {
			return
		}
		m.swap(i, first)
		i = first
	}
}

func (m *groupMerge) less(a, b int) bool {
	return m.open[a].queue.before(&m.open[a].item, &m.open[b].item)
}

func (m *groupMerge) swap(a, b int) { m.open[a], m.open[b] = m.open[b], m.open[a] }
