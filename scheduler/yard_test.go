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

	"yardmaster/job"
	"yardmaster/ledger"
)

// yard is a scheduler with everything it talks to, in a bubble of its own time.
type yard struct {
	t     *testing.T
	raft  *fakeRaft
	lanes *fakeLanes
	fleet *fakeFleet
	tales *fakeTales
	sched *Scheduler

	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup

	endTenure context.CancelFunc
	ended     chan error // of the present tenure
}

// inYard runs a test in a bubble, over a yard whose nodes are n1, n2 …
func inYard(t *testing.T, nodes int, test func(y *yard), options ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t, nodes, options...)
		defer y.close()
		y.begin()
		test(y)
	})
}

func newYard(t *testing.T, nodes int, options ...func(*Config)) *yard {
	y := &yard{t: t, raft: newFakeRaft(t), tales: &fakeTales{t: t}, lanes: &fakeLanes{tailed: make(chan struct{})}}
	y.ctx, y.cancel = context.WithCancel(t.Context())
	y.fleet = &fakeFleet{t: t, nodes: map[string]*fakeNode{}, copies: map[job.ID]int{}}
	cfg := Config{
		Node: "n1", Policy: job.DefaultPolicy, DefaultTimeout: 5 * time.Minute, CreateQueues: true,
	}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i+1)
		cfg.Members = append(cfg.Members, name)
		y.fleet.nodes[name] = newFakeNode(y.fleet, name, y.ctx.Done())
	}
	for _, o := range options {
		o(&cfg)
	}
	y.sched = New(cfg, y.raft, y.lanes, y.fleet, y.tales, slog.New(slog.DiscardHandler))
	y.fleet.office = y.sched
	y.group.Go(func() { y.raft.run(y.ctx) })
	return y
}

// begin starts a tenure and, the first time, the nodes.
func (y *yard) begin() {
	y.t.Helper()
	first := y.ended == nil
	ctx, cancel := context.WithCancel(y.ctx)
	y.endTenure, y.ended = cancel, make(chan error, 1)
	ended := y.ended
	y.raft.set(func() { y.raft.term++ })
	y.group.Go(func() { ended <- y.sched.Run(ctx, y.raft.term) })
	y.until("a tenure", func() bool { return y.sched.tenure() != nil })
	if first {
		for _, n := range y.fleet.nodes {
			y.group.Go(func() { n.run(y.ctx) })
		}
	}
	y.pass(100 * time.Millisecond)
}

// end stops the tenure and gives what Run returned.
func (y *yard) end() error {
	y.endTenure()
	return <-y.ended
}

func (y *yard) close() {
	y.cancel()
	y.group.Wait()
}

// pass lets time go by.
func (y *yard) pass(d time.Duration) {
	time.Sleep(d) // the bubble's time: nothing real waits
	synctest.Wait()
}

// until lets time go by until a fact holds, at most a minute of it.
func (y *yard) until(what string, holds func() bool) {
	y.t.Helper()
	for range 60_000 {
		synctest.Wait()
		if holds() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	y.t.Fatalf("%s: not within a minute", what)
}

// enqueue stores a record in lane 0 and tells the scheduler of it.
func (y *yard) enqueue(queue, key, body string) job.ID {
	return y.enqueueIn(0, queue, key, body)
}

func (y *yard) enqueueIn(lane uint8, queue, key, body string) job.ID {
	r := y.lanes.store(lane, queue, key, body)
	y.sched.Notice([]job.Record{r})
	return y.id(r)
}

// id is the job that a record asks for.
func (y *yard) id(r job.Record) (id job.ID) {
	y.raft.View(func(l *ledger.Ledger) {
		facts, _ := r.Facts(l.Lanes()[r.Lane].Identity, job.Defaults{})
		id = facts.ID
	})
	return id
}

func (y *yard) node(name string) *fakeNode { return y.fleet.node(name) }

func (y *yard) find(id job.ID) (view job.View, known bool) {
	y.raft.View(func(l *ledger.Ledger) { view, _, known = l.Find(id) })
	return view, known
}

func (y *yard) state(id job.ID) job.State {
	view, _ := y.find(id)
	return view.State
}

// counts gives the backlog.
func (y *yard) counts() (c ledger.Counts) {
	y.raft.View(func(l *ledger.Ledger) { c = l.Counts() })
	return c
}

func (y *yard) do(c ledger.Command) ledger.Result {
	y.t.Helper()
	r, _, err := y.sched.Do(y.ctx, c)
	if err != nil {
		y.t.Fatalf("%T: %v", c, err)
	}
	return r
}

// noDoubles fails if two copies of a job ever ran at once, or a node got more
// than it had room for.
func (y *yard) noDoubles() {
	y.t.Helper()
	for name, n := range y.fleet.nodes {
		n.look(func() {
			if n.overruns > 0 {
				y.t.Errorf("%s got %d assignments beyond its room", name, n.overruns)
			}
		})
	}
	y.fleet.mu.Lock()
	defer y.fleet.mu.Unlock()
	if len(y.fleet.double) > 0 {
		y.t.Errorf("started beside another copy: %v", y.fleet.double)
	}
}

// never is work that does not end.
func forever(*job.Assignment) (time.Duration, job.Outcome) { return -1, job.Outcome{} }

// lasting is work that ends well after a time.
func lasting(d time.Duration) func(*job.Assignment) (time.Duration, job.Outcome) {
	return func(*job.Assignment) (time.Duration, job.Outcome) { return d, job.Outcome{Status: job.Success} }
}

// ending is work that ends at once, in some way.
func ending(o job.Outcome) func(*job.Assignment) (time.Duration, job.Outcome) {
	return func(*job.Assignment) (time.Duration, job.Outcome) { return time.Millisecond, o }
}

const anyJob = `{"params":{}}`

// says checks that a look finds this wrong; "": nothing.
func (y *yard) says(text string) {
	y.t.Helper()
	look, err := y.sched.Look(y.ctx)
	all := strings.Join(look.Reasons, "\n")
	if err != nil || text == "" && all != "" || !strings.Contains(all, text) {
		y.t.Errorf("a look finds %q, want %q; %v", all, text, err)
	}
}
