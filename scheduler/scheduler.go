package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// Config configures a [Scheduler]. All members must use the same values, apart
// from Node and the functions.
type Config struct {
	Node                     string
	Members                  []string          // names of the members, used until the ledger holds a membership
	Policy                   job.Policy        // retry policy
	Defaults                 job.Defaults      // defaults of job fields
	DefaultTimeout           time.Duration     // hard limit of an attempt whose job sets none
	Routes                   map[string]string // queue to RRQ runner
	DefaultRunner            string            // RRQ runner of bare functions; "" for none
	CreateQueues             bool              // whether a job of an unknown queue creates the queue
	Crons                    []ledger.Cron     // the cron entries that the configuration declares
	Retention                job.Retention     // the retention settings that the configuration declares
	ConsistencyCheckInterval time.Duration     // how often the members compare their ledgers' hashes; 0: never
	CheckPayload             CheckPayload      // nil: payloads are not checked
	LimitKey                 LimitKey          // nil: a job has the limit key that it gives
	Labels                   Labels            // nil: the ledger's readers get none
	BlockedReason            func() string     // called before each entry; returns why no job may be ingested, or "" if jobs may; nil: always ""
}

// LimitKey returns the limit key of a job for a queue, nil if it has none. An error is the reason
// why its record is rejected.
type LimitKey func(queue string, spec *job.Spec) (*string, error)

// Labels returns the labels of the job that a record asks for, see [job.Labels.Encode].
type Labels func(r *job.Record, spec *job.Spec, id job.ID) string

// CheckPayload checks the payload of a record that is about to be ingested. An error means that
// the verdict is not known: the payload is stored apart from the record and, unless mayRead is
// set, was not read.
type CheckPayload func(ctx context.Context, r *job.Record, spec *job.Spec, mayRead bool) (Verdict, error)

// Verdict is the result of the check of a payload.
type Verdict struct {
	Rejection error  // why the record is rejected; nil: it is not
	Ingested  func() // called by the loop once the record is ingested, while it may be checked several times; nil: not called
}

// Durations of a tenure. Leases form a chain: no lease outlasts the lease of the
// one that granted it.
const (
	leaseTime     = 10 * time.Second // the authority's lease, in the ledger's time
	renewInterval = 3 * time.Second
	trustTime     = 8 * time.Second         // how long the authority relies on a lease, by its monotonic clock
	nodeLease     = 6 * time.Second         // granted to a node with each heartbeat
	reassignAfter = 7500 * time.Millisecond // how long a node is silent before its dispatches are lost
)

// Proposal is one Raft entry, and Commit an applied one.
type (
	Proposal = ledger.Proposal
	Commit   = ledger.Commit
)

// Ledger gives the scheduler access to the replicated ledger.
type Ledger interface {
	// Submit proposes an entry. Entries are committed in the order of the calls.
	// The returned function blocks until the entry is applied on this node.
	Submit(Proposal) (wait func(context.Context) (Commit, error), err error)
	// View calls its argument with this node's ledger, which must not be used
	// after the call returns.
	View(func(*ledger.Ledger))
	// Passed returns how long ago the last entry of the ledger that View has passed to its
	// caller was made, or less, see [ledger.Passed].
	Passed(*ledger.Ledger) time.Duration
	// Copy returns the current ledger, for reads that take long.
	Copy() *ledger.Ledger
}

// LaneInfo is the state of a job lane, as the leader of its stream reports it.
type LaneInfo struct {
	Identity    string
	First, Last uint64 // sequences of the first and last record
	Bytes       uint64
	MaxBytes    uint64 // 0: unlimited
}

// Lanes gives access to the streams of accepted jobs.
type Lanes interface {
	// Ensure verifies the cluster's streams, and creates those that are missing if
	// they are of a later generation than created, see [ledger.StreamGeneration].
	Ensure(ctx context.Context, identities []string, created uint8) error
	// Info returns the state of a lane or, for [job.RelocatedLane], of the stream
	// of relocated records, which has no identity.
	Info(ctx context.Context, lane uint8) (LaneInfo, error)
	// Served reports whether any replica of a lane serves reads. One that does not
	// answer in time counts: the network may hide it.
	Served(ctx context.Context, lane uint8) bool
	// Read returns at most limit records of a lane from sequence from on.
	Read(ctx context.Context, lane uint8, from uint64, limit int) ([]job.Record, error)
	// Tail calls fn with the records that the lanes store from now on, until ctx
	// ends. It may miss records.
	Tail(ctx context.Context, fn func(job.Record)) error
	// Load returns the body of the record at pos if it belongs to the job with
	// the given id; a zero id matches every record. [ErrRecordGone] is final.
	Load(ctx context.Context, pos job.Position, id job.ID) ([]byte, error)
	// AttemptError returns the whole error of a job's dispatch, if it is stored and
	// the job's last one.
	AttemptError(ctx context.Context, id job.ID, n uint32) (*job.AttemptError, error)
	// Publish appends a record under a key and calls done once; done must not
	// block.
	Publish(queue, key string, at time.Time, body []byte, done func(error))
	// Relocate copies records of a lane to the stream of relocated records, in
	// their order, until the next one would exceed space, in bytes. It returns the
	// sequences of the copies there and their size. With an error it returns the
	// sequences of the first records, as many as were copied. A call that is repeated
	// with the same floor, that of the stream of relocated records, may return the
	// same copies.
	Relocate(ctx context.Context, lane uint8, floor, space uint64, records []ledger.NeededRecord) (seqs []uint64, size uint64, err error)
	// Purge removes the records below a sequence, except the lane's last record.
	Purge(ctx context.Context, lane uint8, below uint64) error
	// Bodies returns the bodies that are stored as blobs, DeadLetterBodies the owners
	// of those that dead letters refer to. RemoveBody removes a body by its name.
	Bodies(ctx context.Context) ([]StoredBody, error)
	DeadLetterBodies(ctx context.Context) (map[job.ID]bool, error)
	RemoveBody(ctx context.Context, name string) error
	// BodySpace returns how many bytes of large bodies are stored, and at most may
	// be; 0: there is no bound. RemoveDeadLettersOf removes the dead letters that
	// refer to the body of an owner.
	BodySpace(ctx context.Context) (used, limit uint64, err error)
	RemoveDeadLettersOf(ctx context.Context, owner job.ID) error
	// ApplyRetention gives the streams the bounds of the settings, and otherwise
	// leaves their configuration as it is.
	ApplyRetention(ctx context.Context, settings job.Retention) error
	// EvictDeadLetters removes the dead letters of a queue that were stored before a
	// time, and the oldest of those beyond keep; zero values stand for no bound.
	EvictDeadLetters(ctx context.Context, queue string, before time.Time, keep int64) error
}

// Fleet sends assignments and recalls to nodes. Both methods return at once.
type Fleet interface {
	// Assign calls done once: with the node's answers, one for each assignment,
	// or with an error if no answer came.
	Assign(node string, b job.AssignmentBatch, done func([]job.Answer, error))
	Recall(node string, r job.Recall)
}

// ErrNotAuthority is returned by methods that need a running tenure when this node
// does not hold the authority.
var ErrNotAuthority = errors.New("this node is not the authority")

// ErrRecordGone is returned by [Lanes.Load] if the record is no longer in its lane.
var ErrRecordGone = errors.New("the record is no longer in its lane")

// ErrCommitUnknown is returned when the tenure ended while a command was in flight:
// the command may or may not have been committed.
var ErrCommitUnknown = errors.New("the authority changed; it is not known whether the command took effect")

// Scheduler runs the tenures of one node, one after the other. It lives as long as
// the node. All methods may be called from any goroutine.
type Scheduler struct {
	cfg     Config
	ledger  Ledger
	lanes   Lanes
	fleet   Fleet
	streams outbox.Streams
	log     *slog.Logger

	counters counters

	// Of the last tenure; they belong to the caller of Run.
	lastClock stampClock
	lastEpoch uint64 // 0: there was none

	mu       crash.Mutex
	tenure   *tenure         // nil outside a tenure
	deferred []func(*tenure) // messages received while the lease is being acquired; nil at other times
}

// maxDeferred bounds the messages kept for a tenure that the ledger already names
// and that has not started yet.
const maxDeferred = 1024

// New returns a scheduler. Call [Scheduler.Run] for each tenure.
func New(cfg Config, l Ledger, lanes Lanes, fleet Fleet, streams outbox.Streams, log *slog.Logger) *Scheduler {
	return &Scheduler{cfg: cfg, ledger: l, lanes: lanes, fleet: fleet, streams: streams, log: log}
}

// Run runs one tenure: it acquires the authority lease and returns when ctx ends,
// when the lease can no longer be trusted, or when a part of the tenure fails.
// Dispatching starts at once; the lanes and the outbox's streams are used as soon
// as they answer.
func (s *Scheduler) Run(ctx context.Context, term uint64) error {
	s.prepare()
	defer s.end()
	t, err := s.acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire authority: %w", err)
	}
	s.log.Info("authority acquired", "epoch", t.loop.epoch, "term", term)
	defer s.log.Info("tenure ended", "epoch", t.loop.epoch)

	group, ctx := errgroup.WithContext(ctx)
	defer func() { s.lastClock, s.lastEpoch = t.loop.clock, t.loop.epoch }()
	group.Go(func() error { return t.loop.run(ctx, t.sweep, t.flush) })
	s.begin(t)
	group.Go(func() error { return t.awaitCommits(ctx) })
	group.Go(func() error { return t.lease.watch(ctx) })
	if t.restoring != "" { // the restore replaces the streams: only its commands are committed
		return group.Wait()
	}
	identities := t.lanes.identities()
	bodies := &bodySweeper{loop: t.loop, ledger: s.ledger, lanes: s.lanes, log: s.log, ingested: t.lanes.ingestedBefore}
	group.Go(func() error { return t.streams.run(ctx, identities) })
	group.Go(func() error { return t.lanes.run(ctx) })
	group.Go(func() error { return t.outbox.Run(ctx, t.loop.epoch) })
	group.Go(func() error { return bodies.run(ctx) })
	group.Go(func() error { return t.reclaimer.run(ctx) })
	group.Go(func() error { return t.retention.run(ctx) })
	group.Go(func() error { return t.replayer.run(ctx, identities) })
	return group.Wait()
}

// prepare has post keep messages until begin or end. Nodes send them as soon as the
// ledger names this node as the authority, which may be before the tenure begins.
func (s *Scheduler) prepare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deferred = make([]func(*tenure), 0, 8)
}

// begin makes t the current tenure and delivers the deferred messages to it.
func (s *Scheduler) begin(t *tenure) {
	s.mu.Lock()
	deferred := s.deferred
	s.tenure, s.deferred = t, nil
	s.mu.Unlock()
	for _, fn := range deferred {
		fn(t)
	}
}

// end clears the current tenure and drops the deferred messages.
func (s *Scheduler) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tenure, s.deferred = nil, nil
}

// post calls fn with the current tenure, or keeps fn until the tenure that is being
// acquired begins. It returns [ErrNotAuthority] if there is neither, or if maxDeferred
// functions are kept already.
func (s *Scheduler) post(fn func(*tenure)) error {
	s.mu.Lock()
	t := s.tenure
	if t == nil && s.deferred != nil && len(s.deferred) < maxDeferred {
		s.deferred = append(s.deferred, fn)
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	if t == nil {
		return ErrNotAuthority
	}
	fn(t)
	return nil
}

// current returns the current tenure, or nil.
func (s *Scheduler) current() *tenure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tenure
}

// ReceiveRecords passes records that were just stored to the current tenure, so that
// it need not read them. Without a tenure it does nothing.
func (s *Scheduler) ReceiveRecords(records []job.Record) {
	if t := s.current(); t != nil {
		t.lanes.receiveRecords(records)
	}
}

// Report passes a node's outcomes and offers to the tenure. It calls reply once, when
// the outcomes are committed, or never if the tenure ends first.
func (s *Scheduler) Report(r job.Report, reply func(job.ReportAck)) error {
	return s.post(func(t *tenure) { t.loop.post(func() { t.receiveReport(r, reply) }) })
}

// Heartbeat passes a node's heartbeat to the tenure. It calls reply once, or never if the
// tenure ends first, the authority's lease has expired, or the node has restarted.
func (s *Scheduler) Heartbeat(b job.Heartbeat, reply func(job.HeartbeatAck)) error {
	arrived := time.Now()
	return s.post(func(t *tenure) {
		t.loop.post(func() {
			t.sampleClock(b, arrived)
			t.receiveHeartbeat(b, reply)
		})
	})
}

// Propose commits a caller's command and returns its result and the log index of its
// entry. If the ledger refuses the command, the result's Err says why. If Propose
// returns an error other than [ErrNotAuthority], the command may or may not have
// taken effect.
func (s *Scheduler) Propose(ctx context.Context, c ledger.Command) (ledger.Result, uint64, error) {
	t := s.current()
	if t == nil {
		return ledger.Result{}, 0, ErrNotAuthority
	}
	type answer struct {
		result ledger.Result
		index  uint64
	}
	answered := make(chan answer, 1)
	submit := func() {
		if err := t.crons.setNextTick(c); err != nil {
			answered <- answer{ledger.Result{Err: err}, 0}
			return
		}
		t.loop.submit(c, func(r ledger.Result, index uint64) {
			t.followCommand(c, r, index)
			answered <- answer{r, index}
		})
	}
	select {
	case t.loop.inbox <- submit:
	case <-t.loop.done:
		return ledger.Result{}, 0, ErrNotAuthority
	case <-ctx.Done():
		return ledger.Result{}, 0, ctx.Err()
	}
	select {
	case a := <-answered:
		return a.result, a.index, nil
	case <-t.loop.done:
		return ledger.Result{}, 0, ErrCommitUnknown
	case <-ctx.Done():
		return ledger.Result{}, 0, ctx.Err()
	}
}
