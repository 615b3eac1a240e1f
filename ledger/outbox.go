package ledger

import (
	"sort"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// MaxOutbox is the size of the outbox, in bytes, at which the authority only
// settles dispatches. It stops ingesting at half of it and placing at three
// quarters.
const MaxOutbox = 64 << 20

// Overhead of outbox items beside their payload, in bytes.
const (
	eventCost      = 80
	extraCost      = 72
	resultCost     = 96
	deadLetterCost = 160
)

// outbox holds events, results and dead letters that are not published yet,
// each numbered without gaps. Its slices only grow at the end and shrink at the
// front, so copies of the ledger share them.
type outbox struct {
	entries   []eventEntry // unpublished events, by log entry
	next      uint64       // number of the last event
	published uint64       // number of the last published event
	current   eventEntry   // the entry being applied

	results    []ResultItem
	nextResult uint64
	messages   []ResultMessage // where published results are in their stream, ascending

	deadLetters    []DeadLetter
	nextDeadLetter uint64

	bytes int
}

// eventEntry holds the events of one log entry.
type eventEntry struct {
	first  uint64 // number of the first event
	index  uint64
	at     int64
	events []Event
	bytes  int
}

// ResultItem is a result that is not published yet.
type ResultItem struct {
	Number uint64
	Job    job.ID
	N      uint32
	Queue  string
	Value  job.Value
	Blob   *job.Blob
}

// DeadLetter is a dead letter that is not published yet.
type DeadLetter struct {
	Number   uint64
	Job      job.ID
	N        uint32
	Queue    string
	Function string
	Position job.Position
	Attempts uint32
	Accepted time.Time
	At       time.Time
	Reason   string
	Fault    *job.Fault
}

// begin starts the events of a log entry.
func (o *outbox) begin(index uint64, at int64, cmds []Command) {
	o.current = eventEntry{first: o.next + 1, index: index, at: at}
	if n := expectedEvents(cmds); n > 0 {
		o.current.events = make([]Event, 0, n)
	}
}

// expectedEvents estimates how many events the commands emit.
func expectedEvents(cmds []Command) int {
	n := 0
	for _, c := range cmds {
		switch c := c.(type) {
		case *Ingest:
			n += len(c.Jobs)
		case *Place:
			n += 2 * len(c.Placements)
		case *Settle:
			n += len(c.Settlements)
		}
	}
	return n
}

func (o *outbox) emit(e Event) {
	o.next++
	o.current.events = append(o.current.events, e)
	o.current.bytes += e.cost()
}

// cost returns the size with which an event is counted, in bytes. Names shared
// with a job's record are not counted.
func (e *Event) cost() int {
	n := eventCost
	switch {
	case e.N == 0:
		n += len(e.A) + len(e.B)
	case e.Kind == DispatchFailed:
		n += len(e.A)
	}
	if x := e.Extra; x != nil {
		n += len(x.Request) + len(x.C) + len(x.Metadata) + extraCost
		if x.Cursor != nil {
			n += len(*x.Cursor)
		}
	}
	return n
}

// seal ends the events of a log entry.
func (o *outbox) seal() {
	if len(o.current.events) > 0 {
		o.entries = append(o.entries, o.current)
		o.bytes += o.current.bytes
	}
	o.current = eventEntry{}
}

// addResult numbers a result and adds it.
func (o *outbox) addResult(r ResultItem) uint64 {
	o.nextResult++
	r.Number = o.nextResult
	o.results = append(o.results, r)
	o.bytes += r.cost()
	return r.Number
}

func (r *ResultItem) cost() int { return resultCost + len(r.Value.Data) }

// addDeadLetter numbers a dead letter and adds it.
func (o *outbox) addDeadLetter(d DeadLetter) *DeadLetter {
	o.nextDeadLetter++
	d.Number = o.nextDeadLetter
	o.deadLetters = append(o.deadLetters, d)
	o.bytes += d.cost()
	return &o.deadLetters[len(o.deadLetters)-1]
}

func (d *DeadLetter) cost() int {
	n := deadLetterCost + len(d.Reason)
	if d.Fault != nil {
		n += len(d.Fault.Message) + len(d.Fault.Details)
	}
	return n
}

// markPublished removes published items. Numbers below those of an earlier
// command have no effect.
func (l *Ledger) markPublished(c *MarkPublished) Result {
	o := &l.outbox
	for len(o.entries) > 0 {
		e := &o.entries[0]
		if e.first+uint64(len(e.events))-1 > c.Events {
			break
		}
		o.bytes -= e.bytes
		o.entries = o.entries[1:]
	}
	o.published = max(o.published, min(c.Events, o.next))
	for len(o.results) > 0 && o.results[0].Number <= c.Results {
		o.bytes -= o.results[0].cost()
		o.results = o.results[1:]
	}
	for len(o.deadLetters) > 0 && o.deadLetters[0].Number <= c.DeadLetters {
		o.bytes -= o.deadLetters[0].cost()
		o.deadLetters = o.deadLetters[1:]
	}
	for _, m := range c.Messages {
		if n := len(o.messages); n == 0 || m.First > o.messages[n-1].First {
			o.messages = append(o.messages, m)
		}
	}
	if len(o.messages) > 1 {
		o.dropMessages(l.jobs.oldestResult())
	}
	return Result{}
}

// dropMessages removes the places of results that no kept job refers to.
func (o *outbox) dropMessages(oldest uint64) {
	for len(o.messages) > 1 && o.messages[1].First <= oldest {
		o.messages = o.messages[1:]
	}
}

// OutboxBytes returns the size of what is not published yet, in bytes.
func (l *Ledger) OutboxBytes() int { return l.outbox.bytes }

// PublishedEvents returns the number of the last event that is known to be
// published.
func (l *Ledger) PublishedEvents() uint64 { return l.outbox.published }

// LastEvent returns the number of the last event.
func (l *Ledger) LastEvent() uint64 { return l.outbox.next }

// LastResult returns the number of the last result.
func (l *Ledger) LastResult() uint64 { return l.outbox.nextResult }

// LastDeadLetter returns the number of the last dead letter.
func (l *Ledger) LastDeadLetter() uint64 { return l.outbox.nextDeadLetter }

// EventsAfter yields the unpublished events with a number greater than after,
// with number and time, until yield returns false.
func (l *Ledger) EventsAfter(after uint64, yield func(number uint64, at time.Time, e *Event) bool) {
	entries := l.outbox.entries
	from := sort.Search(len(entries), func(i int) bool {
		return entries[i].first+uint64(len(entries[i].events)) > after+1
	})
	for i := from; i < len(entries); i++ {
		e := &entries[i]
		at := time.Unix(0, e.at)
		for k := range e.events {
			if number := e.first + uint64(k); number > after && !yield(number, at, &e.events[k]) {
				return
			}
		}
	}
}

// ResultsAfter returns the unpublished results with a number greater than
// after. The slice is read-only.
func (l *Ledger) ResultsAfter(after uint64) []ResultItem {
	r := l.outbox.results
	return r[sort.Search(len(r), func(i int) bool { return r[i].Number > after }):]
}

// DeadLettersAfter returns the unpublished dead letters with a number greater
// than after. The slice is read-only.
func (l *Ledger) DeadLettersAfter(after uint64) []DeadLetter {
	d := l.outbox.deadLetters
	return d[sort.Search(len(d), func(i int) bool { return d[i].Number > after }):]
}

// FindResult returns the result of a number if it is not published yet, or else
// the sequence number of its message in the result stream. Both are zero if the
// ledger no longer knows it.
func (l *Ledger) FindResult(number uint64) (item *ResultItem, seq uint64) {
	if r := l.ResultsAfter(number - 1); len(r) > 0 && r[0].Number == number {
		return &r[0], 0
	}
	m := l.outbox.messages
	i := sort.Search(len(m), func(i int) bool { return m[i].First > number })
	if i == 0 {
		return nil, 0
	}
	return nil, m[i-1].Seq
}
