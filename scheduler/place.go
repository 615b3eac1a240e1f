package scheduler

import (
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/waitlist"
)

// waitlistKey identifies a waitlist: the waiting jobs of a queue that the same
// workers may run.
type waitlistKey struct{ queue, class string }

// placement is a job and the slot that is reserved for it, until the entry with the
// placement is applied.
type placement struct {
	ledger.WaitingJob
	uses        []ledger.Use // the limits that it uses
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
	limits   limitsInFlight
	turns    map[string]ledger.FairTurn // of fair queues
	next     int                        // index in capacity.runners of the pool that is served first; the workers' pools count as one more
	cut      bool                       // the last placeOnWorkers did not get to all pools
	served   string                     // the queue that got slots last, see queuesInTurn
	merger   waitlist.Merger
	unused   []placement
	lottery  lottery // decides when a job of a lower priority starts first

	at     time.Time    // the time of the present call of place, in elapsed time, see [ledger.Clock]
	wakeAt time.Time    // when the rate or circuit of a limit may permit a start; zero: none is known
	uses   []ledger.Use // of the job that was checked last
}

func newPlacer(loop *eventLoop, lanes *lanes, c *capacity) *placer {
	return &placer{
		loop: loop, lanes: lanes, capacity: c, inFlight: map[job.DispatchID]*placement{}, byQueue: map[string]int{},
		limits: newLimitsInFlight(), turns: map[string]ledger.FairTurn{}, lottery: lottery{seed: loop.epoch},
	}
}

// place adds a placement, with a reserved slot, for every waiting job that may run now. Its
// cost depends on the number of placements it makes and on the smaller of two numbers: that
// of the queues whose workers have free capacity, and that of the waitlists. It does
// nothing while the outbox is three quarters full. at is not after the elapsed time of the next
// entry, so that what limits permit then, they permit when the entry is applied.
func (pl *placer) place(l *ledger.Ledger, at time.Time) {
	pl.at, pl.wakeAt = at, time.Time{}
	clear(pl.limits.full)
	if l.OutboxBytes() >= ledger.MaxOutbox/4*3 {
		return
	}
	runners := pl.capacity.runners
	for i := range len(runners) + 1 {
		if pl.full() {
			pl.next += i // the next entry continues here
			return
		}
		if k := (pl.next + i) % (len(runners) + 1); k == len(runners) {
			pl.placeOnWorkers(l)
		} else if runners[k].hasAvailable() {
			pl.placeFor(l, runners[k])
		}
	}
}

// full reports whether the entry has as many placements as it may have.
func (pl *placer) full() bool { return len(pl.pending) >= maxPlacements }

// placeOnWorkers places jobs on the slots of workers. It starts from the waitlists if there
// are fewer of them than queues with free capacity. If the last call filled the entry, it
// starts from the pools, which take turns.
func (pl *placer) placeOnWorkers(l *ledger.Ledger) {
	c := pl.capacity
	if !pl.cut && l.Waitlists()+len(pl.lanes.provisional) < len(c.workers) {
		visit := func(queue string) bool {
			if p := c.pools[poolKey{job.Overhop, queue}]; p != nil && p.hasAvailable() {
				pl.placeFor(l, p)
			}
			return !pl.full()
		}
		if l.HasLimits() {
			pl.queuesInTurn(l, visit)
		} else {
			pl.queuesOfClass(l, ledger.ClassPlain, visit)
			pl.queuesOfClass(l, ledger.ClassBare, visit)
		}
		pl.cut = pl.full()
		return
	}
	var served []*pool // they come last the next time, so that queues that share a limit take turns
	pl.cut = false
	for range len(c.workers) {
		if pl.cut = pl.full(); pl.cut {
			break
		}
		p := c.popWorkers()
		if !p.hasAvailable() {
			continue
		}
		before := len(pl.pending)
		pl.placeFor(l, p)
		p.list()
		if len(pl.pending) > before && l.HasLimits() {
			served = append(served, p)
		}
	}
	for _, p := range served {
		p.listLast()
	}
}

// placeFor places jobs on the slots of a pool: in start order, apart from overdue jobs,
// which the lottery puts before jobs of higher priorities.
func (pl *placer) placeFor(l *ledger.Ledger, p *pool) {
	lists := pl.waitlistsFor(l, p.key)
	overdue := overdueJobs{placer: pl, ledger: l, pool: p, lists: lists}
	pl.merger.Merge(pl.jobsOf(l, lists), func(w *ledger.WaitingJob) waitlist.Step {
		step, ok := pl.check(l, w)
		if ok && pl.lottery.draw() && overdue.placeBefore(w) {
			step, ok = pl.check(l, w) // the overdue job may have been the last that fits
		}
		if !ok {
			return step
		}
		return pl.reserve(l, w, p)
	})
}

// check reports whether a job can be placed. It cannot if a placement of it is in flight,
// if its body cannot be read, if its queue or a limit that it uses permits no start, or if the
// entry is full; step is then how the merge of the waitlists continues.
func (pl *placer) check(l *ledger.Ledger, w *ledger.WaitingJob) (step waitlist.Step, ok bool) {
	if pl.Placed(job.DispatchID{Job: w.ID, N: w.N}) || pl.lanes.unreadable(w.Position) {
		return waitlist.Next, false
	}
	if headroom := l.Headroom(w.Queue); headroom != math.MaxInt && headroom <= pl.byQueue[w.Queue] {
		return waitlist.SkipList, false
	}
	if pl.full() {
		return waitlist.Stop, false
	}
	pl.uses = nil
	if l.HasLimits() {
		return pl.checkLimits(l, w)
	}
	return waitlist.Next, true
}

// reserve places a job on a slot of pool. It returns [waitlist.Stop] if there is none.
func (pl *placer) reserve(l *ledger.Ledger, w *ledger.WaitingJob, pool *pool) waitlist.Step {
	s := pool.reserve()
	if s == nil {
		return waitlist.Stop
	}
	p := pl.newPlacement()
	*p = placement{WaitingJob: *w, uses: pl.uses, slot: s, incarnation: s.node.incarnation}
	pl.inFlight[job.DispatchID{Job: w.ID, N: w.N}] = p
	pl.byQueue[w.Queue]++
	pl.limits.add(p.uses, 1)
	if l.IsFair(w.Queue) {
		pl.turns[w.Queue] = pl.turns[w.Queue].After(w.LimitKey, l.KeyWeight(w.Queue, w.LimitKey))
	}
	pl.pending = append(pl.pending, p)
	pl.loop.entry.size += placementSize
	pl.loop.markUrgent()
	return waitlist.Next
}

// placementChunk is how many placements are allocated together. All of them end with their
// entries, within moments.
const placementChunk = 32

// newPlacement returns a placement that is not used yet.
func (pl *placer) newPlacement() *placement {
	if len(pl.unused) == 0 {
		pl.unused = make([]placement, placementChunk)
	}
	p := &pl.unused[0]
	pl.unused = pl.unused[1:]
	return p
}

// forget removes a placement, whose entry was applied, from those in flight.
func (pl *placer) forget(p *placement) {
	delete(pl.inFlight, job.DispatchID{Job: p.ID, N: p.N})
	pl.limits.add(p.uses, -1)
	if pl.byQueue[p.Queue]--; pl.byQueue[p.Queue] == 0 {
		delete(pl.byQueue, p.Queue)
	}
}

// jobsOf returns the jobs of waitlists that may start, in the order of their queues: those in
// the ledger, and those whose ingest is in flight. The waitlists of a fair queue are one list.
func (pl *placer) jobsOf(l *ledger.Ledger, ids []ledger.WaitlistID) []iter.Seq[ledger.WaitingJob] {
	jobs := make([]iter.Seq[ledger.WaitingJob], 0, len(ids))
	var fair map[string][]ledger.WaitlistID
	for _, id := range ids {
		if l.IsFair(id.Queue) {
			if fair == nil {
				fair = make(map[string][]ledger.WaitlistID)
			}
			fair[id.Queue] = append(fair[id.Queue], id)
			continue
		}
		jobs = append(jobs, func(yield func(ledger.WaitingJob) bool) { l.Placeable(id, pl, yield) })
		if provisional := pl.lanes.provisional[waitlistKey{id.Queue, id.Class}]; id.Own == "" && len(provisional) > 0 {
			jobs = append(jobs, provisionalSeq(provisional))
		}
	}
	for _, queue := range slices.Sorted(maps.Keys(fair)) {
		turn := pl.turns[queue]
		jobs = append(jobs, func(yield func(ledger.WaitingJob) bool) { l.PlaceableFairly(fair[queue], turn, pl, yield) })
	}
	return jobs
}

// waitlistsFor returns the waitlists whose jobs the workers of a pool may run. It leaves
// out those that their queue or a limit blocks.
func (pl *placer) waitlistsFor(l *ledger.Ledger, k poolKey) (ids []ledger.WaitlistID) {
	add := func(queue, class string) bool {
		if headroom := l.Headroom(queue); headroom <= pl.byQueue[queue] {
			return true
		}
		plain := ledger.WaitlistID{Queue: queue, Class: class}
		inLedger := false
		l.WaitlistsOfQueue(queue, class, func(id ledger.WaitlistID) bool {
			inLedger = inLedger || id == plain
			if !l.HasLimits() || pl.hasRoom(l, id) {
				ids = append(ids, id)
			}
			return true
		})
		if !inLedger && len(pl.lanes.provisional[waitlistKey{queue, class}]) > 0 {
			ids = append(ids, plain)
		}
		return true
	}
	if k.kind == job.Overhop {
		if pl.loop.cfg.Routes[k.key] == "" {
			add(k.key, ledger.ClassPlain)
			add(k.key, ledger.ClassBare)
		}
		return ids
	}
	runnerClass := k.key + "#"
	pl.queuesOfClass(l, runnerClass, func(queue string) bool { return add(queue, runnerClass) })
	for queue, runner := range pl.loop.cfg.Routes {
		if runner == k.key {
			add(queue, ledger.ClassPlain)
			add(queue, ledger.ClassBare)
		}
	}
	if k.key == pl.loop.cfg.DefaultRunner {
		pl.queuesOfClass(l, ledger.ClassBare, func(queue string) bool {
			return pl.loop.cfg.Routes[queue] != "" || add(queue, ledger.ClassBare)
		})
	}
	return ids
}

// queuesOfClass calls yield once for each queue that has waiting jobs of a class, in the
// ledger or provisional, until it returns false.
func (pl *placer) queuesOfClass(l *ledger.Ledger, class string, yield func(queue string) bool) {
	stopped := false
	l.QueuesWaiting(class, func(queue string) bool {
		stopped = !yield(queue)
		return !stopped
	})
	for k := range pl.lanes.provisional {
		if stopped {
			return
		}
		if k.class == class && !anyWaiting(l, k.queue, class) {
			stopped = !yield(k.queue)
		}
	}
}

// queuesInTurn calls visit for the queues with jobs for workers, those after the last one that
// got a slot first, so that queues that share a limit take turns with what it frees.
func (pl *placer) queuesInTurn(l *ledger.Ledger, visit func(queue string) bool) {
	first := pl.served
	for _, after := range [...]bool{true, false} {
		visitPart := func(queue string) bool {
			if (queue > first) != after {
				return true
			}
			before := len(pl.pending)
			more := visit(queue)
			if len(pl.pending) > before {
				pl.served = queue
			}
			return more
		}
		pl.queuesOfClass(l, ledger.ClassPlain, visitPart)
		pl.queuesOfClass(l, ledger.ClassBare, visitPart)
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

const (
	orphanInterval = time.Second // between two runs of orphans.sweep
	maxOrphans     = 1000        // jobs cancelled per run
)

// orphans finds the orphans: waiting jobs that need a runner which no live member has.
// It belongs to the loop's goroutine.
type orphans struct {
	loop        *eventLoop
	capacity    *capacity
	checkedAt   time.Time // when sweep last ran
	awayReasons []string  // for each runner that jobs wait for and no live member has, see awayReason
}

// sweep handles the orphans, the waiting jobs that need a runner which no live member has,
// at most once per orphanInterval. If no member is configured for the runner, sweep cancels
// the jobs, up to maxOrphans in one call and none before every member has reported its
// runners. Otherwise they wait, and awayReasons states which runner they need.
func (o *orphans) sweep(now time.Time) {
	if now.Sub(o.checkedAt) < orphanInterval {
		return
	}
	o.checkedAt = now
	owners, available, unreported := o.capacity.runnerOwners()
	reasons := map[string]string{} // by runner
	cancelsLeft := maxOrphans
	o.loop.ledger.View(func(l *ledger.Ledger) {
		o.scanQueues(l, func(runner, queue, class string) {
			switch {
			case available[runner]:
				return // a live member has it: the jobs are not orphans
			case len(owners[runner]) == 0 && len(unreported) == 0:
				cancelsLeft -= o.cancel(l, runner, queue, class, cancelsLeft)
			case anyWaiting(l, queue, class):
				reasons[runner] = awayReason(runner, owners[runner], unreported)
			}
		})
	})
	o.awayReasons = o.awayReasons[:0]
	for _, runner := range slices.Sorted(maps.Keys(reasons)) {
		o.awayReasons = append(o.awayReasons, reasons[runner])
	}
}

// scanQueues calls fn for every waitlist whose jobs only one runner may run: the waiting
// jobs of a queue that have the same class.
func (o *orphans) scanQueues(l *ledger.Ledger, fn func(runner, queue, class string)) {
	for class := range l.Classes {
		if runner, _ := job.SplitFunction(class); runner != "" {
			l.QueuesWaiting(class, func(queue string) bool {
				fn(runner, queue, class)
				return true
			})
		}
	}
	for queue, runner := range o.loop.cfg.Routes {
		fn(runner, queue, ledger.ClassPlain)
		fn(runner, queue, ledger.ClassBare)
	}
}

// cancel cancels the first jobs of a queue and class, at most limit, and returns how many it
// has cancelled.
func (o *orphans) cancel(l *ledger.Ledger, runner, queue, class string, limit int) (cancelled int) {
	l.WaitlistsOfQueue(queue, class, func(id ledger.WaitlistID) bool {
		l.WaitingJobs(id, func(w ledger.WaitingJob) bool {
			if cancelled == limit {
				return false
			}
			cancelled++
			o.loop.submit(&ledger.CancelJob{
				Job: w.ID, Reason: "No runner configured for '" + runner + "'.", Type: job.HandlerNotFound,
			}, nil)
			return true
		})
		return cancelled < limit
	})
	return cancelled
}

// anyWaiting reports whether the ledger has a waiting job of a queue and class.
func anyWaiting(l *ledger.Ledger, queue, class string) (found bool) {
	l.WaitlistsOfQueue(queue, class, func(ledger.WaitlistID) bool {
		found = true
		return false
	})
	return found
}

// awayReason returns the readiness reason for jobs that wait for a runner, which the
// members in owners are configured for and those in unreported might be.
func awayReason(runner string, owners, unreported []string) string {
	if len(owners) == 0 {
		return fmt.Sprintf("jobs wait for runner %s, which no member with a heartbeat has; no heartbeat yet from: %s", runner, strings.Join(unreported, ", "))
	}
	return fmt.Sprintf("jobs wait for runner %s, which only members that are down have: %s", runner, strings.Join(owners, ", "))
}
