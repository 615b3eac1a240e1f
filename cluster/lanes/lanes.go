// Package lanes stores jobs in the yard's lanes. It knows which lanes answer, publishes to
// this node's own lane while that one does, and otherwise to another one under the same
// idempotency key. It routes the direct publishes of this node's clients by mappings. It
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
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/nats-io/nats.go"
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
// job is in exactly one place: in the batcher's queue, in flight to a lane, or parked
// until a lane answers again.
type Publisher struct {
	local    *embedded.Server
	state    *laneStates
	router   *router
	mismatch *mismatchWatch
	load     *loadWatch

	inFlight *inFlight

	batcher      *batcher               // nil unless the node runs alone
	closedFor    atomic.Pointer[string] // why the intake is closed; nil or "": it is open
	othersAccept atomic.Bool            // while the intake is closed: other members accept jobs

	mu     sync.Mutex
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

	started     time.Time
	lane        uint8              // that it was last sent to
	maybeStored bool               // an attempt may have been stored
	sent        time.Time          // when it was last sent
	lastTaken   uint64             // the lane's last known sequence when it was sent: a lower one in the reply is an error
	retryAt     time.Time          // parked until then
	lastError   string             // while parked: the last lane's error
	storageErr  *embedded.APIError // of the last lane that refused it for lack of space; nil: none did
}

// New returns a publisher that publishes over l's connections.
func New(l *embedded.Server) *Publisher {
	p := &Publisher{local: l, state: &laneStates{local: l}, inFlight: newInFlight()}
	p.load = newLoadWatch(l, p.state, p.inFlight)
	p.mismatch = &mismatchWatch{local: l, state: p.state, wake: make(chan struct{}, 1)}
	p.router = &router{local: l, publisher: p, state: p.state, mapped: unmapped}
	if !l.Config.Clustered() {
		p.batcher = &batcher{p: p}
	}
	return p
}

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
	if err := p.inFlight.reserve(len(body)); err != nil {
		d.done(Ack{}, err)
		return
	}
	if p.batcher != nil {
		p.batcher.add(d)
		return
	}
	p.sendToBestLane(d, d.started)
}

// stored reports that the job is stored.
func (d *pendingPublish) stored(a Ack) {
	since := d.sent
	if d.p.batcher != nil { // in whose queue a job waits for the lane
		since = d.started
	}
	d.p.inFlight.answered(time.Since(since))
	a.Repeated = d.maybeStored
	d.finish(a, nil)
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
		p.sendToLane(d, uint8(lane), now, d) // d also handles the lane's reply
	case d.storageErr != nil: // the lanes without space are marked down, and no other one is left
		d.finish(Ack{}, d.storageErr.Unavailable())
	default:
		p.park(d, now.Add(TickInterval), "no lane has a reachable leader")
	}
}

// sendToLane sends a job to a lane. handler, usually d itself, receives the lane's reply,
// or nil after the lane's timeout or at the end of the publish's own time. It returns false if
// sending failed; then the job is finished and handler is not called.
func (p *Publisher) sendToLane(d *pendingPublish, lane uint8, now time.Time, handler embedded.ReplyHandler) bool {
	d.lane, d.sent, d.lastTaken = lane, now, p.state.lastSeq[lane].Load()
	deadline := now.Add(p.state.timeout(lane))
	if callerDeadline := d.started.Add(p.local.Config.PublishTimeout); callerDeadline.Before(deadline) {
		deadline = callerDeadline
	}
	reply, token := p.local.Ingest.Expect(handler, deadline, false)
	m := d.msg(lane)
	m.Reply = reply
	if err := p.local.Ingest.Conn.PublishMsg(m); err != nil && p.local.Ingest.Cancel(token) {
		d.finish(Ack{}, embedded.PublishError(err))
		return false
	}
	return true
}

// msg returns the message that stores the job in a lane.
func (d *pendingPublish) msg(lane uint8) *nats.Msg {
	header := make(nats.Header, 3)
	if d.key != "" {
		header[subjects.HeaderMsgID] = []string{d.key}
	}
	if !d.at.IsZero() {
		header[subjects.HeaderAt] = []string{strconv.FormatInt(d.at.UnixNano(), 10)}
	}
	return &nats.Msg{Subject: subjects.LaneSubject(lane, subjects.NodePublish, d.queue), Header: header, Data: d.body}
}

// Receive handles a lane's reply to the job, nil if there was none in time. It finishes
// the job or tries another lane.
func (d *pendingPublish) Receive(m *nats.Msg) bool {
	if m == nil || embedded.IsNoResponders(m) {
		if m == nil {
			d.maybeStored = true
			d.p.noteLate(d.lane, d.sent)
		}
		d.p.state.markDown(d.lane, time.Now())
		d.p.tryNextLane(d)
		return true
	}
	ack, err := embedded.ParsePubAck(m.Data)
	switch {
	case err != nil:
		d.p.handleError(d, err)
	case ack.Seq <= d.lastTaken && !ack.Duplicate: // the sequence was used before: not the ledger's stream
		d.p.state.markMismatched(d.lane)
		d.p.tryNextLane(d)
	default:
		d.p.state.markHealthy(d.lane)
		d.p.state.noteAnswer(d.lane, time.Since(d.sent))
		d.p.state.raiseLast(d.lane, ack.Seq)
		d.stored(Ack{Position: job.Position{Lane: d.lane, Seq: ack.Seq}, Duplicate: ack.Duplicate})
	}
	return true
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
	if p.batcher != nil {
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
		if apiErr.StorageFull() && p.batcher == nil { // another lane may have space
			d.storageErr = apiErr
			p.state.markDown(d.lane, now)
			p.tryNextLane(d)
			return
		}
		d.finish(Ack{}, apiErr.Unavailable())
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
		case p.batcher != nil:
			p.batcher.add(d)
		default:
			p.sendToBestLane(d, now)
		}
	}
}

// Open routes the direct publishes of this node's clients.
func (p *Publisher) Open() error {
	if err := p.router.serveDirectPublishes(); err != nil {
		return fmt.Errorf("subscribe to direct publishes: %w", err)
	}
	p.router.updateMapping()
	if err := p.router.subscribeMoves(); err != nil {
		return fmt.Errorf("subscribe to leader moves: %w", err)
	}
	return nil
}

// Tick routes publishes to lanes that answer and sends parked jobs again. It must be
// called every TickInterval.
func (p *Publisher) Tick(now time.Time) {
	p.inFlight.tick(now)
	p.router.tick(now)
	p.retryParked(now)
}

// WatchStreams keeps jobs out of lanes whose stream is not the one recorded in the
// ledger, until ctx ends.
func (p *Publisher) WatchStreams(ctx context.Context) { p.mismatch.run(ctx) }

// SetLeaving sends new jobs to lanes that other members lead, if there are any, or ends
// that.
func (p *Publisher) SetLeaving(leaving bool) {
	p.state.leaving.Store(leaving)
	p.router.updateMapping()
}

// Close fails all jobs that are not in flight.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	parked := p.parked
	p.parked = nil
	p.mu.Unlock()
	if p.batcher != nil {
		parked = append(parked, p.batcher.drain()...)
	}
	for _, d := range parked {
		d.fail("node is stopping")
	}
}
