package ledger

import (
	"slices"
	"strings"
)

// group is the waiting and active jobs of a waitlist that have the same keys, so that limits
// which bound keys block all of them or none.
type group struct {
	waitlist *waitlist
	groupKey
	place  int                    // in the groups of the waitlist
	uses   []Use                  // of the limits that bound the waitlist; never changed, only replaced
	places []int                  // of the group in the groups of the keys of uses
	jobs   *sortedList[orderItem] // that wait, in start order; those of the waitlist if it is not keyed
	head   orderItem              // the first of them, if the waitlist is keyed
	blocks int                    // how many keys of uses are blocked; 0: it is in waitlist.ready if it has waiting jobs

	own   sortedList[orderItem] // jobs, if the waitlist is keyed
	first struct {              // memory of the first uses and places, so that most groups need no more
		uses   [1]Use
		places [1]int
	}
}

// groupKey is what the jobs of a group have in common.
type groupKey struct {
	key    string // see [job.Job.LimitKey]
	limits string // see [job.Job.Limits], as joinUses writes them
}

// readyGroup is a group with waiting jobs that no key blocks.
type readyGroup struct {
	head orderItem // of the group
	*group
}

// newReady returns an index of groups: in a fair queue by key, else in start order of their
// first jobs.
func (q *queue) newReady() *sortedList[readyGroup] {
	if q.config.Fair {
		return newSortedList(func(a, b readyGroup) bool {
			if a.key != b.key {
				return a.key < b.key
			}
			return a.limits < b.limits
		})
	}
	return newSortedList(func(a, b readyGroup) bool { return q.before(&a.head, &b.head) })
}

// newGroup gives traits, which waiting or active jobs have now, a group.
func (ls *limits) newGroup(t *traits) {
	wl := t.waitlist
	g := &group{waitlist: wl, groupKey: t.groupKey, place: len(wl.groups), jobs: wl.jobs}
	if wl.keyed {
		g.own.less, g.jobs = orderLess, &g.own
	}
	g.uses, g.places = g.first.uses[:0], g.first.places[:0]
	wl.groups = append(wl.groups, g)
	t.group = g
	ls.bind(g)
}

// removeGroup removes the group of traits that no waiting or active job has any more.
func (ls *limits) removeGroup(t *traits) {
	g, wl := t.group, t.waitlist
	t.group = nil
	ls.unbind(g)
	last := len(wl.groups) - 1
	wl.groups[g.place], wl.groups[last].place = wl.groups[last], g.place
	wl.groups[last] = nil
	wl.groups = wl.groups[:last]
}

// addToGroup adds a waiting job to its group in a keyed waitlist.
func (ls *limits) addToGroup(stored *storedJob) {
	g, item := stored.group, stored.order()
	g.jobs.Set(item)
	if g.jobs.Len() > 1 {
		if g.waitlist.queue.before(&item, &g.head) {
			g.setHead(item)
		}
		return
	}
	g.head = item
	g.waitlist.waiting++
	g.waitlist.ready.Set(readyGroup{g.head, g})
	ls.addToKeys(g)
}

// removeFromGroup removes a waiting job from its group.
func (ls *limits) removeFromGroup(stored *storedJob) {
	g, item := stored.group, stored.order()
	if g.jobs.Len() == 1 {
		ls.removeFromKeys(g)
		g.waitlist.ready.Delete(readyGroup{g.head, g})
		g.waitlist.waiting--
		g.jobs.Delete(item)
		return
	}
	g.jobs.Delete(item)
	if item == g.head {
		head, _ := g.waitlist.queue.first(g.jobs)
		g.setHead(head)
	}
}

// setHead changes the group's first job and its place in the index.
func (g *group) setHead(head orderItem) {
	ready := g.waitlist.ready
	if g.blocks > 0 {
		g.head = head
		return
	}
	if g.waitlist.queue.config.Fair { // its place is that of its key
		g.head = head
		ready.Set(readyGroup{g.head, g})
		return
	}
	ready.Delete(readyGroup{g.head, g})
	g.head = head
	ready.Set(readyGroup{g.head, g})
}

// block counts a key of the group that is blocked, or no longer is.
func (g *group) block(blocked bool) {
	switch {
	case blocked:
		if g.blocks++; g.blocks == 1 {
			g.waitlist.ready.Delete(readyGroup{g.head, g})
		}
	default:
		if g.blocks--; g.blocks == 0 {
			g.waitlist.ready.Set(readyGroup{g.head, g})
		}
	}
}

// bind determines the limits and keys that a group uses.
func (ls *limits) bind(g *group) {
	bounds := g.waitlist.bounds
	if len(bounds) == 0 {
		return
	}
	g.uses, g.places = slices.Grow(g.uses, len(bounds))[:len(bounds)], slices.Grow(g.places, len(bounds))[:len(bounds)]
	for i, m := range bounds {
		g.uses[i].limit = m
		if m.BoundsKeys() {
			g.uses[i].key = m.obtain(g.keyFor(m.Name))
		}
	}
	if g.waits() {
		ls.addToKeys(g)
	}
}

// unbind undoes bind.
func (ls *limits) unbind(g *group) {
	if g.waits() {
		ls.removeFromKeys(g)
	}
	for _, use := range g.uses {
		use.limit.release(use.key)
	}
	g.uses, g.places = nil, nil
}

// waits reports whether the group is one of a keyed waitlist, and has waiting jobs.
func (g *group) waits() bool { return g.waitlist.keyed && g.jobs.Len() > 0 }

// addToKeys adds a group with waiting jobs to the keys that may block it.
func (ls *limits) addToKeys(g *group) {
	for i, use := range g.uses {
		k := use.key
		if k == nil {
			continue
		}
		g.places[i] = len(k.groups)
		k.groups = append(k.groups, g)
		if k.blocked {
			g.block(true)
		}
		ls.update(k) // it may have to be woken
	}
}

// removeFromKeys undoes addToKeys. No key blocks the group then.
func (ls *limits) removeFromKeys(g *group) {
	for i, use := range g.uses {
		k := use.key
		if k == nil {
			continue
		}
		last := len(k.groups) - 1
		moved := k.groups[last]
		moved.places[slices.Index(moved.uses, use)] = g.places[i]
		k.groups[g.places[i]], k.groups[last] = moved, nil
		k.groups = k.groups[:last]
		if k.blocked {
			g.block(false)
		}
		ls.update(k)
	}
}

// link determines the limits of a waitlist, and binds its groups to them.
func (ls *limits) link(wl *waitlist) {
	wl.bounds = nil
	for _, name := range slices.Concat(wl.queue.config.Limits, wl.names()) {
		if m := ls.get(name); m != nil && !slices.Contains(wl.bounds, m) {
			wl.bounds = append(wl.bounds, m)
		}
	}
	for _, g := range wl.groups {
		ls.bind(g)
	}
}

// unlink undoes link. Then all groups with waiting jobs are in the index.
func (ls *limits) unlink(wl *waitlist) {
	for _, g := range wl.groups {
		ls.unbind(g)
	}
	wl.bounds = nil
}

// reorder puts the groups of a waitlist that is not linked into the order that its queue has now.
func (wl *waitlist) reorder() {
	if !wl.keyed {
		return
	}
	wl.ready = wl.queue.newReady()
	for _, g := range wl.groups {
		if g.waits() {
			g.head, _ = wl.queue.first(g.jobs)
			wl.ready.Set(readyGroup{g.head, g})
		}
	}
}

// names returns the names of the limits that the jobs of a waitlist name themselves.
func (wl *waitlist) names() []string {
	if wl.limits == "" {
		return nil
	}
	return strings.Split(wl.limits, ",")
}

// virtual returns the time, in microseconds, by which a queue that ages orders its jobs: each
// class of priority is worth the age.
func (q *queue) virtual(item *orderItem) uint64 {
	accepted := item.key & (1<<orderTimeBits - 1)
	return accepted + (item.key>>orderTimeBits)*uint64(q.config.Age.Microseconds())
}

// before reports whether a starts before b in a queue.
func (q *queue) before(a, b *orderItem) bool {
	if q.config.Age > 0 {
		if va, vb := q.virtual(a), q.virtual(b); va != vb {
			return va < vb
		}
	}
	return orderLess(*a, *b)
}

// first returns the first job of a list of the queue, in its order.
func (q *queue) first(list *sortedList[orderItem]) (first orderItem, ok bool) {
	if q.config.Age == 0 {
		return list.Min()
	}
	for it := newListIter(q, list); it.next(); {
		return it.item, true
	}
	return orderItem{}, false
}
