package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Transport connects the agent to the authority, the lanes and the blob store.
// Package node implements it with the messages between members and the local
// ledger.
type Transport interface {
	// Authority returns the node that holds the authority; ok is false while
	// none is known. AuthorityChanged returns a channel that is closed at the
	// next change.
	Authority() (node string, epoch uint64, ok bool)
	AuthorityChanged() <-chan struct{}
	// Report returns when the authority has committed the outcomes, Heartbeat
	// when it has answered.
	Report(ctx context.Context, node string, r job.Report) (job.ReportAck, error)
	Heartbeat(ctx context.Context, node string, b job.Heartbeat) (job.HeartbeatAck, error)
	// LoadBody returns the body of the record at pos if it belongs to the job
	// with the given id. An error that is [ErrBodyLost] is final.
	LoadBody(ctx context.Context, pos job.Position, id job.ID) ([]byte, error)
	// StoreResult stores a large result under a name that contains the job's id. The
	// error wraps [job.ErrTooLarge] if the yard never keeps a result of that size.
	StoreResult(ctx context.Context, name string, data []byte) (job.Blob, error)
	// StoreError stores the error of an attempt. It is not essential.
	StoreError(ctx context.Context, id job.ID, e *job.AttemptError) error
}

// ErrBodyLost is returned by Transport.LoadBody if the body cannot be read again: its
// record or blob was removed, or does not match its checksum.
var ErrBodyLost = errors.New("the job's body is lost")

// Config configures an agent.
type Config struct {
	Node        string         // this member's name
	Incarnation uint64         // grows with every start of the node
	Runners     []string       // RRQ runners configured on this node, sent with each heartbeat
	LedLanes    func() []uint8 // returns the lanes whose stream this node leads; may be nil
	Edge        string         // address of this node's edge for clients; "": none

	MaxError int // bytes that are kept of an attempt's error; 0: [job.DefaultErrorBytes]

	DrainTimeout time.Duration // how long running work may continue after Run's ctx ends; 0: 10 s
	StopTimeout  time.Duration // how long stopped work may take to end, and then outcomes to be committed; 0: 5 s each

	Rand func(below int64) int64 // jitter of retries; nil: math/rand

	// Only tests set the following fields. 0 means the default in withDefaults.
	heartbeatInterval time.Duration // also the timeout of a heartbeat
	maxReports        int           // reports in flight
	flushOutcomes     int           // pending outcomes that are sent without waiting for an earlier report
	maxLoads          int           // bodies loaded at once, and results stored at once
}

// withDefaults returns c with the defaults in place of zero fields.
func (c Config) withDefaults() Config {
	c.heartbeatInterval = cmp.Or(c.heartbeatInterval, time.Second)
	c.maxReports = cmp.Or(c.maxReports, 4)
	c.flushOutcomes = cmp.Or(c.flushOutcomes, 64)
	c.maxLoads = cmp.Or(c.maxLoads, 16)
	c.MaxError = cmp.Or(c.MaxError, job.DefaultErrorBytes)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 10*time.Second)
	c.StopTimeout = cmp.Or(c.StopTimeout, 5*time.Second)
	if c.LedLanes == nil {
		c.LedLanes = func() []uint8 { return nil }
	}
	return c
}

// Agent is the agent of one node. All methods may be called from any goroutine.
type Agent struct {
	cfg       Config
	transport Transport
	log       *slog.Logger
	targets   map[job.Kind]Target // fixed before Run
	reporter  reporter
	results   resultStore
	errors    errorStore

	assignMu     crash.Mutex    // one batch at a time
	wg           sync.WaitGroup // all goroutines of Run
	loadPool     taskPool
	heartbeatNow chan struct{} // buffer of one: wakes heartbeatLoop
	leaseRenewed chan struct{} // buffer of one: wakes watchLease
	elapsed      elapsedTime

	mu         crash.Mutex // guards the fields below; never held while a target or the transport is called
	epoch      uint64      // highest seen
	lease      lease
	ackSeq     uint64 // number of the last acknowledged heartbeat of this epoch; 0: none
	draining   bool
	otherEdges []string // edge addresses of the other nodes, as the authority last sent them
	table      dispatchTable
	changed    chan struct{} // closed by signalChanged; nil: waitFor does not wait
}

// New returns an agent. Add its targets before Run.
func New(cfg Config, transport Transport, log *slog.Logger) *Agent {
	cfg = cfg.withDefaults()
	a := &Agent{
		cfg: cfg, transport: transport, log: log, targets: map[job.Kind]Target{},
		heartbeatNow: make(chan struct{}, 1), leaseRenewed: make(chan struct{}, 1),
		table: newDispatchTable(),
	}
	a.reporter = reporter{
		cfg: cfg, transport: transport, log: log, wg: &a.wg, wake: make(chan struct{}, 1), settle: a.settle,
		observeEpoch: func(epoch uint64) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.observeEpoch(epoch)
		},
		capacity: newCapacity(), workerEvents: workerEventLog{first: 1},
	}
	a.results = resultStore{
		transport: transport, log: log, rand: cfg.Rand, stored: a.reporter.enqueue,
		pool: taskPool{max: cfg.maxLoads, wg: &a.wg},
	}
	a.errors = errorStore{
		transport: transport, log: log, node: cfg.Node, maxBytes: cfg.MaxError, stored: a.reporter.enqueue,
		pool: taskPool{max: maxStoringErrors, wg: &a.wg},
	}
	a.loadPool = taskPool{max: cfg.maxLoads, wg: &a.wg}
	return a
}

// AddTarget adds a target. It must not be called after Run.
func (a *Agent) AddTarget(t Target) { a.targets[t.Kind()] = t }

// Run sends heartbeats and reports until ctx ends, and then drains: it refuses new
// work, lets running work continue for Config.DrainTimeout, then stops it, and
// reports the outcomes if the authority answers in time.
func (a *Agent) Run(ctx context.Context) error {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer a.wg.Wait()
	defer stop()
	a.loadPool.start(working)
	a.results.pool.start(working)
	a.errors.pool.start(working)
	a.wg.Go(func() { a.heartbeatLoop(working) })
	a.wg.Go(func() { a.watchLease(working) })
	a.wg.Go(func() { a.reporter.run(working) })
	<-ctx.Done()
	a.Drain()
	noneRunning := func() bool { return a.table.running == 0 }
	if !a.waitFor(a.cfg.DrainTimeout, noneRunning) {
		a.stopAll(job.RecallShutdown)
		a.waitFor(a.cfg.StopTimeout, noneRunning)
	}
	a.waitFor(a.cfg.StopTimeout, func() bool { return len(a.table.live) == 0 })
	a.mu.Lock()
	defer a.mu.Unlock()
	if remaining := len(a.table.live); remaining > 0 {
		a.log.Warn("agent stopped with uncommitted outcomes", "count", remaining)
	}
	return nil
}

// Drain makes the agent refuse new work; running work continues.
func (a *Agent) Drain() { a.setDraining(true) }

// Resume undoes Drain.
func (a *Agent) Resume() { a.setDraining(false) }

func (a *Agent) setDraining(draining bool) {
	a.mu.Lock()
	a.draining = draining
	a.mu.Unlock()
	signal(a.heartbeatNow)
}

// Running returns the number of dispatches that the agent has and that have not
// ended.
func (a *Agent) Running() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.table.running
}

// Lease returns until when this node may work without another acknowledged
// heartbeat.
func (a *Agent) Lease() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lease.until
}

// waitFor blocks until condition returns true or timeout has passed, and reports
// whether condition returned true. It calls condition with mu held, at first and after
// each signalChanged.
func (a *Agent) waitFor(timeout time.Duration, condition func() bool) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		a.mu.Lock()
		isTrue := condition()
		if a.changed == nil {
			a.changed = make(chan struct{})
		}
		changed := a.changed
		a.mu.Unlock()
		if isTrue {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		}
	}
}

// signalChanged has waitFor check its condition again, because a dispatch ended or
// was settled. Callers hold mu.
func (a *Agent) signalChanged() {
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// stopAll recalls all dispatches for a reason. Those that run are stopped by their
// targets; one that is still loading or starting ends before or right after its start.
func (a *Agent) stopAll(reason job.RecallReason) {
	a.mu.Lock()
	var running []*dispatch
	for _, d := range a.table.live {
		if d.recall(reason, "") {
			running = append(running, d)
		}
	}
	a.mu.Unlock()
	for _, d := range running {
		a.stop(d, job.Recall{Job: d.Job, N: d.N, Reason: reason})
	}
}

// observeEpoch reports whether epoch is at least the highest seen. If it is higher,
// there is a new authority, to which all offers must be sent. Callers hold mu.
func (a *Agent) observeEpoch(epoch uint64) bool {
	if epoch > a.epoch {
		a.epoch, a.ackSeq = epoch, 0
		a.reporter.update((*capacity).resendAll)
	}
	return epoch == a.epoch
}

// signal wakes the receiver of c, a channel with a buffer of one. It does not block.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
