package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"yardmaster/job"
	"yardmaster/ledger"
)

// Config is what the authority decides by. Every member must have the same.
type Config struct {
	Node           string
	Members        []string          // the members' names, until the ledger has a roll
	Policy         job.Policy        // retries
	Defaults       job.Defaults      // of jobs
	DefaultTimeout time.Duration     // hard limit of an attempt whose job names none
	Routes         map[string]string // queue to RRQ runner
	DefaultRunner  string            // RRQ runner of bare functions; "" for none
	CreateQueues   bool              // a job of an unknown queue creates it
	Crons          []ledger.Cron     // the entries that the configuration declares
	ProveEvery     time.Duration     // how often members prove that their ledgers are the same; 0: never
	Held           func() string     // why nothing new may be begun, asked before each entry; nil or "": it may
}

// Times of a tenure (design: leases form a chain, none longer than its
// giver's).
const (
	leaseTime     = 10 * time.Second
	renewEvery    = 3 * time.Second
	trustTime     = 8 * time.Second // of the lease, on this node's monotonic clock
	nodeLease     = 6 * time.Second
	reassignAfter = 7500 * time.Millisecond
)

// Proposal is one Raft entry.
type Proposal struct {
	At       time.Time
	Epoch    uint64
	Commands []ledger.Command
}

// Commit is an entry that was applied.
type Commit struct {
	Index   uint64
	Results []ledger.Result
}

// Ledger is agreement as a scheduler needs it. Submit keeps the order of its
// calls; the returned function waits for the commit.
type Ledger interface {
	Submit(Proposal) (wait func(context.Context) (Commit, error), err error)
	View(func(*ledger.Ledger))
	// Copy gives the ledger as it is now, for reads that take longer.
	Copy() *ledger.Ledger
}

// Lane is a job lane as its stream's leader reports it.
type Lane struct {
	Identity    string
	Leader      string // member
	First, Last uint64
	Bytes       uint64
	MaxBytes    uint64 // 0: no limit
}

// Lanes are the streams that jobs come in by.
type Lanes interface {
	// Ensure verifies the yard's streams, and makes those that are missing if
	// create is true.
	Ensure(ctx context.Context, identities []string, create bool) error
	Info(ctx context.Context, lane uint8) (Lane, error)
	Read(ctx context.Context, lane uint8, from uint64, most int) ([]job.Record, error)
	Tail(ctx context.Context, fn func(job.Record)) error
	// Load gives the record of a job, and no other that lies in its place; with a
	// zero id, whatever lies there. [ErrRecordGone] is final.
	Load(ctx context.Context, at job.Position, id job.ID) ([]byte, error)
	// Publish appends a record under a key and calls done once; done must not
	// wait. fresh is false if the lane had the record already.
	Publish(queue, key string, at time.Time, body []byte, done func(p job.Position, fresh bool, err error))
	// Purge frees the records below a sequence, but never the last one.
	Purge(ctx context.Context, lane uint8, below uint64) error
	// PurgeBlobs frees what was stored beside the lanes, large bodies and
	// results, in the hours before the one that a time lies in.
	PurgeBlobs(ctx context.Context, before time.Time) error
}

// Fleet carries orders to nodes.
type Fleet interface {
	Assign(node string, b job.Batch, done func([]job.Answer, error))
	Recall(node string, r job.Recall)
}

// ErrNoTenure answers what only an authority can answer, on a node that is
// none.
var ErrNoTenure = errors.New("this node is not the authority")

// ErrUnsettled ends the wait for a command whose tenure ended meanwhile: it may
// or may not have been committed.
var ErrUnsettled = errors.New("the authority changed; it is not known whether the command took effect")

// Scheduler lasts as long as the node; its mind lasts for a tenure.
type Scheduler struct {
	cfg    Config
	ledger Ledger
	lanes  Lanes
	fleet  Fleet
	tales  Tales
	log    *slog.Logger

	tallies tallies

	mu    sync.Mutex
	mind  *mind         // nil outside a tenure
	early []func(*mind) // said while the lease is being acquired; nil outside
}

// maxEarly bounds what nodes may say to an authority that the ledger shows
// already and that has not begun yet.
const maxEarly = 1024

// New makes a scheduler; [Scheduler.Run] runs one tenure.
func New(cfg Config, l Ledger, lanes Lanes, fleet Fleet, tales Tales, log *slog.Logger) *Scheduler {
	return &Scheduler{cfg: cfg, ledger: l, lanes: lanes, fleet: fleet, tales: tales, log: log}
}

// Run is one tenure: it acquires the lease and returns when ctx ends, when the
// lease can no longer be trusted, or when a part fails. Dispatching starts at
// once; lanes and tales join when they answer.
func (s *Scheduler) Run(ctx context.Context, term uint64) error {
	s.prepare()
	defer s.leave()
	m, err := s.acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire authority: %w", err)
	}
	s.log.Info("authority acquired", "epoch", m.epoch, "term", term)
	defer s.log.Info("authority given up", "epoch", m.epoch)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.run(ctx) })
	s.enter(m)
	group.Go(func() error { return m.commits(ctx) })
	group.Go(func() error { return m.hold(ctx) })
	if m.bringing != "" {
		return group.Wait()
	}
	group.Go(func() error { return m.intake(ctx) })
	group.Go(func() error { return m.publish(ctx) })
	group.Go(func() error { return m.reclaim(ctx) })
	group.Go(func() error { return m.replay(ctx) })
	return group.Wait()
}

// prepare lets nodes be heard from the moment the ledger names this one.
func (s *Scheduler) prepare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.early = make([]func(*mind), 0, 8)
}

// enter begins to hear, first what was said early.
func (s *Scheduler) enter(m *mind) {
	s.mu.Lock()
	early := s.early
	s.mind, s.early = m, nil
	s.mu.Unlock()
	for _, say := range early {
		say(m)
	}
}

func (s *Scheduler) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mind, s.early = nil, nil
}

// tell says something to the present tenure, or to the one about to begin.
func (s *Scheduler) tell(say func(*mind)) error {
	s.mu.Lock()
	m := s.mind
	if m == nil && s.early != nil && len(s.early) < maxEarly {
		s.early = append(s.early, say)
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	if m == nil {
		return ErrNoTenure
	}
	say(m)
	return nil
}

func (s *Scheduler) tenure() *mind {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mind
}

// Notice hears of records that nodes have just had acknowledged.
func (s *Scheduler) Notice(records []job.Record) {
	if m := s.tenure(); m != nil {
		m.notice(records)
	}
}

// Report hears a node's outcomes and offers. reply is called once, when the
// outcomes are committed; it is not called if the tenure ends before.
func (s *Scheduler) Report(r job.Report, reply func(job.ReportAck)) error {
	return s.tell(func(m *mind) { m.post(func() { m.report(r, reply) }) })
}

// Beat hears a node's sign of life.
func (s *Scheduler) Beat(b job.Beat, reply func(job.BeatAck)) error {
	arrived := time.Now()
	return s.tell(func(m *mind) {
		m.post(func() {
			m.hearClock(b, arrived)
			m.beat(b, reply)
		})
	})
}

// Do commits a caller's command and returns its result and the index of its
// entry. An error means that it is not known whether the command took effect;
// a refusal stands in the result.
func (s *Scheduler) Do(ctx context.Context, c ledger.Command) (ledger.Result, uint64, error) {
	m := s.tenure()
	if m == nil {
		return ledger.Result{}, 0, ErrNoTenure
	}
	return m.do(ctx, c)
}
