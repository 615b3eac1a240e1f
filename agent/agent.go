package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"yardmaster/job"
)

// Bus carries what the agent says; package node binds it to the members'
// messages and to the local ledger.
type Bus interface {
	// Authority gives who decides at present; ok is false while nobody is
	// known. AuthorityChanged gives a channel that closes at the next change.
	Authority() (node string, epoch uint64, ok bool)
	AuthorityChanged() <-chan struct{}
	// Report is answered when the outcomes are committed, Beat at once.
	Report(ctx context.Context, node string, r job.Report) (job.ReportAck, error)
	Beat(ctx context.Context, node string, b job.Beat) (job.BeatAck, error)
	// Load reads a job's body, and no other that lies in its place. An error that is [ErrBodyLost] is final.
	Load(ctx context.Context, pos job.Position, id job.ID) ([]byte, error)
	// StoreBlob keeps a large result under a name of letters, digits, '-', '_'.
	StoreBlob(ctx context.Context, name string, data []byte) (job.Blob, error)
}

// ErrBodyLost says that a body will not come back however often it is asked
// for: its record or blob is gone, or does not match its checksum.
var ErrBodyLost = errors.New("the job's body is lost")

// Config tunes an agent. Zero fields get the defaults.
type Config struct {
	Node        string         // this member's name
	Incarnation uint64         // of this start, grows
	Runners     []string       // RRQ runners configured here, told with each beat
	Lanes       func() []uint8 // lanes whose stream this node leads; may be nil
	Edge        string         // where clients reach this node's edge; "": nowhere

	BeatEvery     time.Duration // default 1 s; half of it bounds the wait for the answer
	ReportTimeout time.Duration // for a report's commit, default 5 s
	Reports       int           // at once on their way, default 4
	Gather        int           // outcomes that do not wait for an earlier report's answer, default 64
	Loads         int           // bodies loaded at once, default 16
	DrainGrace    time.Duration // running work may finish by itself, default 10 s
	StopGrace     time.Duration // stopped work may report, and reports be answered, default 5 s each

	Dice func(below int64) int64 // jitter of repeated tries; nil: the runtime's
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.BeatEvery, time.Second)
	def(&c.ReportTimeout, 5*time.Second)
	def(&c.DrainGrace, 10*time.Second)
	def(&c.StopGrace, 5*time.Second)
	if c.Reports <= 0 {
		c.Reports = 4
	}
	if c.Gather <= 0 {
		c.Gather = 64
	}
	if c.Loads <= 0 {
		c.Loads = 16
	}
	if c.Lanes == nil {
		c.Lanes = func() []uint8 { return nil }
	}
	return c
}

// Agent is the hands of one node.
type Agent struct {
	cfg     Config
	bus     Bus
	log     *slog.Logger
	targets map[job.Kind]Target // fixed before Run

	assigning sync.Mutex     // one batch at a time
	work      sync.WaitGroup // all goroutines of Run
	loads     errands
	stores    errands
	wake      chan struct{} // holds one notice for the reporter
	beatNow   chan struct{} // holds one notice for the beat
	leased    chan struct{} // holds one notice of a new lease

	mu       sync.Mutex // guards all below; never held while a target or the bus is called
	epoch    uint64     // highest seen
	lease    time.Time  // working time borrowed from the authority; zero: none yet
	stopped  bool       // the lease ran out and the work was stopped
	former   former     // the orders of that lease
	draining bool
	edges    []string // of the other nodes, as the authority last told
	table    table
	room     room
	outbox   outbox
	notes    notes
	idle     chan struct{} // closed when nothing runs or waits; nil: nobody asked
}

// New makes an agent. Its targets are added before Run.
func New(cfg Config, bus Bus, log *slog.Logger) *Agent {
	cfg = cfg.withDefaults()
	a := &Agent{
		cfg: cfg, bus: bus, log: log, targets: map[job.Kind]Target{},
		wake: make(chan struct{}, 1), beatNow: make(chan struct{}, 1), leased: make(chan struct{}, 1),
		table: newTable(), room: newRoom(), notes: notes{first: 1},
	}
	a.loads = errands{max: cfg.Loads, work: &a.work}
	a.stores = errands{max: cfg.Loads, work: &a.work}
	return a
}

// Add binds a target; only before Run.
func (a *Agent) Add(t Target) { a.targets[t.Kind()] = t }

// Run beats and reports until ctx ends, and then drains: new work is refused,
// running work may finish for Config.DrainGrace, is stopped then, and all
// outcomes are reported if the authority can be reached in time.
func (a *Agent) Run(ctx context.Context) error {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer a.work.Wait()
	defer stop()
	a.loads.begin(working)
	a.stores.begin(working)
	a.work.Go(func() { a.beat(working) })
	a.work.Go(func() { a.watchLease(working) })
	a.work.Go(func() { a.report(working) })
	<-ctx.Done()
	a.finish()
	return nil
}

// Drain refuses new work from now on; what runs goes on.
func (a *Agent) Drain() {
	a.mu.Lock()
	a.draining = true
	a.mu.Unlock()
	notice(a.beatNow)
}

// Resume takes new work again.
func (a *Agent) Resume() {
	a.mu.Lock()
	a.draining = false
	a.mu.Unlock()
	notice(a.beatNow)
}

// Running is how many dispatches are in hand and have not ended.
func (a *Agent) Running() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.table.running
}

// Lease is until when this node may work without a further answer from the
// authority.
func (a *Agent) Lease() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lease
}

// finish drains: see Run.
func (a *Agent) finish() {
	a.Drain()
	if a.idleWithin(a.cfg.DrainGrace, func() bool { return a.table.running == 0 }) {
		a.stopAll(job.RecallShutdown)
		a.idleWithin(a.cfg.StopGrace, func() bool { return a.table.running == 0 })
	}
	a.idleWithin(a.cfg.StopGrace, func() bool { return len(a.table.live) == 0 })
	a.mu.Lock()
	defer a.mu.Unlock()
	if left := len(a.table.live); left > 0 {
		a.log.Warn("stopped with outcomes nobody has committed", "dispatches", left)
	}
}

// idleWithin waits for a fact about the table, and tells whether it still is
// none after d.
func (a *Agent) idleWithin(d time.Duration, fact func() bool) (late bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		a.mu.Lock()
		ok := fact()
		if a.idle == nil {
			a.idle = make(chan struct{})
		}
		changed := a.idle
		a.mu.Unlock()
		if ok {
			return false
		}
		select {
		case <-changed:
		case <-timer.C:
			return true
		}
	}
}

// left tells idleWithin that a dispatch ended or was settled. Callers hold mu.
func (a *Agent) left() {
	if a.idle != nil {
		close(a.idle)
		a.idle = nil
	}
}

// stopAll recalls everything that runs.
func (a *Agent) stopAll(why job.RecallReason) {
	a.mu.Lock()
	var running []*dispatch
	for _, d := range a.table.live {
		if d.recall(why) {
			running = append(running, d)
		}
	}
	a.mu.Unlock()
	for _, d := range running {
		a.stop(d, why)
	}
}

// sees notes an authority's epoch and tells whether it is at least the highest
// seen. A higher one has heard nothing of this node's room. Callers hold mu.
func (a *Agent) sees(epoch uint64) bool {
	if epoch > a.epoch {
		a.epoch = epoch
		a.room.forgotten()
		notice(a.wake)
	}
	return epoch == a.epoch
}

// notice leaves a notice, if there is none already.
func notice(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
