package node

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"yardmaster/agent"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/web"
)

// What the metrics see of the hands: they stand between the agent and its
// targets.

// counts times dispatches at this node's hands.
type counts struct {
	metrics *web.Metrics
	mu      sync.Mutex
	begun   map[dispatchKey]begun
}

type dispatchKey struct {
	job job.ID
	n   uint32
}

type begun struct {
	hand string
	at   time.Time
}

func newCounts(m *web.Metrics) *counts { return &counts{metrics: m, begun: map[dispatchKey]begun{}} }

// take gives what was begun, and forgets it.
func (c *counts) take(id job.ID, n uint32) (b begun, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok = c.begun[dispatchKey{id, n}]
	delete(c.begun, dispatchKey{id, n})
	return b, ok
}

// countedTarget counts what its target starts.
type countedTarget struct {
	agent.Target
	counts *counts
}

func (t countedTarget) Start(a job.Assignment, spec job.Spec) bool {
	b := begun{hand: a.Kind.String(), at: time.Now()}
	if a.Kind == job.RRQ {
		b.hand += "/" + a.Key
	}
	t.counts.mu.Lock()
	t.counts.begun[dispatchKey{a.Job, a.N}] = b
	t.counts.mu.Unlock()
	if !t.Target.Start(a, spec) {
		t.counts.take(a.Job, a.N)
		return false
	}
	if a.Started.IsZero() { // else its worker brought it from another node, which counted it
		t.counts.metrics.Started(b.hand, b.at.Sub(a.RunAt))
	}
	return true
}

func (t countedTarget) Stop(id job.ID, n uint32, why job.RecallReason) {
	t.Target.Stop(id, n, why)
	if why == job.RecallSuperseded && t.Kind() == job.Overhop {
		t.counts.take(id, n) // no outcome follows
	}
}

// countedHands hear of every end.
type countedHands struct {
	tracedHands
	counts *counts
}

func (h countedHands) Report(o job.Outcome, then func(job.Settled)) {
	if b, ok := h.counts.take(o.Job, o.N); ok {
		h.counts.metrics.Ended(b.hand, o.Status.String(), time.Since(b.at))
	}
	h.tracedHands.Report(o, then)
}

// noticeAccepted hears of every job that this node has had acknowledged.
func (n *Node) noticeAccepted(r job.Record) {
	n.metrics.Accepted()
	n.notices.add(r)
}

// maxLabelled is how many queues have metrics of their own: those with the most
// jobs that have not ended. The others are added up under otherQueues, which is
// no queue's name.
const (
	maxLabelled = 100
	otherQueues = "(others)"
)

// gather tells the metrics how this node and the yard stand.
func (n *Node) gather(ctx context.Context, emit web.Emit) {
	yes := func(name string, b bool) {
		value := 0.0
		if b {
			value = 1
		}
		emit(name, value)
	}
	s := n.status(ctx)
	yes("yard_ready", s.Readiness.Ready)
	yes("yard_accepting", s.Readiness.Accepting)
	yes("yard_dispatching", s.Readiness.Dispatching)
	yes("yard_authority", s.Authority.Owner == s.Node && !s.Authority.Expired)
	emit("yard_authority_epoch", float64(s.Authority.Epoch))
	for state, count := range map[string]uint64{
		"pending": s.Backlog.Pending, "notified": s.Backlog.Notified, "delivered": s.Backlog.Delivered, "failed": s.Backlog.Failed,
	} {
		emit("yard_dispatches", float64(count), state)
	}
	emit("yard_held_keys", float64(s.HeldKeys))
	emit("yard_outbox_bytes", float64(s.OutboxBytes))
	emit("yard_stale_outcomes_total", float64(s.StaleOutcomes))
	for _, l := range s.Lanes {
		if l.Leader != "" { // without one nobody knows
			emit("yard_lane_lag_records", float64(l.Lag), strconv.Itoa(l.Lane))
		}
	}
	raft := n.raft.Status()
	emit("yard_raft_term", float64(raft.Term))
	emit("yard_raft_committed_index", float64(raft.Commit))
	emit("yard_raft_applied_index", float64(raft.Applied))
	emit("yard_raft_contact_seconds", max(raft.Contact.Seconds(), -1))
	if messages, bytes, err := n.messages.Stored(); err == nil {
		emit("yard_jetstream_messages", float64(messages))
		emit("yard_jetstream_bytes", float64(bytes))
	}
	emit("yard_overhop_connections", float64(s.Workers.Connections))
	emit("yard_overhop_workers", float64(s.Workers.Registered))
	emit("yard_overhop_subscriptions", float64(s.Workers.Subscriptions))
	for _, p := range s.Pools {
		emit("yard_runner_processes", float64(p.Size), p.Runner)
		emit("yard_runner_processes_up", float64(p.Up), p.Runner)
		emit("yard_runner_slots", float64(p.Slots), p.Runner)
		emit("yard_runner_in_flight", float64(p.InFlight), p.Runner)
		emit("yard_runner_crash_looping", float64(p.Looping), p.Runner)
		restarts := 0
		for i := range p.Members {
			restarts += p.Members[i].Restarts
		}
		emit("yard_runner_restarts_total", float64(restarts), p.Runner)
	}
	n.gatherQueues(emit)
}

func (n *Node) gatherQueues(emit web.Emit) {
	var queues []ledger.QueueView
	n.raft.View(func(l *ledger.Ledger) { queues = l.Queues() })
	emit("yard_queues", float64(len(queues)))
	open := func(q *ledger.QueueView) int {
		return q.Counts[job.Waiting] + q.Counts[job.Delayed] + q.Counts[job.Active]
	}
	slices.SortStableFunc(queues, func(a, b ledger.QueueView) int { return cmp.Compare(open(&b), open(&a)) })
	var others [6]int
	for i := range queues {
		for state := job.Waiting; state <= job.Failed; state++ {
			if i >= maxLabelled {
				others[state] += queues[i].Counts[state]
				continue
			}
			emit("yard_queue_jobs", float64(queues[i].Counts[state]), queues[i].Name, state.String())
		}
	}
	if len(queues) > maxLabelled {
		for state := job.Waiting; state <= job.Failed; state++ {
			emit("yard_queue_jobs", float64(others[state]), otherQueues, state.String())
		}
	}
}
