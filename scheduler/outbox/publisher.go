package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Parameters of publishing. Items are published in batches, because one message per
// entry was the most expensive part of running a job. Only one batch of history or results
// is in flight: a sequence does not show which authority has written there, so a second
// batch could be stored after another authority's message and leave a gap.
//
// Dead letters are messages of their own, the same from each authority, so many can be in
// flight. One by one they would fall behind the failures when the stream is slow, and fill
// the lanes, which keep the records of letters that are not published.
const (
	batchInterval   = 10 * time.Millisecond // minimum time between two batches that are not full
	historyInterval = 50 * time.Millisecond // the same of history, for which no caller waits
	maxLines        = 2000                  // results of a batch
	maxEvents       = 8000                  // events of a batch
	maxBatchSize    = 256 << 10             // bytes of a batch; its last line may exceed it
	batchWindow     = 1
	letterWindow    = 64
)

// publisher publishes one stream of the outbox.
type publisher struct {
	outbox          *Outbox
	epoch           uint64 // of the tenure
	stream          Stream
	wake            chan struct{}
	next            func(ctx context.Context, after uint64) ([]Batch, error) // returns the items after a number; nil: none
	window          int                                                      // most batches in flight
	interval        time.Duration                                            // minimum time between two batches that are not full
	ready           []Batch                                                  // to be sent next
	seq             uint64                                                   // the stream's last sequence, once the batches in flight are stored
	number          uint64                                                   // number of the last item sent
	sentCount       uint64                                                   // batches sent in this tenure
	acks            chan batchAck
	batchesInFlight int
	sentAt          time.Time // when the last batch was sent
	more            bool      // the last batch was full: the next one need not wait
	failed          bool      // the last call of setProblem was with an error
}

// MismatchError reports that a stream and the ledger do not belong together: the stream
// has items that the ledger never had, or lacks items that the ledger has dropped. An
// operator must bring back the data directories that match.
type MismatchError struct{ reason string }

func (e *MismatchError) Error() string { return e.reason }

// batchAck is the result of an Append of the items first to last.
type batchAck struct {
	first, last, seq uint64
	err              error
}

// run publishes from the stream's end on until ctx ends. After each failure it
// determines the end again: another authority may have written to the stream, and
// the last batch may or may not have been stored.
func (p *publisher) run(ctx context.Context) error {
	p.outbox.cfg.AwaitStreams(ctx)
	for wait := 20 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, time.Second) {
		err := p.resume(ctx)
		if err == nil {
			began := time.Now()
			err = p.publish(ctx)
			if time.Since(began) > time.Second { // it worked for a while: begin again with a short wait
				wait = 20 * time.Millisecond
			}
		}
		if ctx.Err() == nil {
			p.outbox.cfg.Log.Warn("outbox publisher interrupted, retrying", "stream", p.stream.String(), "err", err)
			p.setProblem(err)
			backoff.Sleep(ctx, wait)
		}
	}
	return nil
}

// setProblem reports err as the reason why the stream is not published, or that it is
// published again if err is nil.
func (p *publisher) setProblem(err error) {
	p.failed = err != nil
	p.outbox.cfg.Post(func() { p.outbox.cfg.SetProblem(p.stream, err) })
}

// resume reads where the stream ends, so that publish continues there. It returns a
// [*MismatchError] if the stream is ahead of the ledger.
func (p *publisher) resume(ctx context.Context) error {
	seq, number, err := p.outbox.cfg.Streams.LastPublished(ctx, p.stream)
	if err != nil {
		return err
	}
	var last [3]uint64
	p.outbox.cfg.Ledger.View(func(l *ledger.Ledger) { last = [3]uint64{l.LastEvent(), l.LastResult(), l.LastDeadLetter()} })
	if number > last[p.stream] {
		return &MismatchError{fmt.Sprintf("%s: the stream ends at number %d, the ledger at %d: they are not of one yard, or one of them went back; bring back the data directories that belong together",
			p.stream, number, last[p.stream])}
	}
	p.seq, p.number = seq, number
	p.acks, p.batchesInFlight, p.ready = make(chan batchAck, p.window), 0, nil
	if number > 0 {
		p.outbox.markPublished(p.stream, number, 0, 0)
	}
	return nil
}

// publish sends batches, with at most the window of them in flight, until one fails or
// ctx ends. After a batch that is not full it waits for the interval, to collect items.
func (p *publisher) publish(ctx context.Context) error {
	for {
		for p.batchesInFlight < p.window {
			if len(p.ready) == 0 {
				if wait := p.interval - time.Since(p.sentAt); wait > 0 && !p.more {
					if p.batchesInFlight > 0 {
						break
					}
					backoff.Sleep(ctx, wait)
				}
				ready, err := p.next(ctx, p.number)
				if err != nil {
					return err
				}
				if len(ready) == 0 {
					break
				}
				p.ready = ready
			}
			if err := p.checkGap(p.ready[0].First); err != nil {
				return err
			}
			p.send(p.ready[0])
			p.ready = p.ready[1:]
		}
		if p.failed && p.batchesInFlight == 0 {
			p.setProblem(nil) // everything is published
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case a := <-p.acks:
			p.batchesInFlight--
			if a.err != nil {
				return a.err
			}
			p.outbox.markPublished(p.stream, a.last, a.first, a.seq)
			p.failed = false
		}
	}
}

// checkGap returns a [*MismatchError] if first, the next item of the outbox, does not
// follow the stream's last one: the outbox drops only published items, so the
// stream has lost some. It cannot check a stream whose messages have all expired,
// which has a sequence and no number, nor that of the dead letters, which can be
// removed one by one.
func (p *publisher) checkGap(first uint64) error {
	if first == p.number+1 || p.number == 0 && p.seq > 0 || p.stream == DeadLetters {
		return nil
	}
	return &MismatchError{fmt.Sprintf("%s: the stream ends at number %d, and %d to %d were published once: it has lost them; bring back the data directory of a member that has them",
		p.stream, p.number, p.number+1, first-1)}
}

// send appends a batch to the stream. Its acknowledgement goes to p.acks.
func (p *publisher) send(batch Batch) {
	first, last := batch.First, batch.First+batch.Count-1
	acks := p.acks
	p.sentCount++
	if batch.ID == "" {
		batch.ID = fmt.Sprintf("%d.%d", p.epoch, p.sentCount)
	}
	p.outbox.cfg.Streams.Append(p.stream, batch, p.seq, func(seq uint64, err error) {
		acks <- batchAck{first, last, seq, err}
	})
	p.seq++
	p.number = last
	p.batchesInFlight++
	p.sentAt, p.more = time.Now(), batch.More
}
