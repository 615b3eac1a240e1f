package scheduler

import (
	"iter"
	"math"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/waitlist"
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

// place adds a placement, with a reserved slot, for every waiting job that may run now. Its cost depends on
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
			waitlist.Merge(pl.waitlistsFor(l, p.key), func(w *ledger.WaitingJob) waitlist.Step { return pl.placeJob(l, w, p) })
		}
	}
}

// placeJob reserves a slot of pool for a job, unless a placement of the job is in
// flight, its body cannot be read, or its queue has reached its limit.
func (pl *placer) placeJob(l *ledger.Ledger, w *ledger.WaitingJob, pool *pool) waitlist.Step {
	key := job.DispatchID{Job: w.ID, N: w.N}
	if _, ok := pl.inFlight[key]; ok {
		return waitlist.Next
	}
	if pl.lanes.unreadable(w.Position) {
		return waitlist.Next
	}
	if headroom := l.Headroom(w.Queue); headroom != math.MaxInt && headroom <= pl.byQueue[w.Queue] {
		return waitlist.SkipList
	}
	if len(pl.pending) >= maxPlacements {
		return waitlist.Stop
	}
	s := pool.reserve()
	if s == nil {
		return waitlist.Stop
	}
	p := &placement{WaitingJob: *w, slot: s, incarnation: s.node.incarnation}
	pl.inFlight[key] = p
	pl.byQueue[w.Queue]++
	pl.pending = append(pl.pending, p)
	pl.loop.entry.size += placementSize
	pl.loop.markUrgent()
	return waitlist.Next
}

// forget removes a placement, whose entry was applied, from those in flight.
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
