// Package outbox publishes the ledger's outbox to three streams: history, results and
// dead letters. It runs on the authority, for one tenure at a time.
//
// The ledger numbers the items of each stream and keeps them until the command
// [ledger.MarkPublished] removes them. A publisher per stream reads
// the end of its stream, sends the items that follow it in batches, and reports each
// stored batch to the ledger. A batch names the stream's sequence that it expects, so
// two authorities cannot both append, and no item is published twice or left out.
package outbox

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
	"github.com/yardmaster-dev/yardmaster/job"
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

// String returns the stream's name, as logs and errors have it.
func (s Stream) String() string {
	return [...]string{History: "history", Results: "results", DeadLetters: "dead letters"}[s]
}

// Batch is one message of a stream: a run of consecutively numbered items, which are
// events, results or dead letters. [Streams].Append stores it; More is not stored.
type Batch struct {
	Queue     string // of the dead letter's job; "" in the other streams
	BlobOwner job.ID // of the body that the dead letter refers to; zero: it contains the body
	ID        string // the stream drops a second message with it; a dead letter has the same ID in each attempt to publish it
	First     uint64 // number of the first item
	Count     uint64 // number of items
	Header    map[string]string
	Body      []byte
	More      bool // further items are ready, so the next batch need not wait
}

// Streams publishes to the streams of the outbox.
type Streams interface {
	// LastPublished returns the stream's last sequence and the number of its
	// last item; 0 if it has none.
	LastPublished(ctx context.Context, s Stream) (seq, number uint64, err error)
	// Append stores a batch if the stream's last sequence is expect. It does not
	// block; done is called once and must not block.
	Append(s Stream, b Batch, expect uint64, done func(seq uint64, err error))
	// HasSubscribers reports whether live events of a kind and queue have a
	// subscriber.
	HasSubscribers(event, queue string) bool
	// PublishLive publishes one event on core NATS, without storing it.
	PublishLive(event, queue string, line []byte)
}

// Config has what an [Outbox] needs of the scheduler. The scheduler's event loop calls
// all functions passed to Post, one at a time.
type Config struct {
	Ledger interface {
		// View calls its argument with this node's ledger.
		View(func(*ledger.Ledger))
	}
	Streams Streams
	Log     *slog.Logger
	Post    func(func())
	// AwaitStreams blocks until the streams have been created or ctx ends.
	AwaitStreams func(ctx context.Context)
	// LoadBody returns the body of a dead job, or nil if it is lost for good.
	LoadBody func(ctx context.Context, pos job.Position, id job.ID) ([]byte, error)
	// LoadError returns the whole error of a dispatch; the ledger may have only a part of it.
	LoadError func(ctx context.Context, id job.ID, n uint32) (*job.AttemptError, error)
	// SetProblem is called on the event loop with the reason why a stream is not
	// published, or with nil when it is published again.
	SetProblem func(s Stream, err error)
}

// Outbox publishes the streams of the ledger's outbox during one tenure.
type Outbox struct {
	cfg     Config
	applied chan struct{} // wakes Run: an entry was applied

	// They belong to the scheduler's event loop.
	published      *ledger.MarkPublished // nil: nothing was published since TakePublished
	publishedSince time.Time             // when published was set
}

// New returns an outbox. Call [Outbox.Run] to publish.
func New(cfg Config) *Outbox { return &Outbox{cfg: cfg, applied: make(chan struct{}, 1)} }

// Run publishes all streams until ctx ends. A stream that cannot be written does not
// delay the others. The epoch is the tenure's; it makes the ids of batches unique.
func (o *Outbox) Run(ctx context.Context, epoch uint64) error {
	publishers := []*publisher{
		{outbox: o, stream: History, window: batchWindow, interval: historyInterval, next: single(o.nextHistory)},
		{outbox: o, stream: Results, window: batchWindow, interval: batchInterval, next: single(o.nextResults)},
		{outbox: o, stream: DeadLetters, window: letterWindow, interval: batchInterval, next: o.nextDeadLetters},
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range publishers {
		p.epoch, p.wake = epoch, make(chan struct{}, 1)
		group.Go(func() error { return p.run(ctx) })
	}
	live := make(chan struct{}, 1)
	group.Go(func() error { return o.publishLive(ctx, live) })
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-o.applied:
			}
			wakeup.Send(live)
			for _, p := range publishers {
				wakeup.Send(p.wake)
			}
		}
	})
	return group.Wait()
}

// Wake has Run look for new items. Call it after each applied entry.
func (o *Outbox) Wake() { wakeup.Send(o.applied) }

// PublishedSince returns since when a result of TakePublished is ready; the zero time if
// none is. Only the scheduler's event loop may call it.
func (o *Outbox) PublishedSince() time.Time {
	if o.published == nil {
		return time.Time{}
	}
	return o.publishedSince
}

// TakePublished returns, once, a command for the ledger that drops what was published
// since the last call, or nil. Only the scheduler's event loop may call it.
func (o *Outbox) TakePublished() *ledger.MarkPublished {
	c := o.published
	o.published = nil
	return c
}

// markPublished posts to the event loop that the items of a stream up to number are
// published, for TakePublished, and that the stream has no problem. For results, first and
// seq are the first item and the sequence of their message; a seq of 0 means unknown.
func (o *Outbox) markPublished(s Stream, number, first, seq uint64) {
	o.cfg.Post(func() {
		o.cfg.SetProblem(s, nil)
		if o.published == nil {
			o.published, o.publishedSince = new(ledger.MarkPublished), time.Now()
		}
		switch s {
		case History:
			o.published.Events = max(o.published.Events, number)
		case Results:
			o.published.Results = max(o.published.Results, number)
			if seq > 0 {
				o.published.Messages = append(o.published.Messages, ledger.ResultMessage{First: first, Seq: seq})
			}
		case DeadLetters:
			o.published.DeadLetters = max(o.published.DeadLetters, number)
		}
	})
}

// publishLive publishes each event that has subscribers on core NATS, after every
// receive from wake, until ctx ends. It begins with the events of this tenure.
func (o *Outbox) publishLive(ctx context.Context, wake <-chan struct{}) error {
	type topic struct{ event, queue string }
	type line struct {
		topic
		text []byte
	}
	var after uint64
	o.cfg.Ledger.View(func(l *ledger.Ledger) { after = l.LastEvent() })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
		subscribed := map[topic]bool{} // so that each topic is checked once
		var lines []line
		o.cfg.Ledger.View(func(l *ledger.Ledger) {
			l.EventsAfter(after, func(number uint64, at time.Time, e *ledger.Event) bool {
				if !e.IsLive() {
					return true
				}
				t := topic{e.Kind.Label(), e.Queue()}
				if _, checked := subscribed[t]; !checked {
					subscribed[t] = o.cfg.Streams.HasSubscribers(t.event, t.queue)
				}
				if subscribed[t] {
					lines = append(lines, line{t, e.AppendLine(nil, number, at)})
				}
				return true
			})
			after = l.LastEvent()
		})
		for _, l := range lines { // without the ledger's lock
			o.cfg.Streams.PublishLive(l.event, l.queue, l.text)
		}
	}
}
