package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

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
		if r.ended || r.detachedUntil.IsZero() {
			return
		}
		r.ended = true
		sim.trace("worker of %s stops, its lease has expired", r.RequestID())
		if c := r.process.executors.byKind[r.Kind]; r.process.up { // the edge reports the loss at the same time
			c.agent.Report(job.Outcome{Job: r.Job, N: r.N, Status: job.Lost, Started: true, Fault: &job.Fault{Message: "its worker is gone", Type: job.FaultLost}}, nil)
			if !r.adopted {
				c.release(r.Key, r.Worker, 1)
			}
		}
	})
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
	r.ended = true
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
