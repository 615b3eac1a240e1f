// Package lanes stores jobs in the yard's lanes. It knows which lanes answer, publishes to
// this node's own lane while that one does, and otherwise to another one under the same
// idempotency key. It does the same with the direct publishes of this node's clients. It
// delays acknowledgements, and then refuses jobs, when more arrive than can be handled.
//
// A publish is retried on another lane after 0.9 s, or later if its lane answers others
// slowly, and abandoned after the configured PublishTimeout, by default 1.8 s; it fails with
// [streams.ErrUnknown] if one of its attempts may have been stored. JetStream needs 4 to
// 10 s to replace a dead leader. Only the stream itself may subscribe to a lane's subjects:
// another subscriber would hide the immediate "no responders" of a lane without a leader.
package lanes

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Ack says where a job is stored.
type Ack struct {
	job.Position
	Duplicate bool // the lane already had it, at this position
	Repeated  bool // an earlier attempt may have been stored, in another lane
}

// TickInterval is how often publishes are routed and requests expire.
const TickInterval = 100 * time.Millisecond

// Time limits of publishes.
const (
	laneTimeout    = 900 * time.Millisecond  // for a lane's acknowledgement, at least
	slowLaneFactor = 3                       // how many times a lane's usual time it may take
	noLaneTimeout  = 1500 * time.Millisecond // for a job that was never sent to any lane
)

// Publisher stores jobs in lanes. Its methods may be called concurrently. Every pending
// job is in exactly one place: in a packer's queue, in flight to a lane, or parked
// until a lane answers again.
type Publisher struct {
	local    *embedded.Server
	state    *laneStates
	prober   *prober
	direct   *directPublishes
	mismatch *mismatchWatch
	load     *loadWatch

	inFlight *inFlight

	packers      [subjects.MaxLanes]packer
	recent       recentKeys
	onStored     func([]job.Record)     // see [Publisher.OnStored]
	closedFor    atomic.Pointer[string] // why the intake is closed; nil or "": it is open
	othersAccept atomic.Bool            // while the intake is closed: other members accept jobs

	mu     crash.Mutex
	parked []*pendingPublish // waiting for a lane to try
	closed bool
}

// pendingPublish is one job on its way into a lane.
type pendingPublish struct {
	p     *Publisher
	queue string
	key   string
	at    time.Time
	body  []byte
	done  func(Ack, error)

	packedSize  int // bytes that it takes in a message of several, at most; 0: it has one of its own
	started     time.Time
	lane        uint8     // that it was last sent to
	maybeStored bool      // an attempt may have been stored
	retryAt     time.Time // parked until then
	lastError   string    // while parked: the last lane's error
	noSpace     error     // of the last lane that refused it for lack of space; nil: none did
}

// New returns a publisher that publishes over l's connections.
func New(l *embedded.Server) *Publisher {
	p := &Publisher{local: l, state: &laneStates{local: l}, inFlight: newInFlight()}
	p.load = newLoadWatch(l, p.state, p.inFlight)
	p.mismatch = &mismatchWatch{local: l, state: p.state, wake: make(chan struct{}, 1)}
	p.prober = &prober{local: l, state: p.state}
	p.direct = &directPublishes{local: l, publisher: p, state: p.state}
	for lane := range p.packers {
		p.packers[lane].p, p.packers[lane].lane = p, uint8(lane)
	}
	return p
}

// OnStored sets the function that is called with the records of each message that the
// publisher has stored, before their callers are answered. It must not block, and must be set
// before the first publish.
func (p *Publisher) OnStored(fn func([]job.Record)) { p.onStored = fn }

// Publish stores a job in a lane. done is called exactly once and must not block;
// it may be called before Publish returns. The error is a [*job.UnavailableError]
// if the job is not stored and may be retried later, [streams.ErrUnknown] if it may be
// stored, [job.ErrTooLarge], or the error with which the lane refused it. Without
// a key every attempt may become a job.
func (p *Publisher) Publish(queue, key string, at time.Time, body []byte, done func(Ack, error)) {
	d := &pendingPublish{p: p, queue: queue, key: key, at: at, body: body, done: done, started: time.Now()}
	if err := job.ValidQueue(queue); err != nil {
		done(Ack{}, err)
		return
	}
	if len(key) > job.MaxKeyLen {
		done(Ack{}, job.ErrKeyTooLong)
		return
	}
	if reason := p.closedReason(); reason != "" {
		d.done(Ack{}, &job.UnavailableError{Reason: reason, RetryAfter: closedRetryAfter})
		return
	}
	if at, ok := p.recent.find(key); ok {
		done(Ack{Position: at, Duplicate: true}, nil)
		return
	}
	if err := p.inFlight.reserve(len(body)); err != nil {
		d.done(Ack{}, err)
		return
	}
	if job.Packable(key, body) {
		d.packedSize = job.PackedSize(queue, key, body)
	}
	p.sendToBestLane(d, d.started)
}

// finish reports the result to the caller. If an earlier attempt may have been
// stored, an error becomes [streams.ErrUnknown].
func (d *pendingPublish) finish(a Ack, err error) {
	if err != nil && d.maybeStored {
		err = fmt.Errorf("%w: %w", streams.ErrUnknown, err)
	}
	d.p.inFlight.release(len(d.body))
	d.done(a, err)
}

// sendToBestLane sends a job to the lane that is best now. If no lane can be tried it
// parks the job, or fails it if the last lane that was tried has no space.
func (p *Publisher) sendToBestLane(d *pendingPublish, now time.Time) {
	lane := p.state.pick(now)
	switch {
	case lane != noLane:
		d.lane = uint8(lane)
		p.packers[lane].add(d)
	case d.noSpace != nil: // the lanes without space are marked down, and no other one is left
		d.finish(Ack{}, d.noSpace)
	default:
		p.park(d, now.Add(TickInterval), "no lane has a reachable leader")
	}
}

// noteLate records that a lane has not answered what was sent to it at a time, if that means
// that lanes are slow.
func (p *Publisher) noteLate(lane uint8, sent time.Time) {
	if p.inFlight.late() {
		p.state.noteLate(lane, time.Since(sent))
	}
}

// tryNextLane sends a job to another lane at once; the caller has marked the lane that
// failed as down. On a node that runs alone, which has only one lane, it parks the job.
// It fails the job if PublishTimeout has passed or the publisher is closed.
func (p *Publisher) tryNextLane(d *pendingPublish) {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	now := time.Now()
	if closed || now.Sub(d.started) >= p.local.Config.PublishTimeout {
		d.fail("no lane answered in time")
		return
	}
	if !p.local.Config.Clustered() {
		p.park(d, now.Add(TickInterval), "the lane does not answer")
		return
	}
	p.sendToBestLane(d, now)
}

// handleError handles the error with which a lane refused a job: depending on the class
// of the error it tries another lane, retries later, or fails the job.
func (p *Publisher) handleError(d *pendingPublish, err error) {
	now := time.Now()
	apiErr, refused := errors.AsType[*embedded.APIError](err)
	if !refused {
		d.finish(Ack{}, err)
		return
	}
	switch apiErr.Class() {
	case embedded.ClassConflict: // the same key is being stored right now
		p.park(d, now.Add(TickInterval/2), apiErr.Description)
	case embedded.ClassOtherLane:
		p.state.markDown(d.lane, now)
		p.tryNextLane(d)
	case embedded.ClassRetry:
		later := apiErr.Unavailable()
		later.Reason = fmt.Sprintf("lane %d refuses jobs: %s", d.lane, later.Reason)
		if apiErr.StorageFull() && p.local.Config.Clustered() { // another lane may have space
			d.noSpace = later
			p.state.markDown(d.lane, now)
			p.tryNextLane(d)
			return
		}
		d.finish(Ack{}, later)
	case embedded.ClassTooLarge:
		d.finish(Ack{}, fmt.Errorf("job does not fit one record: %w", job.ErrTooLarge))
	default:
		d.finish(Ack{}, fmt.Errorf("lane %d refused the job: %w", d.lane, apiErr))
	}
}

// fail reports that the job was not stored and may be retried.
func (d *pendingPublish) fail(reason string) {
	d.finish(Ack{}, &job.UnavailableError{Reason: reason, RetryAfter: time.Second})
}

// park keeps a job until retryAt; see retryParked. It fails the job if the
// publisher is closed.
func (p *Publisher) park(d *pendingPublish, retryAt time.Time, lastErr string) {
	d.retryAt, d.lastError = retryAt, lastErr
	p.mu.Lock()
	if !p.closed {
		p.parked = append(p.parked, d)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	d.fail("node is stopping")
}

// retryParked sends parked jobs again. A job that was never sent to any lane fails
// early, so that its caller can use another node.
func (p *Publisher) retryParked(now time.Time) {
	p.mu.Lock()
	parked := p.parked
	p.parked = nil
	p.mu.Unlock()
	for _, d := range parked {
		age := now.Sub(d.started)
		neverSent := !d.maybeStored
		switch {
		case age >= p.local.Config.PublishTimeout, neverSent && age > noLaneTimeout:
			d.fail(d.lastError)
		case now.Before(d.retryAt):
			p.park(d, d.retryAt, d.lastError)
		default:
			p.sendToBestLane(d, now)
		}
	}
}

// Open begins to serve the direct publishes of this node's clients.
func (p *Publisher) Open() error {
	if err := p.direct.serve(); err != nil {
		return fmt.Errorf("subscribe to direct publishes: %w", err)
	}
	if err := p.prober.subscribeMoves(); err != nil {
		return fmt.Errorf("subscribe to leader moves: %w", err)
	}
	return nil
}

// Tick finds out which lanes answer and sends parked jobs again. It must be
// called every TickInterval.
func (p *Publisher) Tick(now time.Time) {
	p.inFlight.tick(now)
	p.recent.rotate()
	p.prober.tick(now)
	p.retryParked(now)
}

// WatchStreams keeps jobs out of lanes whose stream is not the one recorded in the
// ledger, until ctx ends.
func (p *Publisher) WatchStreams(ctx context.Context) { p.mismatch.run(ctx) }

// SetIntakeClosed makes this node refuse new jobs from all sources with the given
// reason; "" opens the intake again. Publishes in flight complete. If othersAccept
// is true, direct publishes are routed to a lane that another member leads;
// otherwise they are refused with a JetStream error.
func (p *Publisher) SetIntakeClosed(reason string, othersAccept bool) {
	p.othersAccept.Store(othersAccept)
	p.closedFor.Store(&reason)
}

// closedReason returns why the intake is closed, "" if it is open.
func (p *Publisher) closedReason() string {
	if reason := p.closedFor.Load(); reason != nil {
		return *reason
	}
	return ""
}

// SetLeaving sends new jobs to lanes that other members lead, if there are any, or ends
// that.
func (p *Publisher) SetLeaving(leaving bool) { p.state.leaving.Store(leaving) }

// Close fails all jobs that are not in flight.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	parked := p.parked
	p.parked = nil
	p.mu.Unlock()
	for lane := range p.packers {
		parked = append(parked, p.packers[lane].drain()...)
	}
	for _, d := range parked {
		d.fail("node is stopping")
	}
}
