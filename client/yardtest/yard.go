package yardtest

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/memyard"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// Yard is a yard in the test process. Its methods must be called from the goroutine of the
// test, except Client and Options.
type Yard struct {
	t      testing.TB
	cfg    memyard.Config
	log    *slog.Logger
	core   *memyard.Yard
	net    network
	gate   *gate
	rest   rest
	ctx    context.Context // ends when the yard stops
	cancel context.CancelFunc
	loops  sync.WaitGroup // those of the yard itself

	electNow chan struct{} // buffer of one: a member has started

	mu      sync.Mutex // guards the fields below
	rand    *rand.Rand
	clients []*client.Client
	works   []*work
	workers map[string]*work // by the ids of their registrations
}

// Option changes a [Yard] before it starts.
type Option func(*Yard)

// Members sets the number of members, 1 or more; the default is 3. In a yard of one, no
// member can take over.
func Members(n int) Option {
	return func(y *Yard) {
		y.cfg.Members = nil
		for i := range n {
			y.cfg.Members = append(y.cfg.Members, fmt.Sprintf("n%d", i+1))
		}
	}
}

// Retries sets the retry policy of jobs that have none of their own; the default is
// [job.DefaultPolicy], which is that of a node.
func Retries(p job.Policy) Option { return func(y *Yard) { y.cfg.Scheduler.Policy = p } }

// Log sets the logger of the yard, its clients and workers; the default discards.
func Log(log *slog.Logger) Option { return func(y *Yard) { y.log = log } }

// Seed makes the ids of jobs and the other random numbers of the process those of a seed, until
// the test ends, so that a test can be repeated with the same ids. The test must be a
// [*testing.T] that neither is parallel nor has a parallel parent.
func Seed(seed uint64) Option {
	return func(y *Yard) {
		t, ok := y.t.(*testing.T)
		if !ok {
			y.t.Fatalf("yardtest: Seed needs a *testing.T, not a %T", y.t)
		}
		cryptotest.SetGlobalRandom(t, seed)
		y.rand = rand.New(rand.NewPCG(seed, seed))
	}
}

// defaultTimeout is that of a node.
const defaultTimeout = 5 * time.Minute

// New starts a yard, which stops when the test ends. It must be called in a bubble of
// [synctest.Test]; outside of one, it fails the test.
func New(t testing.TB, options ...Option) *Yard {
	t.Helper()
	if !inBubble() {
		t.Fatal(`yardtest.New needs virtual time: call it in a bubble of package testing/synctest:
	synctest.Test(t, func(t *testing.T) {
		y := yardtest.New(t)
		…
	})`)
	}
	y := &Yard{
		t: t, log: slog.New(slog.DiscardHandler), gate: newGate(), electNow: make(chan struct{}, 1),
		rest: rest{wake: make(chan struct{}, 1)},
		rand: rand.New(rand.NewPCG(1, 2)), workers: map[string]*work{},
		cfg: memyard.Config{KeepMessages: true, Scheduler: scheduler.Config{
			Policy: job.DefaultPolicy, DefaultTimeout: defaultTimeout, CreateQueues: true,
			// There is no index, so the ledger keeps completed jobs for as long as the others.
			Retention: job.Retention{{Key: job.RetentionKey{Kept: job.KeptFinished, Bound: job.BoundAge}, Value: int64(job.RetryableAge)}},
		}},
	}
	Members(3)(y)
	for _, option := range options {
		option(y)
	}
	y.cfg.Log = y.log
	y.cfg.Scheduler.CheckPayload, y.cfg.Scheduler.LimitKey = y.checkPayload, y.limitKey
	y.core = memyard.New(y.cfg)
	y.ctx, y.cancel = context.WithCancel(context.Background())
	t.Cleanup(y.stop)
	for _, m := range y.core.Members() {
		n, err := y.start(m)
		if err != nil {
			t.Fatalf("yardtest: start member %s: %v", m.Name, err)
		}
		y.net.nodes = append(y.net.nodes, n)
	}
	y.loops.Go(y.elect)
	y.loops.Go(y.keepGate)
	y.loops.Go(y.keepRest)
	y.await("start of the yard", func() string { return y.authorityProblem() })
	return y
}

// inBubble reports whether the caller is in a bubble of testing/synctest.
func inBubble() (in bool) {
	defer func() {
		if recover() != nil {
			in = false
		}
	}()
	synctest.Wait() // panics outside of one
	return true
}

// random returns a number below a bound, for the jitter of retries.
func (y *Yard) random(below int64) int64 {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.rand.Int64N(below)
}

// Options returns options of a client, for code that connects itself.
func (y *Yard) Options() client.Options {
	return client.Options{
		Nodes: []string{yardAddress}, Log: y.log,
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := y.net.dial(ctx, addr)
			if err != nil {
				return nil, err
			}
			return c, nil
		},
	}
}

// Client returns a new client, which is closed when the test ends.
func (y *Yard) Client() *client.Client {
	y.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	c, err := client.Open(ctx, y.Options())
	if err != nil {
		y.t.Fatalf("yardtest: connect a client: %v", err)
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.clients = append(y.clients, c)
	return c
}

// Limits of virtual time.
const (
	connectTimeout = time.Minute
	electionTime   = time.Second // from the end of a tenure to the next one
	stopWait       = time.Minute // for workers to end, when the test does
)

// work is a worker that [Yard.Work] runs.
type work struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed when Run has returned

	lost bool // guarded by network.mu

	ids []string // guarded by Yard.mu: of its registrations, the last one last
}

// Work runs a worker until the test ends, and returns when it has subscribed to its queues.
// A worker that ends with an error makes the test fail.
func (y *Yard) Work(w *client.Worker) {
	y.t.Helper()
	defer y.enter()()
	started := &work{ended: make(chan struct{})}
	var ctx context.Context
	ctx, started.cancel = context.WithCancel(context.WithValue(context.Background(), workKey{}, started))
	y.mu.Lock()
	y.works = append(y.works, started)
	y.mu.Unlock()
	go func() { // joined by stop
		defer close(started.ended)
		if err := w.Run(ctx); err != nil {
			y.t.Errorf("yardtest: a worker has ended: %v", err)
		}
	}()
	y.await("connection of a worker", func() string { return y.workerProblem(started) })
}

// register notes that a worker has registered. client is its id and its host.
func (y *Yard) register(client string) {
	id, host, _ := strings.Cut(client, " ")
	if l := y.net.linkOf(host); l != nil && l.work != nil {
		y.mu.Lock()
		defer y.mu.Unlock()
		l.work.ids = append(l.work.ids, id)
		y.workers[id] = l.work
	}
}

// elect lets one member after the other lead, the next one electionTime after a tenure has
// ended, as long as a majority runs.
func (y *Yard) elect() {
	for i := 0; y.ctx.Err() == nil; {
		running := y.net.running()
		if len(running) <= len(y.cfg.Members)/2 {
			select {
			case <-y.electNow:
			case <-y.ctx.Done():
			}
			continue
		}
		n := running[i%len(running)]
		y.lead(n)
		for y.rest.wait() && n.Running() {
			y.lead(n)
		}
		if n.Running() { // else the next one has its index
			i++
		}
		_ = backoff.Sleep(y.ctx, electionTime)
	}
}

// lead lets a member lead until its tenure ends.
func (y *Yard) lead(n *node) {
	ended := make(chan struct{})
	n.Go(func(ctx context.Context) {
		defer close(ended)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		y.rest.setTenure(cancel)
		if err := y.core.Lead(ctx, n.Member); err != nil && ctx.Err() == nil {
			y.log.Warn("tenure ended", "node", n.Name, "err", err)
		}
		y.rest.setTenure(nil)
	})
	<-ended
}

// startDelay is how long a job that is due waits before it may start.
const startDelay = time.Millisecond

// keepGate opens the gate when a job has been due for startDelay, and closes it when none is
// due and none runs, until the yard stops.
func (y *Yard) keepGate() {
	for {
		var changed <-chan struct{}
		var w workload
		if n := y.anyNode(); n != nil {
			_, changed = n.Applied()
			n.View(func(l *ledger.Ledger) { w = y.gate.workload(l) })
		}
		var delay <-chan time.Time
		switch mode := y.gate.get(); {
		case mode == closed && w.startable:
			delay = time.After(startDelay)
		case mode == open && !w.startable && w.active == 0:
			y.gate.change(open, closed)
		}
		select {
		case <-delay:
			y.gate.change(closed, open)
		case <-changed:
		case <-y.gate.wake:
		case <-y.ctx.Done():
			return
		}
	}
}

// anyNode returns the member that leads, or else one that runs; nil if none does.
func (y *Yard) anyNode() *node {
	running := y.net.running()
	leader := y.core.Leader()
	for _, n := range running {
		if n.Member == leader {
			return n
		}
	}
	if len(running) == 0 {
		return nil
	}
	return running[0]
}

// stop stops the workers, the clients and the yard.
func (y *Yard) stop() {
	y.mu.Lock()
	works, clients := y.works, y.clients
	y.mu.Unlock()
	for _, w := range works {
		w.cancel()
	}
	timeout, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	for _, w := range works {
		select {
		case <-w.ended:
		case <-timeout.Done():
			y.t.Errorf("yardtest: a worker has not ended %s after the end of the test: a handler ignores that its context has ended", stopWait)
		}
	}
	for _, c := range clients {
		_ = c.Close()
	}
	y.cancel()
	y.loops.Wait()
	for _, n := range y.net.nodes {
		n.Wait()
	}
}
