package lanes

import (
	"cmp"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
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
	maxRefused       = 4 // batches refused in a row, after which they are sent message by message
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
	refused    int           // batches refused since the last one that was stored
	singleCost time.Duration // measured cost per message of a run sent message by message
	batchCost  time.Duration // measured cost of a batch; 0: none was sent yet
}

// add queues a job and sends it at once if nothing is in flight.
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
	run := b.nextRun()
	b.inFlight = len(run) > 0
	b.mu.Unlock()
	switch {
	case len(run) == 0:
	case b.preferSingle(len(run)):
		b.sendSingly(run)
	default:
		b.sendBatch(run)
	}
}

// nextRun removes the next run from the queue. It stays within the size limits and
// contains no key twice, because the server would refuse the whole batch. The caller
// holds b.mu.
func (b *batcher) nextRun() []*pendingPublish {
	if last := len(b.splits) - 1; last >= 0 {
		run := b.splits[last]
		b.splits = b.splits[:last]
		return run
	}
	count, size := 0, 0
	keys := make(map[string]bool, min(len(b.queue), maxBatchMsgs))
	for _, d := range b.queue {
		size += len(d.body)
		full := count == maxBatchMsgs || count > 0 && size > maxBatchBytes
		if full || d.key != "" && keys[d.key] {
			break
		}
		keys[d.key] = true
		count++
	}
	run := b.queue[:count:count]
	b.queue = b.queue[count:]
	if len(b.queue) == 0 {
		b.queue = nil // frees its memory
	}
	return run
}

// sendSingly sends the jobs of a run message by message, each with its own reply. The
// run ends when all jobs have their reply, or could not be sent.
func (b *batcher) sendSingly(jobs []*pendingPublish) {
	now := time.Now()
	run := &singleRun{b: b, size: len(jobs), started: now}
	run.remaining.Store(int64(len(jobs)))
	for _, d := range jobs {
		if !b.p.sendToLane(d, 0, now, &singleReply{run, d}) { // then no reply calls done
			run.done()
		}
	}
}

// sendBatch sends the jobs of a run as one atomic batch, whose last message commits it
// and gets the only reply. If sending fails it ends the run and finishes all jobs with
// the error, because the server discards a batch without its commit.
func (b *batcher) sendBatch(jobs []*pendingPublish) {
	now := time.Now()
	inbox := b.p.local.Ingest
	reply, token := inbox.Expect(&batchReply{b: b, batch: jobs, started: now}, now.Add(b.p.state.timeout(0)), false)
	id := rand.Text()
	for i, d := range jobs {
		m := d.msg(0)
		m.Header[subjects.HeaderBatchID] = []string{id}
		m.Header[subjects.HeaderBatchSeq] = []string{strconv.Itoa(i + 1)}
		if i == len(jobs)-1 {
			m.Header[subjects.HeaderCommit] = []string{"1"}
			m.Reply = reply
		}
		err := inbox.Conn.PublishMsg(m)
		if err == nil {
			continue
		}
		if inbox.Cancel(token) { // else batchReply has handled the reply, and has ended the run
			for _, d := range jobs {
				d.finish(Ack{}, embedded.PublishError(err))
			}
			b.finish()
		}
		return
	}
}

// preferSingle reports whether n messages are cheaper to send one by one.
func (b *batcher) preferSingle(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return n <= minBatchMsgs || time.Duration(n)*b.singleCost < cmp.Or(b.batchCost, defaultBatchCost)
}

// updateEstimate moves *estimate by an eighth of its distance to measured. The first
// measurement becomes the estimate.
func (b *batcher) updateEstimate(estimate *time.Duration, measured time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if *estimate == 0 {
		*estimate = measured
		return
	}
	*estimate += (measured - *estimate) / 8
}

// countRefused counts a refused batch, or a stored one, and returns the number of
// batches that were refused since the last stored one.
func (b *batcher) countRefused(refused bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused++
	if !refused {
		b.refused = 0
	}
	return b.refused
}

// finish ends the run in flight and starts the next one.
func (b *batcher) finish() {
	b.mu.Lock()
	b.inFlight = false
	b.mu.Unlock()
	b.flush()
}

// drain empties the queue and returns the jobs that were in it.
func (b *batcher) drain() []*pendingPublish {
	b.mu.Lock()
	defer b.mu.Unlock()
	jobs := append(b.queue, slices.Concat(b.splits...)...)
	b.queue, b.splits = nil, nil
	return jobs
}

// singleRun is a run that is sent message by message. It ends with the last reply.
type singleRun struct {
	b         *batcher
	size      int // messages
	started   time.Time
	remaining atomic.Int64 // messages without a reply
}

// done counts a message as answered. After the last one it starts the next run.
func (r *singleRun) done() {
	if r.remaining.Add(-1) == 0 {
		r.b.updateEstimate(&r.b.singleCost, time.Since(r.started)/time.Duration(r.size))
		r.b.finish()
	}
}

// singleReply handles the reply to one message of a singleRun.
type singleReply struct {
	run *singleRun
	d   *pendingPublish
}

// Receive implements [embedded.ReplyHandler].
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

// Receive implements [embedded.ReplyHandler]. It finishes or retries all jobs of the
// batch and starts the next run.
func (r *batchReply) Receive(m *nats.Msg) bool {
	defer r.b.finish()
	if m == nil || embedded.IsNoResponders(m) {
		if m == nil {
			r.b.p.noteLate(0, r.started)
		}
		for _, d := range r.batch {
			d.maybeStored = d.maybeStored || m == nil
			r.b.p.tryNextLane(d)
		}
		return true
	}
	ack, err := embedded.ParsePubAck(m.Data)
	if err != nil || ack.Count != len(r.batch) {
		r.splitRefused(err)
		return true
	}
	r.b.p.state.noteAnswer(0, time.Since(r.started))
	r.b.updateEstimate(&r.b.batchCost, time.Since(r.started))
	r.b.countRefused(false)
	first := ack.Seq - uint64(ack.Count) + 1
	for i, d := range r.batch {
		d.stored(Ack{Position: job.Position{Seq: first + uint64(i)}})
	}
	return true
}

// splitRefused handles a batch that the lane refused with err, or acknowledged with
// the wrong number of messages, for which err is nil. The server refuses the whole
// batch because of one bad message, so halves are sent until that message is found. If
// several batches in a row are refused, many messages are bad, most likely duplicates,
// and the batch is sent message by message: to find each of them with batches would
// take longer than the publishers wait. If the lane asks to retry later, all jobs of
// the batch get that error.
func (r *batchReply) splitRefused(err error) {
	apiErr, refused := errors.AsType[*embedded.APIError](err)
	if refused && apiErr.Class() == embedded.ClassRetry {
		for _, d := range r.batch {
			r.b.p.handleError(d, err)
		}
		return
	}
	if refused := r.b.countRefused(true); refused >= maxRefused || len(r.batch) <= minBatchMsgs {
		now := time.Now()
		for _, d := range r.batch {
			r.b.p.sendToLane(d, 0, now, d)
		}
		return
	}
	half := len(r.batch) / 2 // of the splits the last one is sent first
	r.b.mu.Lock()
	r.b.splits = append(r.b.splits, r.batch[half:], r.batch[:half])
	r.b.mu.Unlock()
}
