package ledger

import (
	"slices"
	"strings"

	"github.com/tidwall/btree"
)

// group is the waiting jobs of a keyed waitlist that have the same keys, so that limits which
// bound keys block all of them or none.
type group struct {
	waitlist *waitlist
	groupKey
	jobs   *sortedList[orderItem] // in start order
	head   orderItem              // the first of them
	keys   []*limitKey            // of the limits that bound keys
	blocks int                    // how many of keys are blocked; 0: it is in waitlist.ready
}

// groupKey is what the jobs of a group have in common.
type groupKey struct {
	key    string // see [job.Job.LimitKey]
	limits string // see [job.Job.Limits], as joinUses writes them
}

// newReady returns an index of groups: in a fair queue by key, else in start order of their
// first jobs.
func (q *queue) newReady() *btree.BTreeG[*group] {
	byKey := func(a, b *group) bool {
		if a.key != b.key {
			return a.key < b.key
		}
		return a.limits < b.limits
	}
	if q.config.Fair {
		return btree.NewBTreeGOptions(byKey, treeOptions)
	}
	return btree.NewBTreeGOptions(func(a, b *group) bool { return q.before(&a.head, &b.head) }, treeOptions)
}

// addToGroup adds a waiting job to its group in a keyed waitlist.
func (ls *limits) addToGroup(wl *waitlist, stored *storedJob) {
	k := groupKey{stored.key, stored.limits}
	g := wl.groups[k]
	if g == nil {
		g = &group{waitlist: wl, groupKey: k, jobs: newSortedList(orderLess)}
		if wl.groups == nil {
			wl.groups, wl.ready = make(map[groupKey]*group), wl.queue.newReady()
		}
		wl.groups[k] = g
		item := stored.order()
		g.jobs.Set(item)
		g.head = item
		ls.linkGroup(g)
		return
	}
	g.jobs.Set(stored.order())
	g.updateHead()
}

// removeFromGroup removes a waiting job from its group.
func (ls *limits) removeFromGroup(wl *waitlist, stored *storedJob) {
	g := wl.groups[groupKey{stored.key, stored.limits}]
	if g.jobs.Len() > 1 {
		g.jobs.Delete(stored.order())
		g.updateHead()
		return
	}
	ls.unlinkGroup(g)
	delete(wl.groups, g.groupKey)
}

// updateHead updates the group's first job and its place in the index.
func (g *group) updateHead() {
	head, _ := g.waitlist.queue.first(g.jobs)
	if head == g.head {
		return
	}
	if g.blocks > 0 {
		g.head = head
		return
	}
	g.waitlist.ready.Delete(g)
	g.head = head
	g.waitlist.ready.Set(g)
}

// block counts a key of the group that is blocked, or no longer is.
func (g *group) block(blocked bool) {
	switch {
	case blocked:
		if g.blocks++; g.blocks == 1 {
			g.waitlist.ready.Delete(g)
		}
	default:
		if g.blocks--; g.blocks == 0 {
			g.waitlist.ready.Set(g)
		}
	}
}

// linkGroup adds a group to the keys of the limits of its waitlist.
func (ls *limits) linkGroup(g *group) {
	g.blocks = 1 // until it is linked to all keys
	for _, m := range g.waitlist.bounds {
		if !m.BoundsKeys() {
			continue
		}
		k := ls.key(m, g.keyFor(m.Name))
		g.keys = append(g.keys, k)
		if k.blocked {
			g.blocks++
		}
		k.groups = append(k.groups, g)
		ls.update(k) // it may have to be woken
	}
	g.block(false)
}

// unlinkGroup undoes linkGroup.
func (ls *limits) unlinkGroup(g *group) {
	if g.blocks == 0 {
		g.waitlist.ready.Delete(g)
	}
	for _, k := range g.keys {
		k.groups = slices.DeleteFunc(k.groups, func(other *group) bool { return other == g })
		ls.update(k)
	}
	g.keys, g.blocks = nil, 0
}

// link determines the limits of a waitlist, and links its groups to them.
func (ls *limits) link(wl *waitlist) {
	wl.bounds = nil
	for _, name := range slices.Concat(wl.queue.config.Limits, wl.names()) {
		if m := ls.get(name); m != nil && !slices.Contains(wl.bounds, m) {
			wl.bounds = append(wl.bounds, m)
		}
	}
	if wl.groups == nil {
		return
	}
	wl.ready = wl.queue.newReady()
	for _, g := range wl.groups {
		g.head, _ = wl.queue.first(g.jobs)
		ls.linkGroup(g)
	}
}

// unlink undoes link.
func (ls *limits) unlink(wl *waitlist) {
	for _, g := range wl.groups {
		ls.unlinkGroup(g)
	}
	wl.bounds = nil
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
