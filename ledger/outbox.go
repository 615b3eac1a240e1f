package ledger

import (
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// MaxOutbox is the size of the outbox, in bytes, at which the authority only
// settles dispatches. It stops ingesting at half of it and placing at three
// quarters.
const MaxOutbox = 64 << 20

// maxResultMessages is how many messages of the result stream the ledger can locate at most:
// those of a quarter of an hour under full load. It keeps no places of results whose jobs'
// records are gone; if a queue keeps records longer than others, its results may have to be
// searched for.
const maxResultMessages = 100_000

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

	counts SnapshotBacklog // of the dispatches that the events are about

	bytes int

	level    uint8                       // see [Level]
	runs     map[Run]*Extra              // of WorkerAssigned, to be shared by events; not part of the state
	removals map[string]*[job.States]int // jobs that the entry being applied has removed, by queue
}

// eventEntry holds the events of one log entry.
type eventEntry struct {
	first  uint64 // number of the first event
	index  uint64
	at     int64
	events []Event
	bytes  int
}

// last returns the number of the entry's last event.
func (e *eventEntry) last() uint64 { return e.first + uint64(len(e.events)) - 1 }

// ResultItem is a result that is not published yet.
type ResultItem struct {
	Number uint64
	Job    job.ID
	N      uint32
	Queue  string
	Value  job.Value
	Blob   *job.Blob

	Dropped *job.DroppedResult // why it is not kept
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

	BlobOwner job.ID // see [job.Job.BlobOwner]
}

// begin starts the events of a log entry.
func (o *outbox) begin(index uint64, at int64, cmds []Command) {
	o.current = eventEntry{first: o.next + 1, index: index, at: at}
	if n := expectedEvents(cmds); n > 0 {
		o.current.events = make([]Event, 0, n)
	}
}

// expectedEvents estimates how many events the commands emit.
func expectedEvents(cmds []Command) (n int) {
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

// emit numbers an event, adds it to the log entry being applied, and moves its
// dispatch from one count of the backlog to another.
func (o *outbox) emit(e Event) {
	o.next++
	o.current.events = append(o.current.events, e)
	o.current.bytes += e.cost()
	switch e.Kind {
	case DispatchQueued:
		o.counts.Pending++
	case DispatchNotified:
		o.counts.Pending--
		o.counts.Notified++
	case DispatchDelivered:
		o.counts.Notified--
		o.counts.Delivered++
	case DispatchFailed:
		o.counts.Notified--
		o.counts.Failed++
	}
}

// respond emits e as the answer to a contract command.
func (o *outbox) respond(e Event) Result {
	o.emit(e)
	return Result{Event: &e, EventNumber: o.next}
}

// given returns the place for an event, 0 in levels that do not have it.
func (o *outbox) given(place Whereabouts) Whereabouts {
	if o.level == 0 {
		return 0
	}
	return place
}

// emitQueued emits the event of a job's dispatch that was queued.
func (o *outbox) emitQueued(stored *storedJob, from Whereabouts) {
	o.emit(Event{Kind: DispatchQueued, From: o.given(from), Job: stored.id, N: stored.n, A: stored.function, B: stored.queue.name})
}

// emitChange emits the event of a job that has become next, without an event about a dispatch.
func (o *outbox) emitChange(from Whereabouts, next *storedJob, to Whereabouts) {
	if o.level == 0 {
		return
	}
	e := Event{Kind: JobChanged, From: from, To: to, Job: next.id, B: next.queue.name}
	if from == OutNew {
		e.A = next.function
	}
	if to == InState(job.Delayed) {
		e.Extra = &Extra{Due: next.due}
	}
	o.emit(e)
}

// emitDetails emits what a job has been enqueued with, whose labels are those of its record; "" if they
// have not changed.
func (o *outbox) emitDetails(stored *storedJob, labels string) {
	if o.level == 0 {
		return
	}
	o.emit(Event{Kind: JobDetails, Job: stored.id, A: stored.key, B: stored.queue.name, Extra: &Extra{C: strings.Clone(labels), Accepted: stored.accepted, Priority: stored.priority, Record: stored.position()}})
}

// maxSharedRuns is how many runs events share. A full table starts again from empty.
const maxSharedRuns = 1024

// emitAssigned emits the event of a job that an executor runs.
func (o *outbox) emitAssigned(next *storedJob) {
	e := Event{Kind: WorkerAssigned, Job: next.id, N: next.n, A: next.run.channel, B: next.queue.name}
	if o.level > 0 {
		run := Run{Node: next.run.node, Function: next.function, Attempt: next.attempt, Key: next.key, Limits: limitsText(next.limits)}
		if e.Extra = o.runs[run]; e.Extra == nil {
			if o.runs == nil || len(o.runs) >= maxSharedRuns {
				o.runs = make(map[Run]*Extra)
			}
			e.Extra = &Extra{Run: &run}
			o.runs[run] = e.Extra
		}
	}
	o.emit(e)
}

// countForgotten counts a job in a state that is removed without an event of its own.
func (o *outbox) countForgotten(queue string, state job.State) {
	if o.level == 0 {
		return
	}
	if o.removals == nil {
		o.removals = make(map[string]*[job.States]int)
	}
	counts := o.removals[queue]
	if counts == nil {
		counts = new([job.States]int)
		o.removals[queue] = counts
	}
	counts[state]++
}

// emitForgotten emits the events of the jobs that were counted since the last call.
func (o *outbox) emitForgotten() {
	if len(o.removals) == 0 {
		return
	}
	for _, queue := range slices.Sorted(maps.Keys(o.removals)) {
		numbers := make(map[string]int)
		for state, n := range o.removals[queue] {
			if n > 0 {
				numbers[job.State(state).String()] = n
			}
		}
		o.emit(Event{Kind: JobsForgotten, B: queue, Extra: &Extra{Metadata: settingsJSON(numbers)}})
	}
	clear(o.removals)
}

// emitNotified emits that the last dispatch of a job was sent to a channel, or to none.
func (o *outbox) emitNotified(stored *storedJob, channel string) {
	o.emit(Event{Kind: DispatchNotified, Job: stored.id, N: stored.n, A: channel, B: stored.queue.name})
}

// emitDelivered emits that the last dispatch of a job has completed it, with the number of its result, if
// there is one.
func (o *outbox) emitDelivered(stored *storedJob, result uint64) {
	e := Event{Kind: DispatchDelivered, Job: stored.id, N: stored.n, B: stored.queue.name}
	if result > 0 && o.level > 0 {
		e.Extra = &Extra{Result: result}
	}
	o.emit(e)
}

// failedDispatch is how the last dispatch of a job fails, and where the job goes.
type failedDispatch struct {
	reason    string
	errorType string // of its error, or ""
	to        Whereabouts
	due       int64 // when a job that is delayed is due, in Unix nanoseconds
}

// emitFailure emits the failure of the last dispatch of a job.
func (o *outbox) emitFailure(stored *storedJob, f failedDispatch) {
	e := Event{Kind: DispatchFailed, To: o.given(f.to), Job: stored.id, N: stored.n, A: f.reason, B: stored.queue.name}
	if o.level == 0 || f.to != InState(job.Delayed) {
		f.due = 0
	}
	if f.errorType != "" || f.due != 0 {
		e.Extra = &Extra{C: f.errorType, Due: f.due}
	}
	o.emit(e)
}

// emitUnstartedFailure emits the events of a dispatch that ends before it was
// placed, in the contract's order.
func (o *outbox) emitUnstartedFailure(stored *storedJob, f failedDispatch) {
	o.emitNotified(stored, "none")
	o.emitFailure(stored, f)
}

// emitUnstarted emits how a job that is not active goes elsewhere: by the failure of its dispatch,
// if it is waiting.
func (o *outbox) emitUnstarted(old *storedJob, f failedDispatch) {
	if old.state == job.Waiting {
		o.emitUnstartedFailure(old, f)
		return
	}
	o.emitChange(InState(old.state), old, f.to)
}

// cost returns the size with which an event is counted, in bytes. Names shared
// with a job's record are not counted.
func (e *Event) cost() int {
	n := eventCost
	switch {
	case e.N == 0:
		n += len(e.A) + len(e.B)
	case e.Kind == WorkerAssigned:
		return n // the events about a run share what they have of it
	case e.Kind == DispatchFailed:
		n += len(e.A)
	}
	if e.Extra == nil {
		return n
	}
	n += len(e.Extra.Request) + len(e.Extra.C) + len(e.Extra.Metadata) + extraCost
	if by := e.Extra.By; by != nil {
		n += len(by.Name) + len(by.Reason) + extraCost
	}
	if e.Extra.Cursor != nil {
		n += len(*e.Extra.Cursor)
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

func (r *ResultItem) cost() int {
	n := resultCost + len(r.Value.Data)
	if r.Dropped != nil {
		n += len(r.Dropped.Reason)
	}
	return n
}

// addDeadLetter numbers the dead letter of a job, adds it, and returns it.
func (d *dispatches) addDeadLetter(failed *storedJob, reason string, fault *job.Fault) *DeadLetter {
	o := &d.outbox
	o.nextDeadLetter++
	o.deadLetters = append(o.deadLetters, DeadLetter{
		Number: o.nextDeadLetter, Job: failed.id, N: failed.n, Queue: failed.queue.name, Function: failed.function,
		Position: failed.position(), Attempts: failed.attempt,
		Accepted: time.Unix(0, failed.accepted).UTC(), At: d.Now(), Reason: reason, Fault: fault,
		BlobOwner: failed.options.blobOwner,
	})
	letter := &o.deadLetters[len(o.deadLetters)-1]
	o.bytes += letter.cost()
	return letter
}

func (d *DeadLetter) cost() int {
	n := deadLetterCost + len(d.Reason)
	if d.Fault != nil {
		n += len(d.Fault.Message) + len(d.Fault.Details)
	}
	return n
}

// apply removes published events, results and dead letters from the outbox, and
// keeps the places of the last published results. Numbers below those of an earlier
// command have no effect.
func (c *MarkPublished) apply(l *Ledger) Result {
	o := &l.outbox
	for len(o.entries) > 0 && o.entries[0].last() <= c.Events {
		o.bytes -= o.entries[0].bytes
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
	for _, message := range c.Messages {
		if n := len(o.messages); n == 0 || message.First > o.messages[n-1].First {
			o.messages = append(o.messages, message)
		}
	}

	o.messages = o.messages[max(0, len(o.messages)-maxResultMessages):]
	return Result{}
}

// forgetPlaces removes the places of messages that have only results up to number.
func (o *outbox) forgetPlaces(number uint64) {
	for len(o.messages) > 1 && o.messages[1].First <= number+1 {
		o.messages = o.messages[1:]
	}
}

// OutboxBytes returns the size of what is not published yet, in bytes.
func (o *outbox) OutboxBytes() int { return o.bytes }

// PublishedEvents returns the number of the last event that is known to be
// published.
func (o *outbox) PublishedEvents() uint64 { return o.published }

// LastEvent returns the number of the last event.
func (o *outbox) LastEvent() uint64 { return o.next }

// LastResult returns the number of the last result.
func (o *outbox) LastResult() uint64 { return o.nextResult }

// LastDeadLetter returns the number of the last dead letter.
func (o *outbox) LastDeadLetter() uint64 { return o.nextDeadLetter }

// EventsAfter yields the unpublished events with a number greater than after,
// with number and time, until yield returns false.
func (o *outbox) EventsAfter(after uint64, yield func(number uint64, at time.Time, e *Event) bool) {
	start := sort.Search(len(o.entries), func(i int) bool { return o.entries[i].last() > after })
	for _, entry := range o.entries[start:] {
		at := time.Unix(0, entry.at)
		for i := range entry.events {
			if number := entry.first + uint64(i); number > after && !yield(number, at, &entry.events[i]) {
				return
			}
		}
	}
}

// ResultsAfter returns the unpublished results with a number greater than
// after. The slice is read-only.
func (o *outbox) ResultsAfter(after uint64) []ResultItem {
	start := sort.Search(len(o.results), func(i int) bool { return o.results[i].Number > after })
	return o.results[start:]
}

// DeadLettersAfter returns the unpublished dead letters with a number greater
// than after. The slice is read-only.
func (o *outbox) DeadLettersAfter(after uint64) []DeadLetter {
	start := sort.Search(len(o.deadLetters), func(i int) bool { return o.deadLetters[i].Number > after })
	return o.deadLetters[start:]
}

// FindResult returns the result of a number if it is not published yet, or else
// the sequence number of its message in the result stream. Both are zero if the
// ledger no longer knows it: then the stream has to be searched.
func (o *outbox) FindResult(number uint64) (item *ResultItem, seq uint64) {
	if unpublished := o.ResultsAfter(number - 1); len(unpublished) > 0 && unpublished[0].Number == number {
		return &unpublished[0], 0
	}
	following := sort.Search(len(o.messages), func(i int) bool { return o.messages[i].First > number })
	if following == 0 {
		return nil, 0
	}
	return nil, o.messages[following-1].Seq
}

// UnpublishedEvents returns those events of a job that are not yet known to be
// published, each encoded as the line that the history stream will have. It
// examines at most limit events of the outbox; complete is false if there are more.
func (o *outbox) UnpublishedEvents(id job.ID, limit int) (lines [][]byte, complete bool) {
	complete = true
	examined := 0
	o.EventsAfter(o.published, func(number uint64, at time.Time, e *Event) bool {
		if examined == limit {
			complete = false
			return false
		}
		examined++
		if e.isAboutJob() && e.Job == id {
			lines = append(lines, e.AppendLine(nil, number, at))
		}
		return true
	})
	return lines, complete
}
