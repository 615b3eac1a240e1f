package yardtest

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// gate passes the capacity of workers on to the authority, or withholds it. It is closed
// while nothing is due, so that a job which is enqueued waits until virtual time passes.
type gate struct {
	wake chan struct{} // buffer of one: the capacity or mode has changed

	mu       sync.Mutex // guards the fields below
	mode     gateMode
	free     map[slot]int // capacity, as the members' edges announced it last
	only     slot         // in mode single: the slot that may start a job
	started  job.DispatchID
	failures map[string]int // how many attempts of a queue are still to fail
	ready    map[string]bool
}

// gateMode is which capacity a gate passes on.
type gateMode int

const (
	closed gateMode = iota // none; the gate opens once something is due
	open                   // all; the gate closes once nothing is due and no job runs
	held                   // none, until another mode is set
	single                 // one slot of only, until it has started a job
)

// slot is the capacity of one worker for one queue.
type slot struct {
	node          *node
	queue, worker string
}

func newGate() *gate {
	return &gate{wake: make(chan struct{}, 1), free: map[slot]int{}, failures: map[string]int{}, ready: map[string]bool{}}
}

// offer receives the capacity of a worker of a member.
func (g *gate) offer(n *node, o job.Offer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := slot{n, o.Key, o.Worker}
	if g.free[s] = o.Free; o.Free == 0 {
		delete(g.free, s)
	} else {
		g.ready[o.Worker] = true
	}
	g.passLocked(s)
	wakeup.Send(g.wake)
}

// passLocked passes the capacity of a slot on to its agent, as far as the mode allows it. mu
// is held.
func (g *gate) passLocked(s slot) {
	free := g.free[s]
	switch {
	case g.mode == open:
	case g.mode == single && s == g.only && g.started.Job.IsZero():
		free = min(free, 1)
	default:
		free = 0
	}
	s.node.Agent.Offer(job.Offer{Kind: job.Overhop, Key: s.queue, Worker: s.worker, Free: free})
}

// set sets the mode. only is the slot of mode single.
func (g *gate) set(mode gateMode, only slot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.setLocked(mode, only)
}

func (g *gate) setLocked(mode gateMode, only slot) {
	g.mode, g.only, g.started = mode, only, job.DispatchID{}
	for s := range g.free {
		g.passLocked(s)
	}
	wakeup.Send(g.wake)
}

// change sets the mode to to if it is from.
func (g *gate) change(from, to gateMode) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mode == from {
		g.setLocked(to, slot{})
	}
}

func (g *gate) get() gateMode {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mode
}

// admit reports whether a dispatch may start: the authority may not know yet that the
// capacity was withdrawn.
func (g *gate) admit(n *node, a *job.Assignment) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.mode == single && g.only == (slot{n, a.Key, a.Worker}) && g.started.Job.IsZero():
		g.started = a.DispatchID()
		return true
	case g.mode == open:
		return true
	}
	return false
}

// chosen returns the dispatch that mode single has started, or the zero value.
func (g *gate) chosen() job.DispatchID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.started
}

// forget drops the capacity of a member that was killed.
func (g *gate) forget(n *node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.free, func(s slot, _ int) bool { return s.node == n })
	wakeup.Send(g.wake)
}

// hasOffered reports whether a worker, by its id, has ever offered capacity.
func (g *gate) hasOffered(worker string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ready[worker]
}

// slotOf returns a slot with capacity for a queue. ok is false if there is none.
func (g *gate) slotOf(queue string) (found slot, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	slots := slices.SortedFunc(maps.Keys(g.free), func(a, b slot) int {
		return cmp.Or(cmp.Compare(a.node.Name, b.node.Name), cmp.Compare(a.worker, b.worker))
	})
	for _, s := range slots {
		if s.queue == queue {
			return s, true
		}
	}
	return slot{}, false
}

// failNext makes the next n attempts of a queue fail.
func (g *gate) failNext(queue string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failures[queue] += n
}

// takeFailure reports whether an attempt of a queue is to fail.
func (g *gate) takeFailure(queue string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failures[queue] == 0 {
		return false
	}
	g.failures[queue]--
	return true
}

// workload is what there is to do, by one member's ledger.
type workload struct {
	due       []string // queues with a job that could start, if they had capacity
	startable bool     // one of due has capacity
	active    int      // jobs that run
}

// workload returns what there is to do.
func (g *gate) workload(l *ledger.Ledger) (w workload) {
	for _, q := range l.Queues() {
		w.active += q.Counts[job.Active]
		if q.Counts[job.Waiting] > 0 && l.Headroom(q.Name) > 0 {
			w.due = append(w.due, q.Name)
			_, ok := g.slotOf(q.Name)
			w.startable = w.startable || ok
		}
	}
	return w
}
