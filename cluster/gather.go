package cluster

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"yardmaster/job"

	"github.com/nats-io/nats.go"
)

// A lane without replicas makes every lone message durable by itself, some
// thousand a second at best. So a node that runs alone gathers: while one turn
// is on its way everything that comes waits for the next. A turn goes either
// message by message or as JetStream's atomic batch, which is made durable
// once but has to open and remove a store of its own first: some ten times the
// cost of a lone message. Which is cheaper depends on the disk, so the gatherer
// measures both.
const (
	maxBatch      = 1000
	maxBatchBytes = 4 << 20
	smallestBatch = 8 // up to that size everything goes one by one
	typicalBatch  = 8 * time.Millisecond
)

type gatherer struct {
	p *publisher

	mu      sync.Mutex
	waiting []*delivery
	halves  [][]*delivery // of refused batches, before anything that waits
	busy    bool
	lone    time.Duration // what one message of a turn costs, when sent singly
	batch   time.Duration // what a batch costs; 0: none was sent yet
}

func (g *gatherer) add(d *delivery) {
	g.mu.Lock()
	g.waiting = append(g.waiting, d)
	g.mu.Unlock()
	g.kick()
}

// kick sends what waits unless a batch is on its way.
func (g *gatherer) kick() {
	g.mu.Lock()
	if g.busy {
		g.mu.Unlock()
		return
	}
	batch := g.take()
	g.busy = len(batch) > 0
	g.mu.Unlock()
	if len(batch) > 0 {
		g.send(batch)
	}
}

// take cuts the next batch: within the limits, and no key twice, which would
// make the server refuse the whole.
func (g *gatherer) take() []*delivery {
	if n := len(g.halves); n > 0 {
		batch := g.halves[n-1]
		g.halves = g.halves[:n-1]
		return batch
	}
	n, size := 0, 0
	keys := make(map[string]struct{}, min(len(g.waiting), maxBatch))
	for _, d := range g.waiting {
		_, twice := keys[d.key]
		size += len(d.body)
		if n == maxBatch || n > 0 && size > maxBatchBytes || twice && d.key != "" {
			break
		}
		keys[d.key] = struct{}{}
		n++
	}
	batch := g.waiting[:n:n]
	g.waiting = g.waiting[n:]
	if len(g.waiting) == 0 {
		g.waiting = nil
	}
	return batch
}

func (g *gatherer) send(batch []*delivery) {
	now := time.Now()
	if g.singly(len(batch)) {
		turn := &burst{g: g, size: len(batch), left: len(batch), began: now}
		for _, d := range batch {
			if !g.p.send(d, 0, now, &single{turn, d}) {
				turn.landed()
			}
		}
		return
	}
	sending := &gathered{g: g, batch: batch, began: now}
	in := g.p.c.ingest
	reply, token := in.expect(sending, now.Add(laneAnswer), false)
	id := randomHex(12)
	for i, d := range batch {
		m := d.message(0)
		m.Header[headerBatchID] = []string{id}
		m.Header[headerBatchSeq] = []string{strconv.Itoa(i + 1)}
		if i == len(batch)-1 {
			m.Header[headerCommit] = []string{"1"}
			m.Reply = reply
		}
		if err := in.nc.PublishMsg(m); err != nil {
			// What was sent of the batch is nothing without its commit.
			if in.forget(token) {
				for _, d := range batch {
					d.end(Ack{}, sendError(err))
				}
				g.pass()
			}
			return
		}
	}
}

// singly tells whether n messages are cheaper one by one.
func (g *gatherer) singly(n int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n <= smallestBatch {
		return true
	}
	batch := g.batch
	if batch == 0 {
		batch = typicalBatch
	}
	return time.Duration(n)*g.lone < batch
}

// learn moves an estimate towards what was measured.
func (g *gatherer) learn(estimate *time.Duration, measured time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if *estimate == 0 {
		*estimate = measured
		return
	}
	*estimate += (measured - *estimate) / 8
}

// pass ends a turn and begins the next.
func (g *gatherer) pass() {
	g.mu.Lock()
	g.busy = false
	g.mu.Unlock()
	g.kick()
}

func (g *gatherer) drop() []*delivery {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.waiting
	for _, half := range g.halves {
		all = append(all, half...)
	}
	g.waiting, g.halves = nil, nil
	return all
}

// burst is a turn of single messages. It lasts until the last has its answer.
type burst struct {
	g     *gatherer
	size  int
	began time.Time

	mu   sync.Mutex
	left int
}

func (b *burst) landed() {
	b.mu.Lock()
	b.left--
	last := b.left == 0
	b.mu.Unlock()
	if last {
		b.g.learn(&b.g.lone, time.Since(b.began)/time.Duration(b.size))
		b.g.pass()
	}
}

type single struct {
	turn *burst
	d    *delivery
}

func (s *single) heard(m *nats.Msg) bool {
	defer s.turn.landed()
	return s.d.heard(m)
}

// gathered is one batch on its way.
type gathered struct {
	g     *gatherer
	batch []*delivery
	began time.Time
}

func (b *gathered) heard(m *nats.Msg) bool {
	defer b.g.pass()
	if m == nil || isNoResponders(m) {
		b.failed(m == nil)
		return true
	}
	ack, err := parsePubAck(m.Data)
	if err == nil && ack.count == len(b.batch) {
		b.g.learn(&b.g.batch, time.Since(b.began))
		first := ack.seq - uint64(ack.count) + 1
		for i, d := range b.batch {
			d.end(Ack{Position: job.Position{Seq: first + uint64(i)}}, nil)
		}
		return true
	}
	b.split(err)
	return true
}

func (b *gathered) failed(unsure bool) {
	for _, d := range b.batch {
		d.unsure = d.unsure || unsure
		b.g.p.next(d)
	}
}

// split answers a refused batch. One bad message spoils all, so halves are
// tried until it stands alone; "later" is everybody's answer at once.
func (b *gathered) split(err error) {
	var refusal *apiError
	if errors.As(err, &refusal) && refusal.kind() == refusalLater {
		for _, d := range b.batch {
			b.g.p.refused(d, err)
		}
		return
	}
	if len(b.batch) <= smallestBatch {
		now := time.Now()
		for _, d := range b.batch {
			b.g.p.send(d, 0, now, d)
		}
		return
	}
	half := len(b.batch) / 2
	b.g.mu.Lock()
	b.g.halves = append(b.g.halves, b.batch[half:], b.batch[:half])
	b.g.mu.Unlock()
}
