package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"yardmaster/job"

	"github.com/nats-io/nats.go"
)

// ErrUnknown: a publish was given up and one of its tries may have been
// stored. Repeating it under the same key is safe.
var ErrUnknown = errors.New("not known whether the job was accepted; repeat it under the same key")

// Ack says where a job was stored.
type Ack struct {
	job.Position
	Duplicate bool // the lane had it already, at this position
}

// Limits of what may be under way.
const (
	maxOutstanding = 16384     // publishes
	maxHeld        = 128 << 20 // bytes of their bodies
	laneAnswer     = 900 * time.Millisecond
	noLanePatience = 1500 * time.Millisecond
	primaryUntil   = 64 // publishes under way, beyond which a node uses its own lane
)

// publisher puts jobs into lanes. Every job is in exactly one place: waiting
// in a gather, on its way to a lane, or parked until a lane answers again.
type publisher struct {
	c     *Cluster
	state *laneStates

	outstanding atomic.Int64
	held        atomic.Int64

	gather *gatherer              // not nil when the node runs alone
	shut   atomic.Pointer[string] // why no job is taken in; nil or "": jobs are
	others atomic.Bool            // while shut: other members take them

	mu     sync.Mutex
	parked []*delivery // no lane to try just now
	closed bool
}

// delivery is one job on its way.
type delivery struct {
	p     *publisher
	queue string
	key   string
	at    time.Time
	body  []byte
	done  func(Ack, error)

	born   time.Time
	lane   uint8
	unsure bool      // a try may have been stored
	beyond uint64    // every place in the lane up to here was taken when it was sent
	again  time.Time // parked: not before
	why    string    // parked: what the last lane said
	full   *apiError // a lane had no room; nil: none has said so
}

func newPublisher(c *Cluster) *publisher {
	p := &publisher{c: c, state: newLaneStates(c)}
	if !c.cfg.clustered() {
		p.gather = &gatherer{p: p}
	}
	return p
}

// Publish stores a job in a lane. done is called exactly once and must not
// block; it may be called before Publish returns. The error is a
// [*job.UnavailableError] when the job is not stored and may be sent again
// later, [ErrUnknown] when nobody can tell, [job.ErrTooLarge], or what the
// lane refused it with. key may be empty: then every try may become a job.
func (c *Cluster) Publish(queue, key string, at time.Time, body []byte, done func(Ack, error)) {
	c.publisher.publish(&delivery{p: c.publisher, queue: queue, key: key, at: at, body: body, done: done, born: time.Now()})
}

// PublishWait is [Cluster.Publish] for one who waits. When ctx ends first the
// job may still be accepted: the error is then [ErrUnknown] too.
func (c *Cluster) PublishWait(ctx context.Context, queue, key string, at time.Time, body []byte) (Ack, error) {
	type end struct {
		ack Ack
		err error
	}
	ended := make(chan end, 1)
	c.Publish(queue, key, at, body, func(a Ack, err error) { ended <- end{a, err} })
	select {
	case e := <-ended:
		return e.ack, e.err
	case <-ctx.Done():
		return Ack{}, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	}
}

// Outstanding is how many publishes are under way.
func (c *Cluster) Outstanding() int { return int(c.publisher.outstanding.Load()) }

func (p *publisher) publish(d *delivery) {
	if job.ValidQueue(d.queue) != nil {
		d.done(Ack{}, job.ValidQueue(d.queue))
		return
	}
	if len(d.key) > job.MaxKeyLen {
		d.done(Ack{}, job.ErrKeyTooLong)
		return
	}
	if why := p.whyShut(); why != "" {
		d.done(Ack{}, shutError(why))
		return
	}
	n, held := p.outstanding.Add(1), p.held.Add(int64(len(d.body)))
	if n > maxOutstanding || held > maxHeld {
		d.end(Ack{}, &job.UnavailableError{Reason: "too many publishes under way", RetryAfter: time.Second})
		return
	}
	if p.gather != nil {
		p.gather.add(d)
		return
	}
	p.place(d, d.born)
}

// end tells the caller. Whatever the last try met, an earlier one may have been
// stored.
func (d *delivery) end(a Ack, err error) {
	if err != nil && d.unsure {
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	d.p.outstanding.Add(-1)
	d.p.held.Add(-int64(len(d.body)))
	d.done(a, err)
}

// place sends a job to the lane that is best now, or parks it.
func (p *publisher) place(d *delivery, now time.Time) {
	lane, ok := p.state.pick(now, int(p.outstanding.Load()))
	switch {
	case ok:
		p.send(d, lane, now, d)
	case d.full != nil: // no other lane is better
		d.end(Ack{}, d.full.later())
	default:
		p.park(d, now.Add(tickEvery), "no lane has a leader that answers")
	}
}

// send puts a job on its way; who hears the lane's answer. False: it has ended
// and who will hear nothing.
func (p *publisher) send(d *delivery, lane uint8, now time.Time, who listener) bool {
	d.lane, d.beyond = lane, p.state.stored[lane].Load()
	due := now.Add(laneAnswer)
	if end := d.born.Add(p.c.cfg.Patience); end.Before(due) {
		due = end // the caller's patience, not a third lane's
	}
	reply, token := p.c.ingest.expect(who, due, false)
	m := d.message(lane)
	m.Reply = reply
	if err := p.c.ingest.nc.PublishMsg(m); err != nil && p.c.ingest.forget(token) {
		d.end(Ack{}, sendError(err))
		return false
	}
	return true
}

func sendError(err error) error {
	if errors.Is(err, nats.ErrMaxPayload) {
		return fmt.Errorf("job does not fit one record: %w", job.ErrTooLarge)
	}
	return &job.UnavailableError{Reason: "node's own server takes no messages: " + err.Error()}
}

func (d *delivery) message(lane uint8) *nats.Msg {
	h := make(nats.Header, 3)
	if d.key != "" {
		h[HeaderMsgID] = []string{d.key}
	}
	if !d.at.IsZero() {
		h[HeaderAt] = []string{strconv.FormatInt(d.at.UnixNano(), 10)}
	}
	return &nats.Msg{Subject: laneSubject(lane, nodePublish, d.queue), Header: h, Data: d.body}
}

// heard takes the lane's answer.
func (d *delivery) heard(m *nats.Msg) bool {
	p := d.p
	switch {
	case m == nil:
		d.unsure = true
		p.state.silent(d.lane, time.Now())
		p.next(d)
	case isNoResponders(m):
		p.state.leaderless(d.lane, time.Now())
		p.next(d)
	default:
		a, err := parsePubAck(m.Data)
		if err != nil {
			p.refused(d, err)
			break
		}
		if a.seq <= d.beyond && !a.duplicate { // nobody folds what lies there
			p.state.disown(d.lane)
			p.next(d)
			break
		}
		p.state.answered(d.lane)
		p.state.raise(d.lane, a.seq)
		d.end(Ack{Position: job.Position{Lane: d.lane, Seq: a.seq}, Duplicate: a.duplicate}, nil)
	}
	return true
}

// next tries another lane, at once: the one that failed is marked.
func (p *publisher) next(d *delivery) {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	now := time.Now()
	if closed || now.Sub(d.born) >= p.c.cfg.Patience {
		d.giveUp("no lane answered in time")
		return
	}
	if p.gather != nil {
		p.park(d, now.Add(tickEvery), "the lane does not answer")
		return
	}
	p.place(d, now)
}

// refused takes a lane's error: some mean "elsewhere", some "later", the rest
// are final.
func (p *publisher) refused(d *delivery, err error) {
	now := time.Now()
	var refusal *apiError
	if !errors.As(err, &refusal) {
		d.end(Ack{}, err)
		return
	}
	switch refusal.kind() {
	case refusalConflict: // the same key is being stored right now
		p.park(d, now.Add(tickEvery/2), refusal.Description)
	case refusalElsewhere:
		p.state.leaderless(d.lane, now)
		p.next(d)
	case refusalLater:
		if refusal.full() && p.gather == nil { // another lane may have room
			d.full = refusal
			p.state.full(d.lane, now)
			p.next(d)
			return
		}
		d.end(Ack{}, refusal.later())
	case refusalTooLarge:
		d.end(Ack{}, fmt.Errorf("job does not fit one record: %w", job.ErrTooLarge))
	default:
		d.end(Ack{}, fmt.Errorf("lane %d refuses the job: %w", d.lane, refusal))
	}
}

func (d *delivery) giveUp(why string) {
	d.end(Ack{}, &job.UnavailableError{Reason: why, RetryAfter: time.Second})
}

func (p *publisher) park(d *delivery, again time.Time, why string) {
	d.again, d.why = again, why
	p.mu.Lock()
	if !p.closed {
		p.parked = append(p.parked, d)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	d.giveUp("node is stopping")
}

// turn tries what is parked again. A job no lane ever took is refused soon:
// its caller can go to another node.
func (p *publisher) turn(now time.Time) {
	p.mu.Lock()
	parked := p.parked
	p.parked = nil
	p.mu.Unlock()
	for _, d := range parked {
		age := now.Sub(d.born)
		switch {
		case age >= p.c.cfg.Patience, !d.unsure && age > noLanePatience:
			d.giveUp(d.why)
		case now.Before(d.again):
			p.park(d, d.again, d.why)
		case p.gather != nil:
			p.gather.add(d)
		default:
			p.place(d, now)
		}
	}
}

func (p *publisher) close() {
	p.mu.Lock()
	p.closed = true
	parked := p.parked
	p.parked = nil
	p.mu.Unlock()
	if p.gather != nil {
		parked = append(parked, p.gather.drop()...)
	}
	for _, d := range parked {
		d.giveUp("node is stopping")
	}
}
