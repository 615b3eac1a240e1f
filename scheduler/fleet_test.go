package scheduler

import (
	"context"
	"sync"
	"testing"
	"time"

	"yardmaster/job"
)

// fakeFleet is the nodes, which report to whichever scheduler is in office.
type fakeFleet struct {
	t testing.TB

	mu     sync.Mutex
	nodes  map[string]*fakeNode
	office *Scheduler
	copies map[job.ID]int // running copies of a job, over all nodes
	double []string       // dispatches that started beside another of their job
	sent   []sentOrder
}

// sentOrder is an assignment that a scheduler sent, and when.
type sentOrder struct {
	job.Assignment
	node string
	at   time.Time
}

func (f *fakeFleet) Assign(node string, b job.Batch, done func([]job.Answer, error)) {
	f.mu.Lock()
	for _, a := range b.Assignments {
		f.sent = append(f.sent, sentOrder{a, node, time.Now()})
	}
	n := f.nodes[node]
	f.mu.Unlock()
	n.tell(func() {
		if answers := n.assign(b); answers != nil {
			done(answers, nil)
		}
	})
}

func (f *fakeFleet) Recall(node string, r job.Recall) {
	n := f.node(node)
	n.tell(func() { n.recall(r) })
}

func (f *fakeFleet) node(name string) *fakeNode {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[name]
}

func (f *fakeFleet) scheduler() *Scheduler {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.office
}

func (f *fakeFleet) orders() []sentOrder {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]sentOrder(nil), f.sent...)
}

// count follows the copies of a job.
func (f *fakeFleet) count(a *job.Assignment, change int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.copies[a.Job] > 0 && change > 0 {
		f.double = append(f.double, a.RequestID())
	}
	f.copies[a.Job] += change
}

// fakeNode is an agent with its hands. Only its own goroutine touches what is
// below tellQueue; tests look with look.
type fakeNode struct {
	fleet *fakeFleet
	name  string
	queue chan func()
	ended <-chan struct{}

	incarnation uint64
	free        map[seatKey]int
	changed     map[seatKey]bool
	rev, seen   uint64
	full        bool
	outcomes    []job.Outcome
	reporting   int // number of the report on its way; 0: none
	reports     int
	running     map[dispatchKey]*fakeRun
	known       map[dispatchKey]bool
	runners     []string
	edge        string
	draining    bool
	edges       []string // as it was told last

	ahead   time.Duration // its clock
	silent  bool          // nothing comes in or goes out
	mute    bool          // takes assignments, its answers get lost
	deaf    bool          // assignments get lost on their way
	deafAck bool          // hears no answer to its reports
	curt    bool          // does not tell again the room that a batch did not change
	refuse  job.Answer
	work    func(*job.Assignment) (time.Duration, job.Outcome)

	started   []job.Assignment
	recalled  []job.Recall
	settled   []job.Settled
	overruns  int // assignments beyond the room there was
	leaseEnds time.Time
}

type fakeRun struct {
	job.Assignment
	timer *time.Timer
}

func newFakeNode(f *fakeFleet, name string, ended <-chan struct{}) *fakeNode {
	n := &fakeNode{fleet: f, name: name, queue: make(chan func(), 1<<16), ended: ended, incarnation: 1, free: map[seatKey]int{}}
	n.work = func(*job.Assignment) (time.Duration, job.Outcome) {
		return 5 * time.Millisecond, job.Outcome{Status: job.Success}
	}
	n.reset()
	return n
}

func (n *fakeNode) reset() {
	n.changed, n.running, n.known = map[seatKey]bool{}, map[dispatchKey]*fakeRun{}, map[dispatchKey]bool{}
	n.rev, n.seen, n.full, n.outcomes, n.reporting = 0, 0, true, nil, 0
}

// tell hands a message to the node.
func (n *fakeNode) tell(f func()) {
	select {
	case n.queue <- f:
	case <-n.ended:
	}
}

// look runs fn between two messages.
func (n *fakeNode) look(fn func()) {
	done := make(chan struct{})
	n.tell(func() { fn(); n.flush(); close(done) })
	select {
	case <-done:
	case <-n.ended:
	}
}

func (n *fakeNode) run(ctx context.Context) {
	beat := time.NewTicker(time.Second)
	defer beat.Stop()
	n.beat()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-n.queue:
			f()
		case <-beat.C:
			n.beat()
		}
		n.flush()
	}
}

// beat sends a sign of life, and stops everything once the lease has ended.
func (n *fakeNode) beat() {
	if !n.leaseEnds.IsZero() && time.Now().After(n.leaseEnds) {
		for k, r := range n.running {
			n.finish(k, r, job.Outcome{Status: job.Lost, Started: true})
		}
	}
	if n.silent {
		return
	}
	sent := time.Now()
	b := job.Beat{Node: n.name, Incarnation: n.incarnation, At: sent.Add(n.ahead), Rev: n.rev, Running: len(n.running), Runners: n.runners, Edge: n.edge, Draining: n.draining}
	born := n.incarnation
	_ = n.fleet.scheduler().Beat(b, func(ack job.BeatAck) {
		n.tell(func() {
			if n.silent || n.incarnation != born {
				return
			}
			n.leaseEnds = sent.Add(ack.Lease)
			n.full = n.full || ack.WantFull
			n.edges = ack.Edges
		})
	})
}

func (n *fakeNode) assign(b job.Batch) []job.Answer {
	if n.silent || n.deaf {
		return nil
	}
	n.seen = max(n.seen, b.Number)
	answers := make([]job.Answer, len(b.Assignments))
	for i := range b.Assignments {
		a := &b.Assignments[i]
		if answers[i] = n.start(*a); !n.curt {
			n.changed[seatKey{roomKey{a.Kind, a.Key}, a.Worker}] = true
		}
	}
	if n.mute {
		return nil
	}
	return answers
}

func (n *fakeNode) start(a job.Assignment) job.Answer {
	k := dispatchKey{a.Job, a.N}
	seat := seatKey{roomKey{a.Kind, a.Key}, a.Worker}
	switch {
	case n.known[k]:
		return job.Taken
	case !a.Started.IsZero():
		return job.NoRoom // its worker has yet to bring it
	case n.refuse != 0:
		return n.refuse
	case n.free[seat] <= 0:
		n.overruns++
		return job.NoRoom
	}
	n.known[k] = true
	n.setFree(seat, n.free[seat]-1)
	n.fleet.count(&a, 1)
	n.started = append(n.started, a)
	r := &fakeRun{Assignment: a}
	n.running[k] = r
	lasts, outcome := n.work(&a)
	if lasts >= 0 {
		r.timer = time.AfterFunc(lasts, func() { n.tell(func() { n.finish(k, r, outcome) }) })
	}
	return job.Taken
}

func (n *fakeNode) finish(k dispatchKey, r *fakeRun, o job.Outcome) {
	if n.running[k] != r {
		return
	}
	delete(n.running, k)
	n.fleet.count(&r.Assignment, -1)
	seat := seatKey{roomKey{r.Kind, r.Key}, r.Worker}
	n.setFree(seat, n.free[seat]+1)
	o.Job, o.N = k.id, k.n
	n.outcomes = append(n.outcomes, o)
}

// bring has a worker come over with what it runs.
func (n *fakeNode) bring(a job.Assignment) {
	n.look(func() {
		k := dispatchKey{a.Job, a.N}
		n.known[k], n.running[k] = true, &fakeRun{Assignment: a}
	})
}

func (n *fakeNode) recall(r job.Recall) {
	if n.silent {
		return
	}
	n.recalled = append(n.recalled, r)
	k := dispatchKey{r.Job, r.N}
	if run := n.running[k]; run != nil {
		if r.Reason == job.RecallSuperseded && run.Kind == job.Overhop {
			delete(n.running, k) // its worker has taken it away
			return
		}
		n.finish(k, run, job.Outcome{Status: job.Cancelled, Started: true})
	}
}

func (n *fakeNode) setFree(k seatKey, free int) {
	n.free[k] = free
	n.changed[k] = true
}

// flush reports what has changed, one report at a time.
func (n *fakeNode) flush() {
	if n.silent || n.reporting != 0 || len(n.outcomes) == 0 && len(n.changed) == 0 && !n.full {
		return
	}
	r := job.Report{Node: n.name, Incarnation: n.incarnation, Outcomes: append([]job.Outcome(nil), n.outcomes...)}
	if n.full || len(n.changed) > 0 {
		n.rev++
		r.Rev, r.Seen, r.Full = n.rev, n.seen, n.full
		for k, free := range n.free {
			if n.full || n.changed[k] {
				r.Offers = append(r.Offers, job.Offer{Kind: k.kind, Key: k.key, Worker: k.worker, Free: free})
			}
		}
	}
	n.full = false
	clear(n.changed)
	n.reports++
	number := n.reports
	n.reporting = number
	err := n.fleet.scheduler().Report(r, func(ack job.ReportAck) { n.tell(func() { n.acked(number, ack) }) })
	wait := time.Second
	if err != nil {
		wait = 50 * time.Millisecond
	}
	time.AfterFunc(wait, func() {
		n.tell(func() {
			if n.reporting == number { // not answered: say it again
				n.reporting, n.full = 0, true
			}
		})
	})
}

func (n *fakeNode) acked(number int, ack job.ReportAck) {
	if n.silent || n.reporting != number || n.deafAck {
		return
	}
	n.reporting = 0
	n.full = n.full || ack.WantFull
	n.settled = append(n.settled, ack.Settled...)
	n.outcomes = n.outcomes[len(ack.Settled):]
}

// offer sets a worker's room.
func (n *fakeNode) offer(kind job.Kind, key, worker string, free int) {
	n.look(func() { n.setFree(seatKey{roomKey{kind, key}, worker}, free) })
}

// restart kills the node and starts it again: what it ran and offered is gone.
func (n *fakeNode) restart() {
	n.look(func() {
		for _, r := range n.running {
			n.fleet.count(&r.Assignment, -1)
		}
		clear(n.free)
		n.reset()
		n.incarnation++
		n.leaseEnds = time.Time{}
		n.beat()
	})
}

func (n *fakeNode) startedNow() (started []job.Assignment) {
	n.look(func() { started = append(started, n.started...) })
	return started
}
