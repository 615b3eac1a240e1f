package scheduler

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// fakeFleet is a set of fake nodes, which report to the current authority.
type fakeFleet struct {
	t testing.TB

	mu       sync.Mutex
	nodes    map[string]*fakeNode
	active   *Scheduler
	running  map[job.ID]int // running executions of a job, over all nodes
	overlaps []string       // dispatches that started while another one of their job ran
	sent     []sentAssignment
}

// sentAssignment is an assignment that was sent, and when.
type sentAssignment struct {
	job.Assignment
	node string
	at   time.Time
}

func (f *fakeFleet) Assign(node string, b job.AssignmentBatch, done func([]job.Answer, error)) {
	f.mu.Lock()
	for _, a := range b.Assignments {
		f.sent = append(f.sent, sentAssignment{a, node, time.Now()})
	}
	n := f.nodes[node]
	f.mu.Unlock()
	n.post(func() {
		if answers := n.assign(b); answers != nil {
			done(answers, nil)
		}
	})
}

func (f *fakeFleet) Recall(node string, r job.Recall) {
	n := f.node(node)
	n.post(func() { n.recall(r) })
}

func (f *fakeFleet) node(name string) *fakeNode {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[name]
}

func (f *fakeFleet) scheduler() *Scheduler {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.active
}

func (f *fakeFleet) assignments() []sentAssignment {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]sentAssignment(nil), f.sent...)
}

// count adds by to the number of a job's running executions.
func (f *fakeFleet) count(a *job.Assignment, change int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[a.Job] > 0 && change > 0 {
		f.overlaps = append(f.overlaps, a.RequestID())
	}
	f.running[a.Job] += change
}

// fakeNode simulates a node with its workers. The fields below done belong to its
// goroutine; tests use them through do.
type fakeNode struct {
	fleet *fakeFleet
	name  string
	queue chan func()
	done  <-chan struct{}
	beat  *time.Ticker // of its heartbeats

	incarnation uint64
	free        map[slotKey]int
	changed     map[slotKey]bool
	rev, seen   uint64
	full        bool
	outcomes    []job.Outcome
	reporting   int // number of the report in flight; 0: none
	reports     int
	running     map[job.DispatchID]*fakeRun
	known       map[job.DispatchID]bool
	runners     []string
	edge        string
	draining    bool
	edges       []string // from the last acknowledgement of a heartbeat

	epoch, ackSeq uint64 // of the last acknowledged heartbeat

	clockOffset     time.Duration // of its clock
	silent          bool          // sends and receives nothing
	dropAnswers     bool          // its answers to assignments get lost
	dropAssignments bool          // assignments to it get lost
	dropAcks        bool          // acknowledgements of its reports get lost
	noFullReports   bool          // does not report offers again that a batch did not change
	refuse          job.Answer
	work            func(*job.Assignment) (time.Duration, job.Outcome)

	started   []job.Assignment
	recalled  []job.Recall
	settled   []job.Settled
	overruns  int // assignments beyond its capacity
	leaseEnds time.Time
}

type fakeRun struct {
	job.Assignment
	timer *time.Timer
}

func newFakeNode(f *fakeFleet, name string, ended <-chan struct{}) *fakeNode {
	n := &fakeNode{fleet: f, name: name, queue: make(chan func(), 1<<16), done: ended, incarnation: 1, free: map[slotKey]int{}}
	n.work = func(*job.Assignment) (time.Duration, job.Outcome) {
		return 5 * time.Millisecond, job.Outcome{Status: job.Success}
	}
	n.reset()
	return n
}

func (n *fakeNode) reset() {
	n.changed, n.running, n.known = map[slotKey]bool{}, map[job.DispatchID]*fakeRun{}, map[job.DispatchID]bool{}
	n.rev, n.seen, n.full, n.outcomes, n.reporting = 0, 0, true, nil, 0
	n.epoch, n.ackSeq = 0, 0
}

// post sends a message to the node.
func (n *fakeNode) post(f func()) {
	select {
	case n.queue <- f:
	case <-n.done:
	}
}

// do runs fn between two messages.
func (n *fakeNode) do(fn func()) {
	done := make(chan struct{})
	n.post(func() { fn(); n.flush(); close(done) })
	select {
	case <-done:
	case <-n.done:
	}
}

func (n *fakeNode) run(ctx context.Context) {
	n.beat = time.NewTicker(time.Second)
	defer n.beat.Stop()
	n.heartbeat()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-n.queue:
			f()
		case <-n.beat.C:
			n.heartbeat()
		}
		n.flush()
	}
}

// heartbeat sends a heartbeat, and stops all work once the lease has expired.
func (n *fakeNode) heartbeat() {
	if !n.leaseEnds.IsZero() && time.Now().After(n.leaseEnds) {
		for k, r := range n.running {
			n.finish(k, r, job.Outcome{Status: job.Lost, Started: true})
		}
	}
	if n.silent {
		return
	}
	sent := time.Now()
	b := job.Heartbeat{
		Node: n.name, Incarnation: n.incarnation, At: sent.Add(n.clockOffset), Rev: n.rev, Running: len(n.running), Runners: n.runners, Edge: n.edge, Draining: n.draining,
		Epoch: n.epoch, AckSeq: n.ackSeq,
	}
	for k := range n.running {
		b.Dispatches = append(b.Dispatches, k)
	}
	for _, o := range n.outcomes {
		b.Dispatches = append(b.Dispatches, job.DispatchID{Job: o.Job, N: o.N})
	}
	incarnation := n.incarnation
	_ = n.fleet.scheduler().Heartbeat(b, func(ack job.HeartbeatAck) {
		n.post(func() {
			if n.silent || n.incarnation != incarnation {
				return
			}
			n.leaseEnds = sent.Add(ack.Lease)
			n.full = n.full || ack.WantFull
			n.edges = ack.Edges
			n.epoch, n.ackSeq = ack.Epoch, ack.Seq
		})
	})
}

func (n *fakeNode) assign(b job.AssignmentBatch) []job.Answer {
	if n.silent || n.dropAssignments {
		return nil
	}
	n.seen = max(n.seen, b.Number)
	answers := make([]job.Answer, len(b.Assignments))
	for i := range b.Assignments {
		a := &b.Assignments[i]
		if answers[i] = n.start(*a); !n.noFullReports {
			n.changed[slotKey{poolKey{a.Kind, a.Key}, a.Worker}] = true
		}
	}
	if n.dropAnswers {
		return nil
	}
	return answers
}

func (n *fakeNode) start(a job.Assignment) job.Answer {
	k := a.DispatchID()
	slot := slotKey{poolKey{a.Kind, a.Key}, a.Worker}
	switch {
	case n.running[k] != nil, n.known[k] && a.Started.IsZero():
		return job.Taken
	case !a.Started.IsZero():
		return job.NoCapacity // its worker has not resumed it here yet
	case n.refuse != 0:
		return n.refuse
	case n.free[slot] <= 0:
		n.overruns++
		return job.NoCapacity
	}
	n.known[k] = true
	n.setFree(slot, n.free[slot]-1)
	n.fleet.count(&a, 1)
	n.started = append(n.started, a)
	r := &fakeRun{Assignment: a}
	n.running[k] = r
	lasts, outcome := n.work(&a)
	if lasts >= 0 {
		r.timer = time.AfterFunc(lasts, func() { n.post(func() { n.finish(k, r, outcome) }) })
	}
	return job.Taken
}

func (n *fakeNode) finish(k job.DispatchID, r *fakeRun, o job.Outcome) {
	if n.running[k] != r {
		return
	}
	delete(n.running, k)
	n.fleet.count(&r.Assignment, -1)
	slot := slotKey{poolKey{r.Kind, r.Key}, r.Worker}
	n.setFree(slot, n.free[slot]+1)
	o.Job, o.N = k.Job, k.N
	n.outcomes = append(n.outcomes, o)
}

// moveHere has a worker resume its dispatch at this node.
func (n *fakeNode) moveHere(a job.Assignment) {
	n.do(func() {
		k := a.DispatchID()
		n.known[k], n.running[k] = true, &fakeRun{Assignment: a}
	})
}

func (n *fakeNode) recall(r job.Recall) {
	if n.silent {
		return
	}
	n.recalled = append(n.recalled, r)
	k := r.DispatchID()
	if run := n.running[k]; run != nil {
		if r.Reason == job.RecallSuperseded && run.Kind == job.Overhop {
			delete(n.running, k) // its worker has resumed it elsewhere
			return
		}
		n.finish(k, run, job.Outcome{Status: job.RunCancelled, Started: true})
	}
}

func (n *fakeNode) setFree(k slotKey, free int) {
	n.free[k] = free
	n.changed[k] = true
}

// flush reports changes, one report at a time.
func (n *fakeNode) flush() {
	if n.silent || n.reporting != 0 || len(n.outcomes) == 0 && len(n.changed) == 0 && !n.full {
		return
	}
	r := job.Report{Node: n.name, Incarnation: n.incarnation, Outcomes: append([]job.Outcome(nil), n.outcomes...)}
	if n.full || len(n.changed) > 0 {
		n.rev++
		r.Rev, r.SeenBatch, r.Full = n.rev, n.seen, n.full
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
	err := n.fleet.scheduler().Report(r, func(ack job.ReportAck) { n.post(func() { n.acked(number, ack) }) })
	wait := time.Second
	if err != nil {
		wait = 50 * time.Millisecond
	}
	time.AfterFunc(wait, func() {
		n.post(func() {
			if n.reporting == number { // not acknowledged: report again
				n.reporting, n.full = 0, true
			}
		})
	})
}

func (n *fakeNode) acked(number int, ack job.ReportAck) {
	if n.silent || n.reporting != number || n.dropAcks {
		return
	}
	n.reporting = 0
	n.full = n.full || ack.WantFull
	n.settled = append(n.settled, ack.Settled...)
	n.outcomes = n.outcomes[len(ack.Settled):]
}

// offer sets a worker's free capacity.
func (n *fakeNode) offer(kind job.Kind, key, worker string, free int) {
	n.do(func() { n.setFree(slotKey{poolKey{kind, key}, worker}, free) })
}

// restart kills the node and starts it again without its dispatches and offers.
func (n *fakeNode) restart() {
	n.do(func() {
		for _, r := range n.running {
			n.fleet.count(&r.Assignment, -1)
		}
		clear(n.free)
		n.reset()
		n.incarnation++
		n.leaseEnds = time.Time{}
		n.heartbeat()
	})
}

func (n *fakeNode) startedNow() (started []job.Assignment) {
	n.do(func() { started = append(started, n.started...) })
	return started
}
