package lanes

import (
	"crypto/rand"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/nats-io/nats.go"
)

// A lane without replicas syncs every single message to disk, which allows about a
// thousand a second. A node that runs alone therefore batches: while one run of
// messages is in flight, new ones queue for the next run. A run is sent either
// message by message, or as one atomic JetStream batch, which is synced once but
// costs about ten times as much as a single message, because the server creates
// and removes a temporary store for it. Which one is cheaper depends on the disk,
// so the batcher measures both.
const (
	maxBatchMsgs     = 1000
	maxBatchBytes    = 4 << 20
	minBatchMsgs     = 8 // runs up to this size are sent message by message
	defaultBatchCost = 8 * time.Millisecond
)

// batcher sends the publishes of a node that runs alone to lane 0, one run at a
// time.
type batcher struct {
	p *Publisher

	mu         sync.Mutex
	queue      []*pendingPublish
	splits     [][]*pendingPublish // halves of refused batches; sent before anything in queue
	inFlight   bool
	singleCost time.Duration // measured cost per message of a run sent message by message
	batchCost  time.Duration // measured cost of a batch; 0: none was sent yet
}

// add queues d and sends it at once if nothing is in flight.
func (b *batcher) add(d *pendingPublish) {
	b.mu.Lock()
	b.queue = append(b.queue, d)
	b.mu.Unlock()
	b.flush()
}

// flush sends the next run unless one is in flight.
func (b *batcher) flush() {
	b.mu.Lock()
	if b.inFlight {
		b.mu.Unlock()
		return
	}
	msgs := b.nextBatch()
	b.inFlight = len(msgs) > 0
	b.mu.Unlock()
	if len(msgs) > 0 {
		b.send(msgs)
	}
}

// nextBatch removes the next run from the queue. It stays within the size limits
// and contains no key twice, because the server would refuse the whole batch. The
// caller holds b.mu.
func (b *batcher) nextBatch() []*pendingPublish {
	if n := len(b.splits); n > 0 {
		msgs := b.splits[n-1]
		b.splits = b.splits[:n-1]
		return msgs
	}
	n, size := 0, 0
	keys := make(map[string]struct{}, min(len(b.queue), maxBatchMsgs))
	for _, d := range b.queue {
		_, dup := keys[d.key]
		size += len(d.body)
		if n == maxBatchMsgs || n > 0 && size > maxBatchBytes || dup && d.key != "" {
			break
		}
		keys[d.key] = struct{}{}
		n++
	}
	msgs := b.queue[:n:n]
	b.queue = b.queue[n:]
	if len(b.queue) == 0 {
		b.queue = nil
	}
	return msgs
}

// send sends a run of messages, one by one or as an atomic batch.
func (b *batcher) send(msgs []*pendingPublish) {
	now := time.Now()
	if b.preferSingle(len(msgs)) {
		run := &singleRun{b: b, size: len(msgs), remaining: len(msgs), started: now}
		for _, d := range msgs {
			if !b.p.sendToLane(d, 0, now, &singleReply{run, d}) {
				run.done()
			}
		}
		return
	}
	pending := &batchReply{b: b, batch: msgs, started: now}
	in := b.p.local.Ingest
	reply, token := in.Expect(pending, now.Add(laneTimeout), false)
	id := rand.Text()
	for i, d := range msgs {
		m := d.msg(0)
		m.Header[subjects.HeaderBatchID] = []string{id}
		m.Header[subjects.HeaderBatchSeq] = []string{strconv.Itoa(i + 1)}
		if i == len(msgs)-1 {
			m.Header[subjects.HeaderCommit] = []string{"1"}
			m.Reply = reply
		}
		if err := in.Conn.PublishMsg(m); err != nil {
			// The server discards what it received of a batch without its commit.
			if in.Cancel(token) {
				for _, d := range msgs {
					d.finish(Ack{}, embedded.PublishError(err))
				}
				b.finish()
			}
			return
		}
	}
}

// preferSingle reports whether n messages are cheaper to send one by one.
func (b *batcher) preferSingle(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n <= minBatchMsgs {
		return true
	}
	cost := b.batchCost
	if cost == 0 {
		cost = defaultBatchCost
	}
	return time.Duration(n)*b.singleCost < cost
}

// updateEstimate moves *estimate by an eighth of its distance to measured.
func (b *batcher) updateEstimate(estimate *time.Duration, measured time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if *estimate == 0 {
		*estimate = measured
		return
	}
	*estimate += (measured - *estimate) / 8
}

// finish ends the run in flight and starts the next one.
func (b *batcher) finish() {
	b.mu.Lock()
	b.inFlight = false
	b.mu.Unlock()
	b.flush()
}

// drain empties the queue and returns what was in it.
func (b *batcher) drain() []*pendingPublish {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.queue
	for _, half := range b.splits {
		all = append(all, half...)
	}
	b.queue, b.splits = nil, nil
	return all
}

// singleRun is a run that is sent message by message. It ends with the last reply.
type singleRun struct {
	b       *batcher
	size    int // messages
	started time.Time

	mu        sync.Mutex
	remaining int
}

func (r *singleRun) done() {
	r.mu.Lock()
	r.remaining--
	last := r.remaining == 0
	r.mu.Unlock()
	if last {
		r.b.updateEstimate(&r.b.singleCost, time.Since(r.started)/time.Duration(r.size))
		r.b.finish()
	}
}

// singleReply handles the reply to one message of a singleRun.
type singleReply struct {
	run *singleRun
	d   *pendingPublish
}

func (s *singleReply) Receive(m *nats.Msg) bool {
	defer s.run.done()
	return s.d.Receive(m)
}

// batchReply handles the reply to one atomic batch.
type batchReply struct {
	b       *batcher
	batch   []*pendingPublish
	started time.Time
}

func (r *batchReply) Receive(m *nats.Msg) bool {
	defer r.b.finish()
	if m == nil || embedded.IsNoResponders(m) {
		r.retry(m == nil)
		return true
	}
	ack, err := embedded.ParsePubAck(m.Data)
	if err == nil && ack.Count == len(r.batch) {
		r.b.updateEstimate(&r.b.batchCost, time.Since(r.started))
		first := ack.Seq - uint64(ack.Count) + 1
		for i, d := range r.batch {
			d.finish(Ack{Position: job.Position{Seq: first + uint64(i)}}, nil)
		}
		return true
	}
	r.splitRefused(err)
	return true
}

// retry retries all messages of the batch after it got no reply.
func (r *batchReply) retry(maybeStored bool) {
	for _, d := range r.batch {
		d.maybeStored = d.maybeStored || maybeStored
		r.b.p.tryNextLane(d)
	}
}

// splitRefused handles a refused batch. The server refuses the whole batch because
// of one bad message, so halves are sent until that message is found. If the lane
// asks to retry later, all messages of the batch get that error.
func (r *batchReply) splitRefused(err error) {
	var apiErr *embedded.APIError
	if errors.As(err, &apiErr) && apiErr.Class() == embedded.ClassRetry {
		for _, d := range r.batch {
			r.b.p.handleError(d, err)
		}
		return
	}
	if len(r.batch) <= minBatchMsgs {
		now := time.Now()
		for _, d := range r.batch {
			r.b.p.sendToLane(d, 0, now, d)
		}
		return
	}
	half := len(r.batch) / 2
	r.b.mu.Lock()
	r.b.splits = append(r.b.splits, r.batch[half:], r.batch[:half])
	r.b.mu.Unlock()
}
