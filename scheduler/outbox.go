package scheduler

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// outbox publishes the streams of the ledger's outbox and has the ledger drop what is
// published. Each stream has a publisher in a goroutine of its own. The fields of the
// second group belong to the loop's goroutine.
type outbox struct {
	loop     *eventLoop
	streams  Streams
	records  Lanes // loads the records of dead letters
	lanes    *lanes
	verifier *streamVerifier
	operator operatorTopics
	applied  chan struct{} // wakes the publishers: an entry was applied

	unpublished [3]string             // by [Stream]: why nothing is published; "": everything is
	published   *ledger.MarkPublished // nil: nothing was published since the last entry
	publishedAt time.Time             // when published was set
}

// run runs the publishers of the outbox's streams, which do not wait for each
// other, until ctx ends.
func (o *outbox) run(ctx context.Context) error {
	publishers := []*publisher{
		{loop: o.loop, outbox: o, stream: History, next: o.nextHistory},
		{loop: o.loop, outbox: o, stream: Results, next: o.nextResults},
		{loop: o.loop, outbox: o, stream: DeadLetters, next: o.nextDeadLetter},
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range publishers {
		p.wake = make(chan struct{}, 1)
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
			signal(live)
			for _, p := range publishers {
				signal(p.wake)
			}
		}
	})
	return group.Wait()
}

// markPublished adds to a later entry that the items of a stream up to number are
// published. For results, first and seq are the first item and the sequence of
// their message; a seq of 0 means unknown.
func (o *outbox) markPublished(s Stream, number, first, seq uint64) {
	o.loop.post(func() {
		o.unpublished[s] = ""
		if o.published == nil {
			o.published, o.publishedAt = new(ledger.MarkPublished), time.Now()
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

// addPublished moves what is published into the entry.
func (o *outbox) addPublished(b *entryBuilder) {
	if o.published != nil {
		b.add(o.published, nil)
		o.published = nil
	}
}

// publishLive publishes events one by one on core NATS, if they have subscribers.
func (o *outbox) publishLive(ctx context.Context, wake <-chan struct{}) error {
	type line struct {
		event, queue string
		text         []byte
	}
	var after uint64
	o.loop.ledger.View(func(l *ledger.Ledger) { after = l.LastEvent() })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
		watched := map[[2]string]bool{}
		var lines []line
		o.loop.ledger.View(func(l *ledger.Ledger) {
			l.EventsAfter(after, func(number uint64, at time.Time, e *ledger.Event) bool {
				k := [2]string{e.Kind.Label(), e.Queue()}
				subscribed, checked := watched[k]
				if !checked {
					subscribed = o.streams.HasSubscribers(k[0], k[1])
					watched[k] = subscribed
				}
				if subscribed {
					lines = append(lines, line{k[0], k[1], e.AppendLine(nil, number, at)})
				}
				return true
			})
			after = l.LastEvent()
		})
		for _, l := range lines {
			o.streams.PublishLive(l.event, l.queue, l.text)
		}
	}
}
