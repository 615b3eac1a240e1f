package scheduler

import (
	"container/heap"
	"iter"
	"math"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

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

// placer decides which waiting job runs where. It belongs to the loop's goroutine.
type placer struct {
	loop     *eventLoop
	lanes    *lanes // what is being ingested can be placed, too
	capacity *capacity
	pending  []*placement                  // wait for the next entry
	inFlight map[job.DispatchID]*placement // until their entry is applied, with the pending ones
	byQueue  map[string]int                // number of inFlight, by queue
	nextPool int                           // index in capacity.roundRobin of the pool that is served first
}

func newPlacer(loop *eventLoop, lanes *lanes, c *capacity) *placer {
	return &placer{loop: loop, lanes: lanes, capacity: c, inFlight: map[job.DispatchID]*placement{}, byQueue: map[string]int{}}
}

// place reserves a slot for every waiting job that may run now. Its cost depends on
// the number of placements it makes, not on the number of waiting jobs. It does
// nothing while the outbox is three quarters full.
func (pl *placer) place(l *ledger.Ledger) {
	if l.OutboxBytes() >= ledger.MaxOutbox/4*3 {
		return
	}
	for i := range pl.capacity.roundRobin {
		if len(pl.pending) >= maxPlacements {
			pl.nextPool += i // the next entry continues with this pool
			return
		}
		p := pl.capacity.roundRobin[(pl.nextPool+i)%len(pl.capacity.roundRobin)]
		if p.hasAvailable() {
			merge(pl.waitlistsFor(l, p.key), func(w *ledger.WaitingJob) mergeStep { return pl.placeJob(l, w, p) })
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
func (pl *placer) placeJob(l *ledger.Ledger, w *ledger.WaitingJob, pool *pool) mergeStep {
	key := job.DispatchID{Job: w.ID, N: w.N}
	if _, ok := pl.inFlight[key]; ok {
		return mergeNext
	}
	if pl.lanes.unreadable(w.Position) {
		return mergeNext
	}
	if headroom := l.Headroom(w.Queue); headroom != math.MaxInt && headroom <= pl.byQueue[w.Queue] {
		return mergeSkipList
	}
	if len(pl.pending) >= maxPlacements {
		return mergeStop
	}
	s := pool.reserve()
	if s == nil {
		return mergeStop
	}
	p := &placement{WaitingJob: *w, slot: s, incarnation: s.node.incarnation}
	pl.inFlight[key] = p
	pl.byQueue[w.Queue]++
	pl.pending = append(pl.pending, p)
	pl.loop.entry.size += placementSize
	pl.loop.markUrgent()
	return mergeNext
}

// forget drops a placement whose entry was applied.
func (pl *placer) forget(p *placement) {
	delete(pl.inFlight, job.DispatchID{Job: p.ID, N: p.N})
	if pl.byQueue[p.Queue]--; pl.byQueue[p.Queue] == 0 {
		delete(pl.byQueue, p.Queue)
	}
}

// waitlistsFor returns the waitlists, with the provisional ones, whose jobs the
// workers of a pool may run. It leaves out queues that have reached their limit.
func (pl *placer) waitlistsFor(l *ledger.Ledger, k poolKey) []iter.Seq[ledger.WaitingJob] {
	var waitlists []iter.Seq[ledger.WaitingJob]
	add := func(queue, class string) {
		if headroom := l.Headroom(queue); headroom <= pl.byQueue[queue] {
			return
		}
		waitlists = append(waitlists, func(yield func(ledger.WaitingJob) bool) { l.WaitingJobs(queue, class, yield) })
		if jobs := pl.lanes.provisional[waitlistKey{queue, class}]; len(jobs) > 0 {
			waitlists = append(waitlists, provisionalSeq(jobs))
		}
	}
	if k.kind == job.Overhop {
		if pl.loop.cfg.Routes[k.key] == "" {
			add(k.key, ledger.ClassPlain)
			add(k.key, ledger.ClassBare)
		}
		return waitlists
	}
	runnerClass := k.key + "#"
	pl.queuesOfClass(l, runnerClass, func(queue string) { add(queue, runnerClass) })
	for queue, runner := range pl.loop.cfg.Routes {
		if runner == k.key {
			add(queue, ledger.ClassPlain)
			add(queue, ledger.ClassBare)
		}
	}
	if k.key == pl.loop.cfg.DefaultRunner {
		pl.queuesOfClass(l, ledger.ClassBare, func(queue string) {
			if pl.loop.cfg.Routes[queue] == "" {
				add(queue, ledger.ClassBare)
			}
		})
	}
	return waitlists
}

// queuesOfClass calls yield once for each queue that has waiting jobs of a class, in
// the ledger or provisional.
func (pl *placer) queuesOfClass(l *ledger.Ledger, class string, yield func(queue string)) {
	seen := map[string]bool{}
	l.QueuesWaiting(class, func(queue string) bool {
		seen[queue] = true
		yield(queue)
		return true
	})
	for k := range pl.lanes.provisional {
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

// addPlacements moves the pending placements into the entry. It calls done once the
// entry is applied, with whether the ledger has accepted each, and the entry's index.
func (pl *placer) addPlacements(b *entryBuilder, done func(placements []*placement, placed []bool, index uint64)) {
	placements := pl.pending
	pl.pending = nil
	if len(placements) == 0 {
		return
	}
	c := &ledger.Place{Placements: make([]ledger.Placement, len(placements))}
	for i, p := range placements {
		c.Placements[i] = ledger.Placement{
			Job: p.ID, N: p.N, Node: p.slot.node.name, Incarnation: p.incarnation, Channel: p.slot.channel,
		}
	}
	b.add(c, func(r ledger.Result, index uint64) { done(placements, r.Placed, index) })
	if len(placements) == maxPlacements {
		pl.loop.placeDirty = true // there may be more to place
	}
}
