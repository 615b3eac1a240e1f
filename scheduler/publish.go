package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"yardmaster/job"
	"yardmaster/ledger"
)

// Story names a stream that the outbox is told to.
type Story uint8

// The three streams.
const (
	History Story = iota
	Results
	DeadLetters
)

func (s Story) String() string { return [...]string{"history", "results", "dead letters"}[s] }

// Tale is one message: a run of numbered items.
type Tale struct {
	Queue  string // of a dead letter
	ID     string // unlike any other's; a dead letter's drops a second copy
	First  uint64
	Count  uint64
	Header map[string]string
	Body   []byte
	More   bool // further items wait behind these
}

// Tales tell the world. Append stores a tale if the stream still ends at
// expect, and calls done once without blocking.
type Tales interface {
	LastTold(ctx context.Context, s Story) (seq, number uint64, err error)
	Append(s Story, t Tale, expect uint64, done func(seq uint64, err error))
	Watched(event, queue string) bool // somebody hears such live events
	Live(event, queue string, line []byte)
}

// How history is gathered: by the batch, because one message per entry was the
// dearest part of a job's way. One message is on its way at a time: a sequence
// does not tell who wrote there, and behind another authority's message the
// second of two would leave a hole.
const (
	gatherFor  = 10 * time.Millisecond
	maxLines   = 2000
	maxTale    = 256 << 10 // bytes
	usualLine  = 160       // bytes, of history
	taleWindow = 1
)

// teller publishes one numbering of the outbox.
type teller struct {
	m      *mind
	story  Story
	wake   chan struct{}
	gather func(ctx context.Context, after uint64) (Tale, error) // Count 0: nothing new
	seq    uint64                                                // the stream's last sequence when all on their way have come
	number uint64                                                // last number on its way
	sent   uint64                                                // tales, in this tenure
	acks   chan taleAck
	flying int
	sentAt time.Time
	more   bool // the last tale was full: the next need not gather
	failed bool // the loop was told why nothing is published
}

type taleAck struct {
	first, last, seq uint64
	err              error
}

// publish tells the outbox, each numbering by itself.
func (m *mind) publish(ctx context.Context) error {
	tellers := []*teller{
		{m: m, story: History, gather: m.gatherHistory},
		{m: m, story: Results, gather: m.gatherResults},
		{m: m, story: DeadLetters, gather: m.gatherDead},
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, t := range tellers {
		t.wake = make(chan struct{}, 1)
		group.Go(func() error { return t.run(ctx) })
	}
	live := make(chan struct{}, 1)
	group.Go(func() error { return m.live(ctx, live) })
	group.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-m.applied:
			}
			wake(live)
			for _, t := range tellers {
				wake(t.wake)
			}
		}
	})
	return group.Wait()
}

// wake leaves a note for one who may be asleep.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run finds out where the stream ends and goes on from there, again after
// every failure: another authority may have written, or a message be in doubt.
func (t *teller) run(ctx context.Context) error {
	if !t.m.streamsMade() { // a new yard: nothing can be told before there is where to
		select {
		case <-t.m.streams:
		case <-ctx.Done():
			return nil
		}
	}
	for wait := 20 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, time.Second) {
		err := t.resume(ctx)
		if err == nil {
			began := time.Now()
			if err = t.tell(ctx); time.Since(began) > time.Second {
				wait = 20 * time.Millisecond
			}
		}
		if ctx.Err() == nil {
			t.m.sched.log.Warn("telling was interrupted", "story", t.story.String(), "error", err)
			t.report(err)
			pause(ctx, wait)
		}
	}
	return nil
}

// report tells the loop why nothing is published; nil if all is.
func (t *teller) report(err error) {
	t.failed = err != nil
	t.m.post(func() {
		t.m.untold[t.story] = ""
		if err != nil {
			t.m.untold[t.story] = err.Error()
		}
		t.m.decidable(t.story.String(), err)
	})
}

func (t *teller) resume(ctx context.Context) error {
	seq, number, err := t.m.sched.tales.LastTold(ctx, t.story)
	if err != nil {
		return err
	}
	var last [3]uint64
	t.m.ledger().View(func(l *ledger.Ledger) { last = [3]uint64{l.LastEvent(), l.LastResult(), l.LastDead()} })
	if number > last[t.story] {
		return &DecideError{fmt.Errorf("%s: the stream ends at number %d, the ledger at %d: they are not of one yard, or one of them went back; bring back the data directories that belong together",
			t.story, number, last[t.story])}
	}
	t.seq, t.number = seq, number
	t.acks, t.flying = make(chan taleAck, taleWindow), 0
	if number > 0 {
		t.m.tell(t.story, number, 0, 0)
	}
	return nil
}

// tell sends tales until one fails.
func (t *teller) tell(ctx context.Context) error {
	for {
		for t.flying < taleWindow {
			if wait := gatherFor - time.Since(t.sentAt); wait > 0 && !t.more {
				if t.flying > 0 {
					break
				}
				pause(ctx, wait)
			}
			tale, err := t.gather(ctx, t.number)
			if err != nil {
				return err
			}
			if tale.Count == 0 {
				break
			}
			if err := t.follows(tale.First); err != nil {
				return err
			}
			t.send(tale)
		}
		if t.failed && t.flying == 0 {
			t.report(nil) // all is told
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.wake:
		case a := <-t.acks:
			t.flying--
			if a.err != nil {
				return a.err
			}
			t.m.tell(t.story, a.last, a.first, a.seq)
			t.failed = false
		}
	}
}

// follows refuses to leave a hole: what lies between is no longer here to be
// told, so the stream has lost what it once stored. A stream whose messages
// have all grown old tells no number, only that it was written, and a dead
// letter may have been taken out of its stream.
func (t *teller) follows(first uint64) error {
	if first == t.number+1 || t.number == 0 && t.seq > 0 || t.story == DeadLetters {
		return nil
	}
	return &DecideError{fmt.Errorf("%s: the stream ends at number %d, and %d to %d were published once: it has lost them; bring back the data directory of a member that has them",
		t.story, t.number, t.number+1, first-1)}
}

func (t *teller) send(tale Tale) {
	first, last := tale.First, tale.First+tale.Count-1
	acks := t.acks
	t.sent++
	if tale.ID == "" {
		tale.ID = fmt.Sprintf("%d.%d", t.m.epoch, t.sent)
	}
	t.m.sched.tales.Append(t.story, tale, t.seq, func(seq uint64, err error) {
		acks <- taleAck{first, last, seq, err}
	})
	t.seq++
	t.number = last
	t.flying++
	t.sentAt, t.more = time.Now(), tale.More
}

// tell records in the ledger, with some later entry, that everything up to a
// number is published.
func (m *mind) tell(s Story, number, first, seq uint64) {
	m.post(func() {
		m.untold[s] = ""
		e := &m.entry
		if e.told == nil {
			e.told, e.toldAt = new(ledger.Told), time.Now()
		}
		switch s {
		case History:
			e.told.Events = max(e.told.Events, number)
		case Results:
			e.told.Results = max(e.told.Results, number)
			if seq > 0 {
				e.told.Messages = append(e.told.Messages, ledger.ResultMessage{First: first, Seq: seq})
			}
		case DeadLetters:
			e.told.Dead = max(e.told.Dead, number)
		}
	})
}

// gatherHistory makes one message of the events after a number.
func (m *mind) gatherHistory(_ context.Context, after uint64) (Tale, error) {
	type told struct {
		number uint64
		at     time.Time
		event  *ledger.Event // never changed once it is in the outbox
	}
	var events []told
	var lanes []ledger.LaneCursor
	m.ledger().View(func(l *ledger.Ledger) {
		if waiting := l.LastEvent() - min(after, l.LastEvent()); waiting > 0 {
			events = make([]told, 0, min(waiting, maxLines+1))
		}
		l.EventsAfter(after, func(number uint64, at time.Time, e *ledger.Event) bool {
			events = append(events, told{number, at, e})
			return len(events) <= maxLines
		})
		lanes = l.Lanes()
	})
	if len(events) == 0 {
		return Tale{}, nil
	}
	t := Tale{First: events[0].number, Header: map[string]string{"Yard-Lanes": positions(lanes)}}
	t.Body = make([]byte, 0, min(maxTale, usualLine*len(events)))
	for _, e := range events {
		t.Body = e.event.AppendLine(t.Body, e.number, e.at)
		t.Count++
		if e.event.N > 0 && e.event.Kind == ledger.DispatchNotified {
			continue // whose queue the next line names: readers have both in one message
		}
		if t.More = t.Count >= maxLines || len(t.Body) >= maxTale-512; t.More {
			break
		}
	}
	return t, nil
}

func positions(lanes []ledger.LaneCursor) string {
	var b strings.Builder
	for i, c := range lanes {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d@%d", i, c.Cursor)
	}
	return b.String()
}

// ResultLine is one line of the result stream. Msgpack tells the encoding of
// a result that lies in a blob.
type ResultLine struct {
	ID         job.ID          `json:"id"`
	RequestID  string          `json:"request_id"`
	Queue      string          `json:"queue"`
	Number     uint64          `json:"seq"`
	Result     json.RawMessage `json:"result,omitempty"`
	Packed     []byte          `json:"result_msgpack,omitempty"`
	Broken     []byte          `json:"result_bytes,omitempty"` // what claims to be JSON and is not
	Blob       *job.Blob       `json:"blob,omitempty"`
	BlobPacked bool            `json:"blob_is_msgpack,omitempty"`
}

// Value is the result, without its blob.
func (r *ResultLine) Value() job.Value {
	if r.Packed != nil || r.BlobPacked {
		return job.Value{Msgpack: true, Data: r.Packed}
	}
	return job.Value{Data: r.Result}
}

func (m *mind) gatherResults(_ context.Context, after uint64) (Tale, error) {
	var items []ledger.ResultItem
	m.ledger().View(func(l *ledger.Ledger) { items = l.ResultsAfter(after) })
	var t Tale
	for i := range items {
		r := &items[i]
		line := ResultLine{
			ID: r.Job, RequestID: job.RequestID(r.Job, r.N), Queue: r.Queue, Number: r.Number,
			Blob: r.Blob, BlobPacked: r.Blob != nil && r.Value.Msgpack,
		}
		switch data := r.Value.Data; {
		case r.Value.Msgpack:
			line.Packed = data
		case len(data) == 0 || json.Valid(data):
			line.Result = data
		default:
			line.Broken = data
		}
		text, err := json.Marshal(line)
		if err != nil {
			return Tale{}, fmt.Errorf("result of job %s: %w", line.ID, err)
		}
		if t.Count == 0 {
			t.First = r.Number
		}
		t.Body = append(append(t.Body, text...), '\n')
		t.Count++
		if t.More = t.Count == maxLines || len(t.Body) > maxTale; t.More {
			break
		}
	}
	return t, nil
}

// DeadLetter is the message of a dead letter.
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

func (m *mind) gatherDead(ctx context.Context, after uint64) (Tale, error) {
	var items []ledger.DeadItem
	m.ledger().View(func(l *ledger.Ledger) { items = l.DeadAfter(after) })
	if len(items) == 0 {
		return Tale{}, nil
	}
	d := &items[0]
	letter := DeadLetter{
		ID: d.Job.String(), Queue: d.Queue, Function: d.Function, Reason: d.Reason, Error: readable(d.Fault),
		Attempts: d.Attempts, Accepted: d.Accepted, Failed: d.At, Lane: d.Position.Lane, Seq: d.Position.Seq,
	}
	body, err := m.sched.lanes.Load(ctx, d.Position, d.Job)
	switch {
	case err != nil && !errors.Is(err, ErrRecordGone) && !m.lost(d.Position): // a lane that is lost holds up no other's letters
		return Tale{}, fmt.Errorf("body of dead job %s: %w", letter.ID, err)
	case json.Valid(body):
		letter.Job = body
	default:
		letter.Record = body
	}
	text, err := json.Marshal(letter)
	if err != nil {
		return Tale{}, fmt.Errorf("dead letter of job %s: %w", letter.ID, err)
	}
	return Tale{
		Queue: d.Queue, ID: fmt.Sprintf("dead/%s", job.RequestID(d.Job, d.N)), First: d.Number, Count: 1, Body: text, More: len(items) > 1,
	}, nil
}

// readable gives a fault that can be written as JSON, whatever its details are.
func readable(f *job.Fault) *job.Fault {
	if f == nil || len(f.Details) == 0 || json.Valid(f.Details) {
		return f
	}
	quoted := *f
	quoted.Details, _ = json.Marshal(string(f.Details))
	return &quoted
}

// ErrRecordGone says that a record is no longer in its lane.
var ErrRecordGone = errors.New("the record is no longer in its lane")

// live publishes single events on core NATS while somebody listens.
func (m *mind) live(ctx context.Context, wake <-chan struct{}) error {
	type line struct {
		event, queue string
		text         []byte
	}
	var after uint64
	m.ledger().View(func(l *ledger.Ledger) { after = l.LastEvent() })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
		watched := map[[2]string]bool{}
		var lines []line
		m.ledger().View(func(l *ledger.Ledger) {
			l.EventsAfter(after, func(number uint64, at time.Time, e *ledger.Event) bool {
				k := [2]string{e.Kind.Label(), e.Queue()}
				hears, asked := watched[k]
				if !asked {
					hears = m.sched.tales.Watched(k[0], k[1])
					watched[k] = hears
				}
				if hears {
					lines = append(lines, line{k[0], k[1], e.AppendLine(nil, number, at)})
				}
				return true
			})
			after = l.LastEvent()
		})
		for _, l := range lines {
			m.sched.tales.Live(l.event, l.queue, l.text)
		}
	}
}
