package scheduler

import (
	"container/heap"
	"iter"
	"math"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// poolKey identifies workers that can run the same jobs: the workers of an Overhop
// queue, or the processes of an RRQ runner.
type poolKey struct {
	kind job.Kind
	key  string
}

// waitlistKey identifies a waitlist: the waiting jobs of a queue that the same
// workers may run.
type waitlistKey struct{ queue, class string }

func waitlistKeyOf(j *job.Job) waitlistKey { return waitlistKey{j.Queue, ledger.Class(j.Function)} }

// placement is a job and the slot that is reserved for it, until the entry with the
// placement is applied.
type placement struct {
	ledger.WaitingJob
	slot        *slot
	incarnation uint64 // of the slot's node when the slot was reserved
}

// maxPlacements is the maximum number of placements in an entry.
const maxPlacements = 1000

// place reserves a slot for every waiting job that may run now. Its cost depends on
// the number of placements it makes, not on the number of waiting jobs. It does
// nothing while the outbox is three quarters full.
func (t *tenure) place(l *ledger.Ledger) {
	if l.OutboxBytes() >= ledger.MaxOutbox/4*3 {
		return
	}
	for i := range t.roundRobin {
		if len(t.entry.placements) >= maxPlacements {
			t.nextPool += i // the next entry continues with this pool
			return
		}
		p := t.roundRobin[(t.nextPool+i)%len(t.roundRobin)]
		if p.hasAvailable() {
			merge(t.waitlistsFor(l, p.key), func(w *ledger.WaitingJob) mergeStep { return t.placeJob(l, w, p) })
		}
	}
}

// mergeStep is how a merge of waitlists continues after a job.
type mergeStep uint8

const (
	mergeNext     mergeStep = iota // with the next job
	mergeSkipList                  // without the rest of the job's waitlist
	mergeStop
)

// placeJob reserves a slot of pool for a job, unless a placement of the job is in
// flight, its body cannot be read, or its queue has reached its limit.
func (t *tenure) placeJob(l *ledger.Ledger, w *ledger.WaitingJob, pool *pool) mergeStep {
	key := dispatchKey{w.ID, w.N}
	if _, ok := t.placing[key]; ok {
		return mergeNext
	}
	if t.unreadable(w.Position) {
		return mergeNext
	}
	if headroom := l.Headroom(w.Queue); headroom != math.MaxInt && headroom <= t.placingByQueue[w.Queue] {
		return mergeSkipList
	}
	if len(t.entry.placements) >= maxPlacements {
		return mergeStop
	}
	s := pool.reserve()
	if s == nil {
		return mergeStop
	}
	p := &placement{WaitingJob: *w, slot: s, incarnation: s.node.incarnation}
	t.placing[key] = p
	t.placingByQueue[w.Queue]++
	t.entry.placements = append(t.entry.placements, p)
	t.entry.size += placementSize
	t.markUrgent()
	return mergeNext
}

// unreadable reports whether a job's body can be read neither from the cache nor from
// its lane, because the lane is lost. Such a job waits until the lane is restored.
func (t *tenure) unreadable(pos job.Position) bool {
	return t.laneLost(pos) && !t.bodies.has(pos)
}

// laneLost reports whether the lane of a position is lost. Any goroutine may call it.
func (t *tenure) laneLost(pos job.Position) bool {
	return int(pos.Lane) < len(t.lanes) && t.lanes[pos.Lane].lost.Load()
}

// forgetPlacement drops a placement whose entry was applied.
func (t *tenure) forgetPlacement(p *placement) {
	delete(t.placing, dispatchKey{p.ID, p.N})
	if t.placingByQueue[p.Queue]--; t.placingByQueue[p.Queue] == 0 {
		delete(t.placingByQueue, p.Queue)
	}
}

// waitlistsFor returns the waitlists, with the provisional ones, whose jobs the
// workers of a pool may run. It leaves out queues that have reached their limit.
func (t *tenure) waitlistsFor(l *ledger.Ledger, k poolKey) []iter.Seq[ledger.WaitingJob] {
	var waitlists []iter.Seq[ledger.WaitingJob]
	add := func(queue, class string) {
		if headroom := l.Headroom(queue); headroom <= t.placingByQueue[queue] {
			return
		}
		waitlists = append(waitlists, func(yield func(ledger.WaitingJob) bool) { l.WaitingJobs(queue, class, yield) })
		if jobs := t.provisional[waitlistKey{queue, class}]; len(jobs) > 0 {
			waitlists = append(waitlists, provisionalSeq(jobs))
		}
	}
	if k.kind == job.Overhop {
		if t.cfg.Routes[k.key] == "" {
			add(k.key, ledger.ClassPlain)
			add(k.key, ledger.ClassBare)
		}
		return waitlists
	}
	runnerClass := k.key + "#"
	t.queuesOfClass(l, runnerClass, func(queue string) { add(queue, runnerClass) })
	for queue, runner := range t.cfg.Routes {
		if runner == k.key {
			add(queue, ledger.ClassPlain)
			add(queue, ledger.ClassBare)
		}
	}
	if k.key == t.cfg.DefaultRunner {
		t.queuesOfClass(l, ledger.ClassBare, func(queue string) {
			if t.cfg.Routes[queue] == "" {
				add(queue, ledger.ClassBare)
			}
		})
	}
	return waitlists
}

// queuesOfClass calls yield once for each queue that has waiting jobs of a class, in
// the ledger or provisional.
func (t *tenure) queuesOfClass(l *ledger.Ledger, class string, yield func(queue string)) {
	seen := map[string]bool{}
	l.QueuesWaiting(class, func(queue string) bool {
		seen[queue] = true
		yield(queue)
		return true
	})
	for k := range t.provisional {
		if k.class == class && !seen[k.queue] {
			yield(k.queue)
		}
	}
}

// merge calls visit for the jobs of several ordered waitlists in their common order.
func merge(waitlists []iter.Seq[ledger.WaitingJob], visit func(*ledger.WaitingJob) mergeStep) {
	h := make(mergeHeap, 0, len(waitlists))
	for _, waitlist := range waitlists {
		if cursor := (mergeCursor{waitlist: waitlist}); cursor.next() {
			h = append(h, cursor)
		}
	}
	heap.Init(&h)
	for len(h) > 1 {
		step := visit(h[0].job())
		if step == mergeStop {
			return
		}
		if step == mergeNext && h[0].next() {
			heap.Fix(&h, 0)
		} else {
			heap.Pop(&h)
		}
	}
	if len(h) == 1 {
		h[0].visitRest(visit)
	}
}

// mergeCursor is a position in a waitlist that is being merged. It reads the
// waitlist in growing chunks, each time from its start: most merges need only the
// first job of most waitlists, and an iterator that can be suspended (iter.Pull)
// costs more than that.
type mergeCursor struct {
	waitlist  iter.Seq[ledger.WaitingJob]
	jobs      []ledger.WaitingJob // the chunk that was read last
	pos       int                 // of the current job in jobs
	readCount int                 // number of jobs read, in all chunks
	end       bool                // jobs is the last chunk
}

func (h *mergeCursor) job() *ledger.WaitingJob { return &h.jobs[h.pos] }

// next moves to the next job, at first to the first one. It reports false at the end.
func (h *mergeCursor) next() bool {
	if h.pos++; h.pos < len(h.jobs) {
		return true
	}
	if h.end {
		return false
	}
	skip, limit := h.readCount, min(4*h.readCount+1, 4096)
	h.jobs, h.pos, h.end = h.jobs[:0], 0, true
	for w := range h.waitlist {
		if skip > 0 {
			skip--
			continue
		}
		if h.jobs = append(h.jobs, w); len(h.jobs) == limit {
			h.end = false
			break
		}
	}
	h.readCount += len(h.jobs)
	return len(h.jobs) > 0
}

// visitRest calls visit for the current job and all after it.
func (h *mergeCursor) visitRest(visit func(*ledger.WaitingJob) mergeStep) {
	skip := h.readCount - len(h.jobs) + h.pos
	for w := range h.waitlist {
		if skip > 0 {
			skip--
		} else if visit(&w) != mergeNext {
			return
		}
	}
}

type mergeHeap []mergeCursor

func (h mergeHeap) Len() int           { return len(h) }
func (h mergeHeap) Less(i, j int) bool { return h[i].job().Before(h[j].job()) }
func (h mergeHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *mergeHeap) Push(x any)        { *h = append(*h, x.(mergeCursor)) }
func (h *mergeHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// addPlacements adds the pending placements to the entry.
func (t *tenure) addPlacements(b *entryBuilder) {
	placements := t.entry.placements
	if len(placements) == 0 {
		return
	}
	c := &ledger.Place{Placements: make([]ledger.Placement, len(placements))}
	for i, p := range placements {
		c.Placements[i] = ledger.Placement{
			Job: p.ID, N: p.N, Node: p.slot.node.name, Incarnation: p.incarnation, Channel: p.slot.channel,
		}
	}
	b.add(c, func(r ledger.Result, index uint64) { t.finishPlacements(placements, r.Placed, index) })
	if len(placements) == maxPlacements {
		t.placeDirty = true // there may be more to place
	}
}
