package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

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
	tenure   *tenure
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

// publish runs the publishers of the outbox's streams, which do not wait for each
// other, until ctx ends.
func (t *tenure) publish(ctx context.Context) error {
	publishers := []*publisher{
		{tenure: t, stream: History, next: t.nextHistory},
		{tenure: t, stream: Results, next: t.nextResults},
		{tenure: t, stream: DeadLetters, next: t.nextDeadLetter},
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range publishers {
		p.wake = make(chan struct{}, 1)
		group.Go(func() error { return p.run(ctx) })
	}
	live := make(chan struct{}, 1)
	group.Go(func() error { return t.publishLive(ctx, live) })
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-t.applied:
			}
			signal(live)
			for _, p := range publishers {
				signal(p.wake)
			}
		}
	})
	return group.Wait()
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
	if !p.tenure.streamsCreated() { // a new cluster: wait for its streams
		select {
		case <-p.tenure.streamsReady:
		case <-ctx.Done():
			return nil
		}
	}
	for wait := 20 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, time.Second) {
		err := p.resume(ctx)
		if err == nil {
			began := time.Now()
			if err = p.publish(ctx); time.Since(began) > time.Second {
				wait = 20 * time.Millisecond
			}
		}
		if ctx.Err() == nil {
			p.tenure.sched.log.Warn("outbox publisher interrupted, retrying", "stream", p.stream.String(), "err", err)
			p.setProblem(err)
			sleep(ctx, wait)
		}
	}
	return nil
}

// setProblem posts to the loop why nothing is published; nil clears the problem.
func (p *publisher) setProblem(err error) {
	p.failed = err != nil
	p.tenure.post(func() {
		p.tenure.unpublished[p.stream] = ""
		if err != nil {
			p.tenure.unpublished[p.stream] = err.Error()
		}
		p.tenure.setNeedsOperator(p.stream.String(), err)
	})
}

// resume determines where the stream ends. It returns an [OperatorError] if the stream
// is ahead of the ledger.
func (p *publisher) resume(ctx context.Context) error {
	seq, number, err := p.tenure.sched.streams.LastPublished(ctx, p.stream)
	if err != nil {
		return err
	}
	var last [3]uint64
	p.tenure.ledger().View(func(l *ledger.Ledger) { last = [3]uint64{l.LastEvent(), l.LastResult(), l.LastDeadLetter()} })
	if number > last[p.stream] {
		return &OperatorError{fmt.Errorf("%s: the stream ends at number %d, the ledger at %d: they are not of one yard, or one of them went back; bring back the data directories that belong together",
			p.stream, number, last[p.stream])}
	}
	p.seq, p.number = seq, number
	p.acks, p.inFlight = make(chan batchAck, batchWindow), 0
	if number > 0 {
		p.tenure.markPublished(p.stream, number, 0, 0)
	}
	return nil
}

// publish sends batches until one fails.
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
			p.tenure.markPublished(p.stream, a.last, a.first, a.seq)
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
		batch.ID = fmt.Sprintf("%d.%d", p.tenure.epoch, p.sent)
	}
	p.tenure.sched.streams.Append(p.stream, batch, p.seq, func(seq uint64, err error) {
		acks <- batchAck{first, last, seq, err}
	})
	p.seq++
	p.number = last
	p.inFlight++
	p.sentAt, p.more = time.Now(), batch.More
}

// markPublished adds to a later entry that the items of a stream up to number are
// published. For results, first and seq are the first item and the sequence of
// their message; a seq of 0 means unknown.
func (t *tenure) markPublished(s Stream, number, first, seq uint64) {
	t.post(func() {
		t.unpublished[s] = ""
		e := &t.entry
		if e.published == nil {
			e.published, e.publishedAt = new(ledger.MarkPublished), time.Now()
		}
		switch s {
		case History:
			e.published.Events = max(e.published.Events, number)
		case Results:
			e.published.Results = max(e.published.Results, number)
			if seq > 0 {
				e.published.Messages = append(e.published.Messages, ledger.ResultMessage{First: first, Seq: seq})
			}
		case DeadLetters:
			e.published.DeadLetters = max(e.published.DeadLetters, number)
		}
	})
}

// nextHistory returns a batch of the events after a number.
func (t *tenure) nextHistory(_ context.Context, after uint64) (Batch, error) {
	type numbered struct {
		number uint64
		at     time.Time
		event  *ledger.Event // never changed once it is in the outbox
	}
	var events []numbered
	var lanes []ledger.LaneCursor
	t.ledger().View(func(l *ledger.Ledger) {
		if waiting := l.LastEvent() - min(after, l.LastEvent()); waiting > 0 {
			events = make([]numbered, 0, min(waiting, maxLines+1))
		}
		l.EventsAfter(after, func(number uint64, at time.Time, e *ledger.Event) bool {
			events = append(events, numbered{number, at, e})
			return len(events) <= maxLines
		})
		lanes = l.Lanes()
	})
	if len(events) == 0 {
		return Batch{}, nil
	}
	batch := Batch{First: events[0].number, Header: map[string]string{"Yard-Lanes": laneCursors(lanes)}}
	batch.Body = make([]byte, 0, min(maxBatchSize, typicalLine*len(events)))
	for _, e := range events {
		batch.Body = e.event.AppendLine(batch.Body, e.number, e.at)
		batch.Count++
		if e.event.N > 0 && e.event.Kind == ledger.DispatchNotified {
			continue // the next line names its queue: both must be in one message
		}
		if batch.More = batch.Count >= maxLines || len(batch.Body) >= maxBatchSize-512; batch.More {
			break
		}
	}
	return batch, nil
}

// laneCursors returns the cursors of lanes as text, for example "0@17,1@0".
func laneCursors(lanes []ledger.LaneCursor) string {
	var b strings.Builder
	for i, c := range lanes {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d@%d", i, c.Cursor)
	}
	return b.String()
}

// ResultLine is one line of the result stream. BlobIsMsgpack is the encoding of a
// result that is stored in a blob.
type ResultLine struct {
	ID            job.ID          `json:"id"`
	RequestID     string          `json:"request_id"`
	Queue         string          `json:"queue"`
	Number        uint64          `json:"seq"`
	Result        json.RawMessage `json:"result,omitempty"`
	ResultMsgpack []byte          `json:"result_msgpack,omitempty"`
	ResultBytes   []byte          `json:"result_bytes,omitempty"` // a result that should be JSON and is not valid
	Blob          *job.Blob       `json:"blob,omitempty"`
	BlobIsMsgpack bool            `json:"blob_is_msgpack,omitempty"`
}

// Value returns the result, without its blob.
func (r *ResultLine) Value() job.Value {
	if r.ResultMsgpack != nil || r.BlobIsMsgpack {
		return job.Value{Msgpack: true, Data: r.ResultMsgpack}
	}
	return job.Value{Data: r.Result}
}

// nextResults returns a batch of the results after a number.
func (t *tenure) nextResults(_ context.Context, after uint64) (Batch, error) {
	var items []ledger.ResultItem
	t.ledger().View(func(l *ledger.Ledger) { items = l.ResultsAfter(after) })
	var batch Batch
	for i := range items {
		r := &items[i]
		line := ResultLine{
			ID: r.Job, RequestID: job.RequestID(r.Job, r.N), Queue: r.Queue, Number: r.Number,
			Blob: r.Blob, BlobIsMsgpack: r.Blob != nil && r.Value.Msgpack,
		}
		switch data := r.Value.Data; {
		case r.Value.Msgpack:
			line.ResultMsgpack = data
		case len(data) == 0 || json.Valid(data):
			line.Result = data
		default:
			line.ResultBytes = data
		}
		text, err := json.Marshal(line)
		if err != nil {
			return Batch{}, fmt.Errorf("result of job %s: %w", line.ID, err)
		}
		if batch.Count == 0 {
			batch.First = r.Number
		}
		batch.Body = append(append(batch.Body, text...), '\n')
		batch.Count++
		if batch.More = batch.Count == maxLines || len(batch.Body) > maxBatchSize; batch.More {
			break
		}
	}
	return batch, nil
}

// DeadLetter is the message body of a dead letter.
type DeadLetter struct {
	ID       string          `json:"id"`
	Queue    string          `json:"queue"`
	Function string          `json:"function,omitempty"`
	Reason   string          `json:"reason"`
	Error    *job.Fault      `json:"error,omitempty"`
	Attempts uint32          `json:"attempts"`
	Accepted time.Time       `json:"accepted_at"`
	Failed   time.Time       `json:"failed_at"`
	Lane     uint8           `json:"lane"`
	Seq      uint64          `json:"lane_seq"`
	Job      json.RawMessage `json:"job,omitempty"`    // the record, if it is JSON
	Record   []byte          `json:"record,omitempty"` // the record, if it is not
}

// nextDeadLetter returns a batch of one: the first dead letter after a number, with
// the job's body if it can be read.
func (t *tenure) nextDeadLetter(ctx context.Context, after uint64) (Batch, error) {
	var items []ledger.DeadLetter
	t.ledger().View(func(l *ledger.Ledger) { items = l.DeadLettersAfter(after) })
	if len(items) == 0 {
		return Batch{}, nil
	}
	item := &items[0]
	letter := DeadLetter{
		ID: item.Job.String(), Queue: item.Queue, Function: item.Function, Reason: item.Reason, Error: validFault(item.Fault),
		Attempts: item.Attempts, Accepted: item.Accepted, Failed: item.At, Lane: item.Position.Lane, Seq: item.Position.Seq,
	}
	body, err := t.sched.lanes.Load(ctx, item.Position, item.Job)
	switch {
	case err != nil && !errors.Is(err, ErrRecordGone) && !t.laneLost(item.Position): // a lost lane must not block the dead letters of the others
		return Batch{}, fmt.Errorf("body of dead job %s: %w", letter.ID, err)
	case json.Valid(body):
		letter.Job = body
	default:
		letter.Record = body
	}
	text, err := json.Marshal(letter)
	if err != nil {
		return Batch{}, fmt.Errorf("dead letter of job %s: %w", letter.ID, err)
	}
	return Batch{
		Queue: item.Queue, ID: fmt.Sprintf("dead/%s", job.RequestID(item.Job, item.N)), First: item.Number, Count: 1, Body: text, More: len(items) > 1,
	}, nil
}

// validFault returns f, with its details quoted as a string if they are not valid
// JSON.
func validFault(f *job.Fault) *job.Fault {
	if f == nil || len(f.Details) == 0 || json.Valid(f.Details) {
		return f
	}
	quoted := *f
	quoted.Details, _ = json.Marshal(string(f.Details))
	return &quoted
}

// ErrRecordGone is returned by Lanes.Load if the record is no longer in its lane.
var ErrRecordGone = errors.New("the record is no longer in its lane")

// publishLive publishes events one by one on core NATS, if they have subscribers.
func (t *tenure) publishLive(ctx context.Context, wake <-chan struct{}) error {
	type line struct {
		event, queue string
		text         []byte
	}
	var after uint64
	t.ledger().View(func(l *ledger.Ledger) { after = l.LastEvent() })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
		watched := map[[2]string]bool{}
		var lines []line
		t.ledger().View(func(l *ledger.Ledger) {
			l.EventsAfter(after, func(number uint64, at time.Time, e *ledger.Event) bool {
				k := [2]string{e.Kind.Label(), e.Queue()}
				subscribed, checked := watched[k]
				if !checked {
					subscribed = t.sched.streams.HasSubscribers(k[0], k[1])
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
			t.sched.streams.PublishLive(l.event, l.queue, l.text)
		}
	}
}
