package ledger

import (
	"sort"
	"time"

	"yardmaster/job"
)

// MaxOutbox is the outbox's size in bytes at which nothing but settling goes
// on; folding stops at half of it, placing at three quarters.
const MaxOutbox = 64 << 20

// Sizes that an outbox item is counted with, in bytes, beside its payload.
const (
	eventCost  = 80
	extraCost  = 72
	resultCost = 96
	deadCost   = 160
)

// outbox holds what the world has still to be told, in three dense numberings.
// Its slices only grow at the end and shrink at the front, so that a copy of
// the ledger can share them.
type outbox struct {
	entries []eventEntry // events, by the log entry they came from
	next    uint64       // number of the next event, from 1
	told    uint64       // last event told
	open    eventEntry

	results    []ResultItem
	nextResult uint64
	messages   []ResultMessage // where told results lie, ascending

	dead     []DeadItem
	nextDead uint64

	bytes int
}

// eventEntry is the events of one log entry.
type eventEntry struct {
	first  uint64
	index  uint64
	at     int64
	events []Event
	bytes  int
}

// ResultItem is a result that is not yet in its stream.
type ResultItem struct {
	Number uint64
	Job    job.ID
	N      uint32
	Queue  string
	Value  job.Value
	Blob   *job.Blob
}

// DeadItem is a dead letter that is not yet in its stream.
type DeadItem struct {
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

func (o *outbox) begin(index uint64, at int64, cmds []Command) {
	o.open = eventEntry{first: o.next + 1, index: index, at: at}
	if n := expected(cmds); n > 0 {
		o.open.events = make([]Event, 0, n)
	}
}

// expected is about how many events the large commands emit.
func expected(cmds []Command) int {
	n := 0
	for _, c := range cmds {
		switch c := c.(type) {
		case *Fold:
			n += len(c.Jobs)
		case *Place:
			n += 2 * len(c.Placements)
		case *Settle:
			n += len(c.Ends)
		}
	}
	return n
}

func (o *outbox) emit(e Event) {
	o.next++
	o.open.events = append(o.open.events, e)
	o.open.bytes += e.cost()
}

// cost is what an event takes, in bytes. Names that it shares with a job's
// record cost nothing more.
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

func (o *outbox) seal() {
	if len(o.open.events) > 0 {
		o.entries = append(o.entries, o.open)
		o.bytes += o.open.bytes
	}
	o.open = eventEntry{}
}

// addResult numbers a result and keeps it until it is told.
func (o *outbox) addResult(r ResultItem) uint64 {
	o.nextResult++
	r.Number = o.nextResult
	o.results = append(o.results, r)
	o.bytes += r.cost()
	return r.Number
}

func (r *ResultItem) cost() int { return resultCost + len(r.Value.Data) }

// addDead numbers a dead letter and keeps it until it is told.
func (o *outbox) addDead(d DeadItem) *DeadItem {
	o.nextDead++
	d.Number = o.nextDead
	o.dead = append(o.dead, d)
	o.bytes += d.cost()
	return &o.dead[len(o.dead)-1]
}

func (d *DeadItem) cost() int {
	n := deadCost + len(d.Reason)
	if d.Fault != nil {
		n += len(d.Fault.Message) + len(d.Fault.Details)
	}
	return n
}

// told trims what is published. Numbers below what was told before change
// nothing.
func (l *Ledger) told(c *Told) Result {
	o := &l.outbox
	for len(o.entries) > 0 {
		e := &o.entries[0]
		if e.first+uint64(len(e.events))-1 > c.Events {
			break
		}
		o.bytes -= e.bytes
		o.entries = o.entries[1:]
	}
	o.told = max(o.told, min(c.Events, o.next))
	for len(o.results) > 0 && o.results[0].Number <= c.Results {
		o.bytes -= o.results[0].cost()
		o.results = o.results[1:]
	}
	for len(o.dead) > 0 && o.dead[0].Number <= c.Dead {
		o.bytes -= o.dead[0].cost()
		o.dead = o.dead[1:]
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

// dropMessages forgets where results lie that no kept job points to.
func (o *outbox) dropMessages(oldest uint64) {
	for len(o.messages) > 1 && o.messages[1].First <= oldest {
		o.messages = o.messages[1:]
	}
}

// OutboxBytes is how much waits to be told, in bytes.
func (l *Ledger) OutboxBytes() int { return l.outbox.bytes }

// ToldEvents is the number of the last event that is known to be published;
// LastEvent that of the last one there is.
func (l *Ledger) ToldEvents() uint64 { return l.outbox.told }

// LastEvent is the number of the last event.
func (l *Ledger) LastEvent() uint64 { return l.outbox.next }

// LastResult is the number of the last result.
func (l *Ledger) LastResult() uint64 { return l.outbox.nextResult }

// LastDead is the number of the last dead letter.
func (l *Ledger) LastDead() uint64 { return l.outbox.nextDead }

// EventsAfter yields the untold events with a number above after, each with
// its number and time, until yield returns false.
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

// ResultsAfter gives the untold results with a number above after. The slice
// must not be changed.
func (l *Ledger) ResultsAfter(after uint64) []ResultItem {
	r := l.outbox.results
	return r[sort.Search(len(r), func(i int) bool { return r[i].Number > after }):]
}

// DeadAfter gives the untold dead letters with a number above after. The slice
// must not be changed.
func (l *Ledger) DeadAfter(after uint64) []DeadItem {
	d := l.outbox.dead
	return d[sort.Search(len(d), func(i int) bool { return d[i].Number > after }):]
}

// FindResult tells where a numbered result is: still here, or in which message
// of its stream. Neither: the ledger no longer knows.
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
