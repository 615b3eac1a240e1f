package ledger

import (
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Ingested is what became of an ingested record.
type Ingested uint8

// Values of Ingested.
const (
	IngestedWaiting  Ingested = iota + 1 // a new job, due now
	IngestedDelayed                      // a new job, due later
	IngestedKnown                        // the job exists or existed already: no change
	IngestedRejected                     // not a valid job: a dead letter

	// Results that only records with guards have.
	IngestedDuplicate   // another job holds its unique key: no change
	IngestedRateLimited // its rate limit key is held: only a failed dispatch in history
	IngestedDebounced   // it replaced a job that had not started

	IngestedKeysFull // too many keys are held, or unfinished jobs name too many runners: a dead letter
)

// lane is how far a lane has been ingested.
type lane struct {
	identity string
	cursor   uint64 // sequence of the last ingested record
	lastID   job.ID // id of the job or rejection at the cursor, or of the last one before it
}

// LaneCursor is the ledger's state of a lane.
type LaneCursor struct {
	Identity string
	Cursor   uint64 // sequence of the last ingested record; 0: none
	LastID   job.ID
}

// Lanes returns the states of all lanes, by lane number.
func (l *Ledger) Lanes() []LaneCursor {
	view := make([]LaneCursor, len(l.lanes))
	for i, ln := range l.lanes {
		view[i] = LaneCursor{Identity: ln.identity, Cursor: ln.cursor, LastID: ln.lastID}
	}
	return view
}

// Ingested reports whether the record at position p has been ingested.
func (l *Ledger) Ingested(p job.Position) bool {
	return int(p.Lane) < len(l.lanes) && l.lanes[p.Lane].cursor >= p.Seq
}

// StreamsCreated reports whether the cluster's streams have been created, so
// that a missing stream means a loss of data.
func (l *Ledger) StreamsCreated() bool { return l.streamsCreated }

func (l *Ledger) bootstrap(c *Bootstrap) Result {
	l.streamsCreated = l.streamsCreated || c.StreamsCreated
	if len(l.lanes) > 0 {
		return Result{}
	}
	l.secret = append([]byte(nil), c.Secret...)
	for _, identity := range c.Lanes {
		l.lanes = append(l.lanes, lane{identity: identity})
	}
	return Result{}
}

// ingest ingests each record exactly once: it compares and sets the lane's
// cursor, and an id that is known does not create a second job.
func (l *Ledger) ingest(c *Ingest) Result {
	if int(c.Lane) >= len(l.lanes) || l.lanes[c.Lane].identity != c.Identity {
		return Result{Err: fmt.Errorf("lane %d: %w", c.Lane, ErrLaneMismatch)}
	}
	ln := &l.lanes[c.Lane]
	if ln.cursor != c.From || c.To < c.From {
		return Result{Err: fmt.Errorf("lane %d at %d, not %d: %w", c.Lane, ln.cursor, c.From, ErrCursorMismatch)}
	}
	ingested := make([]Ingested, len(c.Jobs))
	for i := range c.Jobs {
		ingested[i] = l.ingestJob(&c.Jobs[i], ln.identity, c.CreateQueues)
		l.tickIngested(c.Jobs[i].ID)
		if c.Jobs[i].Position.Seq == c.To {
			ln.lastID = c.Jobs[i].ID
		}
	}
	for i := range c.Rejected {
		l.reject(&c.Rejected[i], c.Lane)
		l.tickIngested(c.Rejected[i].ID)
		if c.Rejected[i].Seq == c.To {
			ln.lastID = c.Rejected[i].ID
		}
	}
	ln.cursor = c.To
	l.lastIngested = ln.lastID
	return Result{Ingested: ingested}
}

func (l *Ledger) ingestJob(j *job.Job, identity string, createQueues bool) Ingested {
	if j.Guards != nil {
		return l.ingestGuarded(j, identity, createQueues)
	}
	ingested, _ := l.addJob(j, identity, createQueues)
	return ingested
}

// addJob creates the job that a record asks for, unless it exists or is
// rejected, with a reason.
func (l *Ledger) addJob(j *job.Job, identity string, createQueues bool) (f Ingested, reason string) {
	if known := l.jobs.byID[j.ID]; known != nil {
		if known.queue.name != j.Queue {
			reason := "id_conflict: the id names a job of queue " + known.queue.name
			l.rejectJob(j, identity, reason)
			return IngestedRejected, reason
		}
		return IngestedKnown, ""
	}
	if l.jobs.forgotten.has(j.ID) {
		return IngestedKnown, ""
	}
	q, err := l.queueFor(j, createQueues)
	if err != nil {
		l.rejectJob(j, identity, err.Error())
		return IngestedRejected, err.Error()
	}
	if err := l.checkRunnerLimit(q, j.Function); err != nil {
		l.rejectJob(j, identity, err.Error())
		return IngestedKeysFull, err.Error()
	}
	r := l.newStoredJob(j, q)
	if r.due > l.now {
		r.state = job.Delayed
		l.store(nil, r)
		return IngestedDelayed, ""
	}
	l.enqueue(nil, r)
	return IngestedWaiting, ""
}

// queueFor returns the queue of job j, or creates it if create is set.
func (l *Ledger) queueFor(j *job.Job, create bool) (*queue, error) {
	q := l.queues.get(j.Queue)
	switch {
	case q != nil && q.name[0] == '_':
		return nil, job.ErrSystemQueue
	case q != nil:
		return q, nil
	case !create:
		return nil, ErrQueueUnknown
	case l.queues.byName.Len() >= MaxQueues:
		return nil, errTooManyQueues
	}
	if err := job.ValidQueue(j.Queue); err != nil {
		return nil, err
	}
	return l.queues.add(j.Queue, job.RecordID(j.Queue, l.index, l.Now()), job.DefaultQueueConfig), nil
}

// newStoredJob returns the stored form of an ingested job. Unless the producer
// set a start time the job is due, even if the time at which its record was
// stored is ahead of the ledger's time.
func (l *Ledger) newStoredJob(j *job.Job, q *queue) *storedJob {
	r := &storedJob{
		id: j.ID, queue: q, function: l.jobs.intern(j.Function), accepted: j.Accepted.UnixNano(),
		seq: j.Position.Seq, lane: j.Position.Lane, priority: min(j.Priority, job.MaxPriority),
	}
	r.due = min(r.accepted, l.now)
	if !j.RunAt.IsZero() {
		r.due = j.RunAt.UnixNano()
	}
	if !j.RunAt.IsZero() || j.MaxAttempts > 0 || j.Timeout > 0 || j.RetryInterval > 0 || j.ResultTTL > 0 {
		r.options = &options{maxAttempts: j.MaxAttempts, timeout: j.Timeout, retryInterval: j.RetryInterval, resultTTL: j.ResultTTL}
		if !j.RunAt.IsZero() {
			r.options.runAt = r.due
		}
	}
	if g := j.Guards; g != nil && (g.Unique.IsSet() || g.Debounce.IsSet()) {
		r.flags = guarded
	}
	return r
}

// enqueue makes a job waiting under a new dispatch number. next must not be in
// any index yet; old is its stored form, nil for a new job.
func (l *Ledger) enqueue(old, next *storedJob) {
	next.state = job.Waiting
	next.n++
	l.store(old, next)
	l.outbox.emit(Event{Kind: DispatchQueued, Job: next.id, N: next.n, A: target(next), B: next.queue.name})
}

// target returns where a job's dispatch may run, as written in its event: a
// runner's channel or the queue.
func target(r *storedJob) string {
	if runner, _ := job.SplitFunction(r.function); runner != "" {
		return job.Channel(job.RRQ, runner)
	}
	return r.queue.name
}

// reject stores a failed job for a record that does not describe a valid job,
// and adds a dead letter.
func (l *Ledger) reject(c *Rejection, laneNumber uint8) {
	if l.jobs.byID[c.ID] != nil || l.jobs.forgotten.has(c.ID) {
		return
	}
	q := l.queues.get(c.Queue)
	if q == nil {
		q = l.queues.get(job.SystemQueue)
	}
	r := &storedJob{
		id: c.ID, queue: q, accepted: c.Accepted.UnixNano(), due: l.now, state: job.Failed,
		seq: c.Seq, lane: laneNumber, priority: job.DefaultPriority, n: 1, flags: malformed,
	}
	fault := &job.Fault{Message: c.Reason, Type: job.FaultRejected}
	r.run = &run{executor: noExecutor, failure: l.jobs.failure(c.Reason, fault)}
	l.store(nil, r)
	l.outbox.emit(Event{Kind: DispatchQueued, Job: r.id, N: 1, A: q.name, B: q.name})
	l.emitUnstartedFailure(r, "rejected: "+c.Reason)
	letter := l.emitDeadLetter(r, "rejected: "+c.Reason, fault)
	if job.ValidQueue(c.Queue) == nil {
		letter.Queue = strings.Clone(c.Queue) // as written by its producer
	}
}

// rejectJob rejects a record that could be parsed, under the id of its
// position, because its own id may be another job's.
func (l *Ledger) rejectJob(j *job.Job, identity, reason string) {
	id := job.RecordID(identity, j.Position.Seq, j.Accepted)
	l.reject(&Rejection{ID: id, Queue: j.Queue, Seq: j.Position.Seq, Accepted: j.Accepted, Reason: reason}, j.Position.Lane)
}

// emitUnstartedFailure emits the events of a dispatch that ends before it was
// placed, in the contract's order.
func (l *Ledger) emitUnstartedFailure(r *storedJob, reason string) {
	l.outbox.emit(Event{Kind: DispatchNotified, Job: r.id, N: r.n, A: "none", B: r.queue.name})
	l.outbox.emit(Event{Kind: DispatchFailed, Job: r.id, N: r.n, A: reason, B: r.queue.name})
	l.counts.Failed++
}

// emitDeadLetter adds the dead letter of a job to the outbox.
func (l *Ledger) emitDeadLetter(r *storedJob, reason string, fault *job.Fault) *DeadLetter {
	return l.outbox.addDeadLetter(DeadLetter{
		Job: r.id, N: r.n, Queue: r.queue.name, Function: r.function,
		Position: job.Position{Lane: r.lane, Seq: r.seq}, Attempts: r.attempt,
		Accepted: time.Unix(0, r.accepted).UTC(), At: l.Now(), Reason: reason, Fault: fault,
	})
}

// promote makes delayed jobs waiting that are due, at most maxPromotions at a
// time.
func (l *Ledger) promote() {
	for range maxPromotions {
		item, ok := l.jobs.due.Min()
		if !ok || item.at > l.now {
			return
		}
		next := *item.r
		l.enqueue(item.r, &next)
	}
}

// NextDue returns when the next delayed job is due; ok is false without delayed jobs.
func (l *Ledger) NextDue() (at time.Time, ok bool) {
	item, ok := l.jobs.due.Min()
	return time.Unix(0, item.at), ok
}
