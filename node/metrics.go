package node

import (
	"sync"
	"time"

	"yardmaster/agent"
	"yardmaster/job"
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
