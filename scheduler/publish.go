package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Stream is a stream that the outbox is published to.
type Stream uint8

// The streams of the outbox.
const (
	History Stream = iota
	Results
	DeadLetters
)

// String returns the stream's name in texts: history, results or dead letters.
func (s Stream) String() string { return [...]string{"history", "results", "dead letters"}[s] }

// Batch is one message of a stream: a run of consecutively numbered items.
type Batch struct {
	Queue  string // queue of a dead letter
	ID     string // unique id for deduplication; a dead letter's is the same in each attempt
	First  uint64 // number of the first item
	Count  uint64
	Header map[string]string
	Body   []byte
	More   bool // further items are ready to be published
}

// Streams publishes to the streams of the outbox.
type Streams interface {
	// LastPublished returns the stream's last sequence and the number of its
	// last item; 0 if it has none.
	LastPublished(ctx context.Context, s Stream) (seq, number uint64, err error)
	// Append stores a batch if the stream's last sequence is expect. It does not
	// block; done is called once and must not block.
	Append(s Stream, t Batch, expect uint64, done func(seq uint64, err error))
	// HasSubscribers reports whether live events of a kind and queue have a
	// subscriber.
	HasSubscribers(event, queue string) bool
	PublishLive(event, queue string, line []byte)
}

// Parameters of publishing. Items are published in batches, because one message per
// entry was the most expensive part of running a job. Only one batch is in flight: a
// sequence does not show which authority has written there, so a second batch could
// be stored after another authority's message and leave a gap.
const (
	batchInterval = 10 * time.Millisecond // minimum time between two batches that are not full
	maxLines      = 2000
	maxBatchSize  = 256 << 10 // bytes
	typicalLine   = 160       // bytes of a line of history
	batchWindow   = 1
)

// publisher publishes one stream of the outbox.
type publisher struct {
	loop     *eventLoop
	outbox   *outbox
	stream   Stream
	wake     chan struct{}
	next     func(ctx context.Context, after uint64) (Batch, error) // returns the items after a number; Count 0: none
	seq      uint64                                                 // the stream's last sequence, once the batches in flight are stored
	number   uint64                                                 // number of the last item sent
	sent     uint64                                                 // batches sent in this tenure
	acks     chan batchAck
	inFlight int       // batches
	sentAt   time.Time // when the last batch was sent
	more     bool      // the last batch was full: the next one need not wait
	failed   bool      // setProblem has set an error
}

// batchAck is the result of an Append of the items first to last.
type batchAck struct {
	first, last, seq uint64
	err              error
}

// signal wakes the receiver of c, a channel with a buffer of one. It does not block.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run publishes from the stream's end on until ctx ends. After each failure it
// determines the end again: another authority may have written to the stream, and
// the last batch may or may not have been stored.
func (p *publisher) run(ctx context.Context) error {
	p.outbox.verifier.await(ctx)
	for wait := 20 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, time.Second) {
		err := p.resume(ctx)
		if err == nil {
			began := time.Now()
			if err = p.publish(ctx); time.Since(began) > time.Second {
				wait = 20 * time.Millisecond
			}
		}
		if ctx.Err() == nil {
			p.loop.log.Warn("outbox publisher interrupted, retrying", "stream", p.stream.String(), "err", err)
			p.setProblem(err)
			sleep(ctx, wait)
		}
	}
	return nil
}

// setProblem posts to the loop why nothing is published; nil clears the problem.
func (p *publisher) setProblem(err error) {
	p.failed = err != nil
	p.loop.post(func() {
		p.outbox.unpublished[p.stream] = ""
		if err != nil {
			p.outbox.unpublished[p.stream] = err.Error()
		}
		p.outbox.operator.note(p.stream.String(), err)
	})
}

// resume determines where the stream ends. It returns an [OperatorError] if the stream
// is ahead of the ledger.
func (p *publisher) resume(ctx context.Context) error {
	seq, number, err := p.outbox.streams.LastPublished(ctx, p.stream)
	if err != nil {
		return err
	}
	var last [3]uint64
	p.loop.ledger.View(func(l *ledger.Ledger) { last = [3]uint64{l.LastEvent(), l.LastResult(), l.LastDeadLetter()} })
	if number > last[p.stream] {
		return &OperatorError{fmt.Errorf("%s: the stream ends at number %d, the ledger at %d: they are not of one yard, or one of them went back; bring back the data directories that belong together",
			p.stream, number, last[p.stream])}
	}
	p.seq, p.number = seq, number
	p.acks, p.inFlight = make(chan batchAck, batchWindow), 0
	if number > 0 {
		p.outbox.markPublished(p.stream, number, 0, 0)
	}
	return nil
}

// run sends batches until one fails.
func (p *publisher) publish(ctx context.Context) error {
	for {
		for p.inFlight < batchWindow {
			if wait := batchInterval - time.Since(p.sentAt); wait > 0 && !p.more {
				if p.inFlight > 0 {
					break
				}
				sleep(ctx, wait)
			}
			batch, err := p.next(ctx, p.number)
			if err != nil {
				return err
			}
			if batch.Count == 0 {
				break
			}
			if err := p.checkGap(batch.First); err != nil {
				return err
			}
			p.send(batch)
		}
		if p.failed && p.inFlight == 0 {
			p.setProblem(nil) // everything is published
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case a := <-p.acks:
			p.inFlight--
			if a.err != nil {
				return a.err
			}
			p.outbox.markPublished(p.stream, a.last, a.first, a.seq)
			p.failed = false
		}
	}
}

// checkGap returns an [OperatorError] if first, the next item of the outbox, does not
// follow the stream's last one: the outbox drops only published items, so the
// stream has lost some. It cannot check a stream whose messages have all expired,
// which has a sequence and no number, nor that of the dead letters, which can be
// removed one by one.
func (p *publisher) checkGap(first uint64) error {
	if first == p.number+1 || p.number == 0 && p.seq > 0 || p.stream == DeadLetters {
		return nil
	}
	return &OperatorError{fmt.Errorf("%s: the stream ends at number %d, and %d to %d were published once: it has lost them; bring back the data directory of a member that has them",
		p.stream, p.number, p.number+1, first-1)}
}

// send appends a batch to the stream. Its acknowledgement goes to p.acks.
func (p *publisher) send(batch Batch) {
	first, last := batch.First, batch.First+batch.Count-1
	acks := p.acks
	p.sent++
	if batch.ID == "" {
		batch.ID = fmt.Sprintf("%d.%d", p.loop.epoch, p.sent)
	}
	p.outbox.streams.Append(p.stream, batch, p.seq, func(seq uint64, err error) {
		acks <- batchAck{first, last, seq, err}
	})
	p.seq++
	p.number = last
	p.inFlight++
	p.sentAt, p.more = time.Now(), batch.More
}
