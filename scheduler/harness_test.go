package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// harness is a scheduler with all its dependencies, in a bubble of testing/synctest.
type harness struct {
	t       *testing.T
	raft    *fakeRaft
	lanes   *fakeLanes
	fleet   *fakeFleet
	streams *fakeStreams
	sched   *Scheduler

	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup

	endTenure context.CancelFunc
	ended     chan error // result of the current tenure
}

// runHarness runs a test in a bubble, with a cluster of nodes n1, n2 …
func runHarness(t *testing.T, nodes int, test func(h *harness), options ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nodes, options...)
		defer h.close()
		h.begin()
		test(h)
	})
}

func newHarness(t *testing.T, nodes int, options ...func(*Config)) *harness {
	h := &harness{t: t, raft: newFakeRaft(t), streams: &fakeStreams{t: t}, lanes: &fakeLanes{recordSize: 1 << 10, tailEnds: make(chan struct{})}}
	h.ctx, h.cancel = context.WithCancel(t.Context())
	h.fleet = &fakeFleet{t: t, nodes: map[string]*fakeNode{}, running: map[job.ID]int{}}
	cfg := Config{
		Node: "n1", Policy: job.DefaultPolicy, DefaultTimeout: 5 * time.Minute, CreateQueues: true,
	}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i+1)
		cfg.Members = append(cfg.Members, name)
		h.fleet.nodes[name] = newFakeNode(h.fleet, name, h.ctx.Done())
	}
	for _, o := range options {
		o(&cfg)
	}
	h.sched = New(cfg, h.raft, h.lanes, h.fleet, h.streams, slog.New(slog.DiscardHandler))
	h.fleet.active = h.sched
	h.lanes.notify = h.sched.ReceiveRecords
	h.group.Go(func() { h.raft.run(h.ctx) })
	return h
}

// begin starts a tenure and, the first time, the nodes.
func (h *harness) begin() {
	h.t.Helper()
	first := h.ended == nil
	ctx, cancel := context.WithCancel(h.ctx)
	h.endTenure, h.ended = cancel, make(chan error, 1)
	ended := h.ended
	h.raft.set(func() { h.raft.term++ })
	h.group.Go(func() { ended <- h.sched.Run(ctx, h.raft.term) })
	h.until("a tenure", func() bool { return h.sched.current() != nil })
	if first {
		for _, n := range h.fleet.nodes {
			h.group.Go(func() { n.run(h.ctx) })
		}
	}
	h.advance(100 * time.Millisecond)
}

// end stops the tenure and returns the error of Run.
func (h *harness) end() error {
	h.endTenure()
	return <-h.ended
}

func (h *harness) close() {
	h.cancel()
	h.group.Wait()
}

// advance sleeps for d.
func (h *harness) advance(d time.Duration) {
	time.Sleep(d) // in the bubble's time
	synctest.Wait()
}

// until sleeps until a condition holds, for at most a minute.
func (h *harness) until(what string, cond func() bool) {
	h.t.Helper()
	for range 60_000 {
		synctest.Wait()
		if cond() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	h.t.Fatalf("%s: not within a minute", what)
}

// enqueue stores a record in lane 0 and passes it to the scheduler.
func (h *harness) enqueue(queue, key, body string) job.ID {
	return h.enqueueIn(0, queue, key, body)
}

func (h *harness) enqueueIn(lane uint8, queue, key, body string) job.ID {
	r := h.lanes.store(lane, queue, key, body)
	h.sched.ReceiveRecords([]job.Record{r})
	return h.id(r)
}

// id returns the id of a record's job.
func (h *harness) id(r job.Record) (id job.ID) {
	h.raft.View(func(l *ledger.Ledger) {
		j, _ := r.Job(l.Lanes()[r.Lane].Identity, job.Defaults{})
		id = j.ID
	})
	return id
}

func (h *harness) node(name string) *fakeNode { return h.fleet.node(name) }

func (h *harness) find(id job.ID) (view job.View, known bool) {
	h.raft.View(func(l *ledger.Ledger) { view, _, known = l.Find(id) })
	return view, known
}

func (h *harness) state(id job.ID) job.State {
	view, _ := h.find(id)
	return view.State
}

// counts returns the backlog.
func (h *harness) counts() (c ledger.SnapshotBacklog) {
	h.raft.View(func(l *ledger.Ledger) { c = l.Snapshot(ledger.SnapshotContext{}).Backlog })
	return c
}

// keepFinished makes the ledger keep completed jobs for as long as others.
func (h *harness) keepFinished() {
	h.t.Helper()
	h.propose(&ledger.SetRetention{Settings: []job.RetentionSetting{{Key: job.RetentionKey{Kept: job.KeptFinished, Bound: job.BoundAge}, Value: int64(job.RetryableAge)}}})
}

func (h *harness) propose(c ledger.Command) ledger.Result {
	h.t.Helper()
	r, _, err := h.sched.Propose(h.ctx, c)
	if err != nil {
		h.t.Fatalf("%T: %v", c, err)
	}
	return r
}

// checkNoOverlap fails the test if two executions of a job ran at the same time, or a
// node got an assignment beyond its capacity.
func (h *harness) checkNoOverlap() {
	h.t.Helper()
	for name, n := range h.fleet.nodes {
		n.do(func() {
			if n.overruns > 0 {
				h.t.Errorf("%s got %d assignments beyond its capacity", name, n.overruns)
			}
		})
	}
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	if len(h.fleet.overlaps) > 0 {
		h.t.Errorf("started while another execution ran: %v", h.fleet.overlaps)
	}
}

// never is work that does not end.
func neverEnds(*job.Assignment) (time.Duration, job.Outcome) { return -1, job.Outcome{} }

// worksFor is work that succeeds after a time.
func worksFor(d time.Duration) func(*job.Assignment) (time.Duration, job.Outcome) {
	return func(*job.Assignment) (time.Duration, job.Outcome) { return d, job.Outcome{Status: job.Success} }
}

// endsWith is work that ends at once with a given outcome.
func endsWith(o job.Outcome) func(*job.Assignment) (time.Duration, job.Outcome) {
	return func(*job.Assignment) (time.Duration, job.Outcome) { return time.Millisecond, o }
}

const anyJob = `{"params":{}}`

// wantReason checks that the status has a reason containing text; "": no reason.
func (h *harness) wantReason(text string) {
	h.t.Helper()
	status, err := h.sched.Status(h.ctx)
	all := strings.Join(status.Reasons, "\n")
	if err != nil || text == "" && all != "" || !strings.Contains(all, text) {
		h.t.Errorf("reasons %q, want %q; error %v", all, text, err)
	}
}
