package sim

import (
	"container/heap"
	"context"
	"fmt"
	"hash"
	"hash/fnv"
	"log/slog"
	"strings"
	"sync"
	"testing/synctest"
	"time"
)

// Report is the result of one run.
type Report struct {
	Plan
	TraceHash      uint64   // hash of the trace; 0 unless Plan.Trace or Plan.Verbose is set
	Log            []string // the trace, if Plan.Verbose is set
	Failures       []string // violated invariants; empty if the run succeeded
	Accepted       int      // jobs
	Entries        int      // Raft entries
	Tenures        int
	Crashes        int
	Restarts       int           // starts of jobs after their first start
	StaleOutcomes  int           // outcomes that came too late and were ignored
	Moves          int           // dispatches that moved to another node
	Ticks          int           // cron ticks that made a job
	Faults         int           // faults of the plan, also those left out
	TruncatedLanes int           // truncations of lanes that the authority has reported
	Duration       time.Duration // simulated time
}

// add adds o's counts to r's.
func (r *Report) add(o *Report) {
	r.Accepted += o.Accepted
	r.Entries += o.Entries
	r.Tenures += o.Tenures
	r.Crashes += o.Crashes
	r.Restarts += o.Restarts
	r.StaleOutcomes += o.StaleOutcomes
	r.Moves += o.Moves
	r.Ticks += o.Ticks
	r.Faults += o.Faults
	r.TruncatedLanes += o.TruncatedLanes
	r.Duration += o.Duration
}

// summary returns r's counts as text.
func (r *Report) summary() string {
	return fmt.Sprintf("%d jobs, %d entries, %d faults, %d leaders, %d crashes, %d truncated lanes, %d jobs restarted, %d moved, %d ticks, %d stale outcomes, %s",
		r.Accepted, r.Entries, r.Faults, r.Tenures, r.Crashes, r.TruncatedLanes, r.Restarts, r.Moves, r.Ticks, r.StaleOutcomes, r.Duration.Round(time.Second))
}

// Durations of a run, in simulated time.
const (
	warmup          = time.Second      // before the first fault
	faultPhase      = 12 * time.Second // the time of faults
	recoveryTimeout = 90 * time.Second // after the fault phase, within which all jobs must end
	checkInterval   = 200 * time.Millisecond
)

// simulation is the state of one run. Apart from the fields below mu, it is used only
// by the function that run currently calls.
type simulation struct {
	plan       Plan
	started    time.Time
	log        *slog.Logger
	ctx        context.Context
	cancel     context.CancelFunc
	group      sync.WaitGroup
	wake       chan struct{} // buffer of one: the first event of queue has changed
	nodes      []*node
	raft       *raft
	lanes      *lanes
	history    *historyStreams
	net        *network
	producers  *producers
	callers    *callers
	checker    *checker
	brokenNode *node // stays broken after heal; nil: none
	report     Report

	mu    sync.Mutex // guards the fields below and report; never held during a call into another part
	queue eventQueue
	hash  hash.Hash64
}

// Run simulates one plan and returns the result. It must be called in a bubble of
// testing/synctest.
func Run(p Plan) Report {
	sim := &simulation{plan: p, started: time.Now(), wake: make(chan struct{}, 1), hash: fnv.New64a(), log: slog.New(slog.DiscardHandler)}
	sim.report.Plan = p
	sim.ctx, sim.cancel = context.WithCancel(context.Background())
	sim.checker, sim.net = newChecker(sim), newNetwork(sim)
	sim.lanes, sim.history, sim.raft = newLanes(sim), newHistoryStreams(sim), newRaft(sim)
	for i := range members {
		sim.nodes = append(sim.nodes, newNode(sim, i))
	}
	for _, n := range sim.nodes {
		n.start()
	}
	sim.raft.ensureLeader()
	sim.producers, sim.callers = &producers{sim}, &callers{simulation: sim}
	sim.producers.start()
	if p.Steps == nil {
		sim.callers.start()
		sim.after(warmup, "storm", sim.startFaults)
	} else {
		p.begin(sim)
	}
	sim.after(warmup+faultPhase, "heal", sim.heal)
	sim.run()
	sim.cancel()
	for _, n := range sim.nodes {
		n.process.stop()
	}
	sim.group.Wait()
	sim.report.TraceHash, sim.report.Duration = sim.hash.Sum64(), time.Since(sim.started)
	return sim.report
}

// members is the number of nodes.
const members = 3

func nodeName(i int) string { return fmt.Sprintf("n%d", i+1) }

// heal ends all faults, in some runs all but those of one node, and starts to check
// whether the cluster recovers.
func (sim *simulation) heal() {
	sim.net.heal()
	sim.lanes.heal()
	if sim.plan.Steps == nil {
		sim.keepOneBroken()
	}
	for _, n := range sim.nodes {
		sim.restart(n)
	}
	sim.raft.ensureLeader()
	sim.callers.cleanUp()
	sim.after(checkInterval, "look", func() { sim.checkRecovery(time.Now().Add(recoveryTimeout)) })
}

// checkRecovery ends the run when all work has ended, or as a failure when it has not
// by the given time.
func (sim *simulation) checkRecovery(until time.Time) {
	problems := sim.checker.unfinished()
	if lane := sim.lanes.truncated(); lane != nil && sim.checker.lossReported(problems) {
		sim.trace("truncated lane restored")
		lane.truncatedTo = 0
		sim.report.TruncatedLanes++
	}
	switch {
	case len(problems) == 0:
		sim.checker.checkFinal()
		sim.cancel()
	case time.Now().After(until):
		sim.fail("not recovered %s after all was healed: %s", recoveryTimeout, strings.Join(problems, "; "))
		sim.cancel()
	default:
		sim.after(checkInterval, "look", func() { sim.checkRecovery(until) })
	}
}

// fail records a violated invariant and ends the run: later violations would only
// follow from this one.
func (sim *simulation) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	sim.trace("FAILED %s", text)
	sim.mu.Lock()
	sim.report.Failures = append(sim.report.Failures, text)
	sim.mu.Unlock()
	sim.cancel()
}

// tracing reports whether the run is traced.
func (sim *simulation) tracing() bool { return sim.plan.Verbose || sim.plan.Trace }

// trace adds a line to the trace: to its hash and, if Plan.Verbose is set, to the
// log.
func (sim *simulation) trace(format string, args ...any) {
	if !sim.tracing() {
		return
	}
	line := fmt.Sprintf("%11.6f ", time.Since(sim.started).Seconds()) + fmt.Sprintf(format, args...)
	sim.mu.Lock()
	defer sim.mu.Unlock()
	if sim.ctx.Err() != nil {
		return // after the end goroutines stop in any order
	}
	sim.hash.Write([]byte(line))
	if sim.plan.Verbose {
		sim.report.Log = append(sim.report.Log, line)
	}
}

// timedEvent is a function to be called at a time. Events at the same time are
// ordered by key.
type timedEvent struct {
	at  time.Time
	key string
	do  func()
}

// after schedules an event: run calls do after d, while all other goroutines are
// blocked.
func (sim *simulation) after(d time.Duration, key string, do func()) {
	sim.schedule(time.Now().Add(d), key, do)
}

// schedule is after with an absolute time.
func (sim *simulation) schedule(at time.Time, key string, do func()) {
	sim.mu.Lock()
	heap.Push(&sim.queue, &timedEvent{at, key, do})
	first := sim.queue[0].at
	sim.mu.Unlock()
	if !first.Before(at) {
		select {
		case sim.wake <- struct{}{}:
		default:
		}
	}
}

// run calls the scheduled events in order until the run ends.
func (sim *simulation) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		synctest.Wait()
		if sim.ctx.Err() != nil {
			return
		}
		sim.mu.Lock()
		var next *timedEvent
		wait := time.Hour
		if len(sim.queue) > 0 {
			if wait = time.Until(sim.queue[0].at); wait <= 0 {
				next = heap.Pop(&sim.queue).(*timedEvent)
			}
		}
		sim.mu.Unlock()
		if next != nil {
			next.do()
			continue
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-sim.wake:
		case <-sim.ctx.Done():
		}
	}
}

type eventQueue []*timedEvent

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	if !q[i].at.Equal(q[j].at) {
		return q[i].at.Before(q[j].at)
	}
	return q[i].key < q[j].key
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(*timedEvent)) }
func (q *eventQueue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return last
}
