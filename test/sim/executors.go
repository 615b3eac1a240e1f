package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// executors simulates the Overhop workers and runner processes of one node. Its
// methods are called by events, or by the agent.
type executors struct {
	*process
	byKind map[job.Kind]*executor
}

// executor simulates the workers of one kind. It implements agent.Target.
type executor struct {
	*executors
	kind      job.Kind
	available map[string]int // free capacity, by "key worker"
}

// jobRun is one execution of a dispatch at a node.
type jobRun struct {
	job.Assignment
	process       *process
	ended         bool
	detachedUntil time.Time        // until when its worker continues without a connection; zero: it is connected
	adopted       bool             // its worker has brought it from another node, and uses no capacity of this one
	left          bool             // its worker has taken it to another node, and no recall has told this one
	recalled      job.RecallReason // why this node was last asked to stop it; "": it was not
}

const runnerName = "rr"

// largeResult is too large for an outcome and is stored as a blob.
var largeResult = []byte(`"` + strings.Repeat("r", 2*job.MaxInlineResult) + `"`)

// initialOffers is the capacity of each node.
var initialOffers = []job.Offer{
	{Kind: job.Overhop, Key: "mail", Worker: "w1", Free: 2},
	{Kind: job.Overhop, Key: "mail", Worker: "w2", Free: 1},
	{Kind: job.Overhop, Key: "narrow", Worker: "w2", Free: 3},
	{Kind: job.RRQ, Key: runnerName, Worker: runnerName + "/4001", Free: 1},
	{Kind: job.RRQ, Key: runnerName, Worker: runnerName + "/4002", Free: 1},
}

func newExecutors(proc *process) *executors {
	h := &executors{process: proc, byKind: map[job.Kind]*executor{}}
	for _, k := range []job.Kind{job.Overhop, job.RRQ} {
		c := &executor{executors: h, kind: k, available: map[string]int{}}
		h.byKind[k] = c
		proc.agent.AddTarget(c)
	}
	return h
}

var _ agent.Target = (*executor)(nil)

// offerAll offers the node's capacity to its agent.
func (e *executors) offerAll() {
	for _, o := range initialOffers {
		e.byKind[o.Kind].release(o.Key, o.Worker, o.Free)
	}
}

// release adds n to a worker's free capacity and offers the result.
func (e *executor) release(key, worker string, n int) {
	slot := key + " " + worker
	e.available[slot] += n
	e.agent.Offer(job.Offer{Kind: e.kind, Key: key, Worker: worker, Free: e.available[slot]})
}

// stop ends the executions of a node that stops, except some of Overhop
// workers, which continue without a connection.
func (e *executors) stop() {
	if e == nil {
		return
	}
	var runs []*jobRun
	for _, r := range e.sim.checker.runs {
		if r.process == e.process && !r.ended && r.detachedUntil.IsZero() {
			runs = append(runs, r)
		}
	}
	slices.SortFunc(runs, func(a, b *jobRun) int { return strings.Compare(a.key(), b.key()) })
	for _, r := range runs {
		if r.Kind == job.Overhop && e.sim.chance("wanders "+r.key(), 500) {
			r.detach(e.sim)
			continue
		}
		r.ended = true
		if r.Kind == job.Overhop {
			e.byKind[r.Kind].reportLate(r)
		}
	}
}

// Kind implements agent.Target.
func (e *executor) Kind() job.Kind { return e.kind }

// Start implements agent.Target. It draws the outcome and the duration at random.
func (e *executor) Start(a job.Assignment, _ job.Spec) bool {
	sim := e.sim
	key := fmt.Sprintf("run %s", a.RequestID())
	if !e.up || e.available[a.Key+" "+a.Worker] == 0 || sim.minorFaultsActive() && sim.chance("gone "+key, 20) {
		return false
	}
	e.release(a.Key, a.Worker, -1)
	r := &jobRun{Assignment: a, process: e.process}
	sim.checker.onStarted(r)
	sim.trace("%s starts %s attempt %d fence %d", e.id, a.RequestID(), a.Attempt, a.Fence)
	o := job.Outcome{Job: a.Job, N: a.N, Status: job.Success, Started: true, Result: job.Value{Data: []byte(fmt.Sprint(a.N))}}
	lasts := sim.workTime(key, &a)
	switch n := sim.intn("how "+key, 100); {
	case sim.plan.Steps != nil, !sim.minorFaultsActive() && n > 90, n < 70:
	case n < 80:
		o.Status, o.Result, o.Fault = job.Error, job.Value{}, &job.Fault{Message: fmt.Sprintf("attempt %d failed", a.N)}
	case n < 85:
		o.Status, o.Result, o.Fault = job.Retry, job.Value{}, &job.Fault{Message: "again"}
	case n < 90:
		o = job.Outcome{Job: a.Job, N: a.N, Status: job.Declined}
		if sim.chance("snoozes "+key, 500) {
			o.Started, o.RetryAfter = true, new(sim.duration("snooze "+key, 100*time.Millisecond, 6*time.Second))
		}
	case n < 95: // its process crashes or its connection breaks
		o.Status, o.Result, o.Fault = job.Lost, job.Value{}, &job.Fault{Message: "it crashed", Type: job.FaultLost}
	case n < 97 && e.kind == job.Overhop: // its connection breaks, and it continues
		sim.after(lasts, "loose "+e.id+key, func() {
			if !r.ended && e.up && r.detachedUntil.IsZero() {
				r.detach(sim)
			}
		})
		return true
	default: // it hangs until its timeout
		lasts = a.Timeout
	}
	if o.Status == job.Success && sim.chance("large "+key, 60) {
		o.Result.Data = largeResult
	}
	if lasts >= a.Timeout {
		lasts = a.Timeout
		o.Status, o.Result, o.Fault = job.TimedOut, job.Value{}, &job.Fault{Message: "too long", Type: job.FaultTimeout}
	}
	sim.after(lasts, "end "+e.id+key, func() { e.finish(r, o) })
	return true
}

// workTime returns how long an attempt runs. Some first attempts run for longer than
// any lease, so that leases have to be renewed.
func (sim *simulation) workTime(key string, a *job.Assignment) time.Duration {
	if lasts := sim.plan.Lasts[a.Job]; lasts > 0 && a.Attempt <= 1 {
		return lasts
	}
	if a.Attempt <= 1 && sim.chance("long "+key, sim.shape.longJobs) {
		return sim.duration(key, 1500*time.Millisecond, sim.shape.longJob)
	}
	return sim.duration(key, time.Millisecond, 1500*time.Millisecond)
}

// leaseSlack is how long stopping all work may take after a lease has expired.
const leaseSlack = 100 * time.Millisecond

// finish ends an execution and reports its outcome, unless it has ended before.
func (e *executor) finish(r *jobRun, o job.Outcome) {
	if r.ended || !e.up || !r.detachedUntil.IsZero() {
		return
	}
	if past := time.Since(e.agent.Lease()); past > leaseSlack {
		e.sim.fail("%s runs at %s %s after its node's lease has expired", r.RequestID(), e.id, past)
	}
	r.ended = true
	e.sim.checker.onReported(o)
	e.sim.trace("%s ends %s %s", e.id, r.RequestID(), o.Status)
	e.agent.Report(o, nil)
	if !r.adopted {
		e.release(r.Key, r.Worker, 1)
	}
}

// Stop implements agent.Target. An execution stops after a short time, or at once if
// the lease has expired.
func (e *executor) Stop(recall job.Recall) {
	sim, id, n, reason := e.sim, recall.Job, recall.N, recall.Reason
	key := fmt.Sprintf("stop %s %s %s %d", e.id, job.RequestID(id, n), reason, recall.MoveIndex)
	wait := sim.duration(key, time.Microsecond, 80*time.Millisecond)
	if reason == job.RecallLease {
		wait = 0
	}
	sim.after(wait, key, func() {
		r := sim.checker.runs[runKey{id, n, e.id}]
		if r == nil || !e.up || recall.Outdated(r.MoveIndex) {
			return
		}
		if r.ended && (!r.left || reason != job.RecallLease && reason != job.RecallSuperseded) {
			r.recalled = reason // for reportGone, if it has left
			return
		}
		r.left = false
		if r.ended {
			if reason == job.RecallLease {
				r.reportGone(sim)
			}
			return
		}
		r.recalled = reason
		o := job.Outcome{Job: id, N: n, Status: job.Lost, Started: true, Fault: &job.Fault{Message: strings.ToLower(string(reason)), Type: job.FaultLost}}
		switch reason {
		case job.RecallCancelled, job.RecallQueueGone:
			o.Status, o.Fault.Type = job.RunCancelled, job.FaultCancelled
		case job.RecallShutdown:
			o.Status = job.Interrupted
		case job.RecallSuperseded:
			if e.kind == job.Overhop { // it is dropped without an outcome
				r.ended = true
				if !r.adopted {
					e.release(r.Key, r.Worker, 1)
				}
				return
			}
		}
		if reason == job.RecallLease && e.kind == job.Overhop {
			e.reportLate(r)
		}
		e.finish(r, o)
	})
}

// reportLate has a worker whose node is gone report a success later, to another node.
// It counts only if the dispatch is still current then.
func (e *executor) reportLate(r *jobRun) {
	sim := e.sim
	key := "late " + r.RequestID()
	if !sim.chance(key, 400) {
		return
	}
	sim.after(sim.duration(key, 50*time.Millisecond, 9*time.Second), key, func() {
		n := sim.nodes[sim.intn("at "+key, members)]
		if !n.process.up {
			return
		}
		o := job.Outcome{Job: r.Job, N: r.N, Status: job.Success, Started: true, Result: job.Value{Data: []byte(`"late"`)}}
		r.ended = true // also for a worker that has lost its connection: it reports and stops
		sim.checker.onReported(o)
		sim.trace("%s receives the late outcome of %s", n.process.id, r.RequestID())
		n.process.agent.Report(o, nil)
	})
}

// Parameters of a worker that has lost its connection. It continues until its lease
// has expired, and tries to resume its job at other nodes.
const (
	workerLease       = 6 * time.Second // from its last contact with a node
	reconnectAttempts = 4
)

// detach makes a worker lose its connection and try to resume its job at other nodes.
func (r *jobRun) detach(sim *simulation) {
	r.lose(sim)
	sim.reconnect(r, 1)
}

// lose makes a worker lose its connection and continue. It stops when its lease
// expires, unless it has resumed its job at another node.
func (r *jobRun) lose(sim *simulation) {
	r.detachedUntil = r.process.agent.WorkerLease(time.Now().Add(workerLease - sim.duration("last word "+r.key(), 0, 2*time.Second)))
	sim.trace("worker of %s disconnected from %s", r.RequestID(), r.process.id)
	sim.after(time.Until(r.detachedUntil), "stop alone "+r.key(), func() {
		if r.left && sim.checker.runs[runKey{r.Job, r.N, r.process.id}] == r { // else it has come back
			r.reportGone(sim)
		}
		if r.ended || r.detachedUntil.IsZero() {
			return
		}
		r.ended = true
		sim.trace("worker of %s stops, its lease has expired", r.RequestID())
		r.reportGone(sim) // the edge does so at the same time
		if r.process.up && !r.adopted {
			r.process.executors.byKind[r.Kind].release(r.Key, r.Worker, 1)
		}
	})
}

// reportGone has the job's node, if it is up, report that the job's worker has not
// returned in time.
func (r *jobRun) reportGone(sim *simulation) {
	if !r.process.up {
		return
	}
	sim.trace("%s reports that the worker of %s is gone", r.process.id, r.RequestID())
	o := job.Outcome{Job: r.Job, N: r.N, Status: job.Lost, Started: true, Fault: &job.Fault{Message: "its worker is gone", Type: job.FaultLost}, ByNode: true}
	switch r.recalled {
	case job.RecallCancelled, job.RecallQueueGone:
		o.Status, o.Fault.Type = job.RunCancelled, job.FaultCancelled
	case job.RecallShutdown:
		o.Status = job.Interrupted
	}
	r.process.agent.Report(o, nil)
}

func (r *jobRun) key() string { return fmt.Sprintf("%s %s", r.process.id, r.RequestID()) }

// reconnect has a worker resume its job at a random node after a random time, with up
// to reconnectAttempts attempts.
func (sim *simulation) reconnect(r *jobRun, try int) {
	key := fmt.Sprintf("seek %s %d", r.key(), try)
	sim.after(sim.duration(key, 10*time.Millisecond, 2500*time.Millisecond), key, func() {
		dst := sim.nodes[sim.intn("at "+key, members)].process
		again := func() {
			if try < reconnectAttempts {
				sim.reconnect(r, try+1)
			}
		}
		sim.bring(r, dst, again)
	})
}

// bring has a worker resume its job at a node. It calls failed if that is impossible.
func (sim *simulation) bring(r *jobRun, dst *process, failed func()) {
	if r.ended || r.detachedUntil.IsZero() || !dst.up || !dst.agentStarted {
		failed()
		return
	}
	sim.move(dst, r, job.Channel(job.Overhop, r.Worker), func(index uint64) {
		if index == 0 || !r.adoptAt(sim, dst, index) {
			failed()
		}
	})
}

// move has the authority move a dispatch to a node, and calls done with the index of
// the entry once that node has applied it; 0 if the move was refused or its result
// is unknown.
func (sim *simulation) move(dst *process, r *jobRun, channel string, done func(index uint64)) {
	authorityNode, _, ok := dst.authority.authority()
	if !ok {
		done(0)
		return
	}
	c := &ledger.MoveDispatch{Job: r.Job, N: r.N, Node: dst.name, Incarnation: dst.incarnation, Channel: channel}
	key := "move " + dst.id + " " + r.key()
	sim.net.send(dst, authorityNode, key, func(authority *process) {
		sim.group.Go(func() {
			ctx, cancel := context.WithTimeout(dst.ctx, 2*time.Second)
			defer cancel()
			result, index, err := authority.sched.Propose(ctx, c)
			if err != nil || result.Err != nil {
				index = 0
			}
			sim.after(0, "moved "+key, func() { sim.awaitApplied(dst, index, "await "+key, done) })
		})
	})
}

// awaitApplied calls then once a process has applied the entry with an index.
func (sim *simulation) awaitApplied(proc *process, index uint64, key string, then func(uint64)) {
	switch {
	case !proc.up:
	case uint64(proc.applied) >= index:
		then(index)
	default:
		sim.after(5*time.Millisecond, key, func() { sim.awaitApplied(proc, index, key, then) })
	}
}

// adoptAt has a node's agent adopt a job that its worker has brought. It reports
// whether the agent has.
func (r *jobRun) adoptAt(sim *simulation, dst *process, index uint64) bool {
	found, ok := dst.ledger.Dispatch(r.Job, r.N)
	if r.ended || r.detachedUntil.IsZero() || !ok || found.Node != dst.name || found.Incarnation != dst.incarnation {
		return false
	}
	a := r.Assignment
	a.Epoch, a.Started, a.MoveIndex = found.Epoch, found.Started, index
	if !dst.agent.Adopt(a) {
		return false
	}
	sim.trace("%s continues at %s", r.RequestID(), dst.id)
	r.ended, r.left = true, r.process != dst
	if r.process.up && !r.adopted {
		r.process.executors.byKind[r.Kind].release(r.Key, r.Worker, 1)
	}
	next := &jobRun{Assignment: a, process: dst, adopted: true}
	sim.checker.runs[runKey{r.Job, r.N, dst.id}] = next
	c := dst.executors.byKind[r.Kind]
	o := job.Outcome{Job: a.Job, N: a.N, Status: job.Success, Started: true, Result: job.Value{Data: []byte(`"moved"`)}}
	key := "end moved " + next.key()
	sim.after(sim.workTime(key, &a), key, func() { c.finish(next, o) })
	return true
}

// mayRun reports whether an execution may be running: it has not ended, and its node's
// or worker's lease has not expired.
func (r *jobRun) mayRun(now time.Time) bool {
	switch {
	case r.ended:
		return false
	case !r.detachedUntil.IsZero():
		return r.detachedUntil.After(now)
	}
	return r.process.up && r.process.agent.Lease().After(now)
}
