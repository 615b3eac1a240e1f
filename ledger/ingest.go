package ledger

import (
	"fmt"
	"slices"
	"strings"

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

// LaneCursor is how far a lane has been ingested.
type LaneCursor struct {
	Identity string
	Cursor   uint64 // sequence of the last ingested record; 0: none
	LastID   job.ID // id of the job or rejection at the cursor, or of the last one before it
}

// ingestion turns the records of lanes into jobs.
type ingestion struct {
	dispatches
	decisions
	lanes        []LaneCursor
	lastIngested job.ID // id of the last ingested record
}

// Lanes returns the states of all lanes, by lane number.
func (in *ingestion) Lanes() []LaneCursor { return slices.Clone(in.lanes) }

// Ingested reports whether the record at position p has been ingested.
func (in *ingestion) Ingested(p job.Position) bool {
	return int(p.Lane) < len(in.lanes) && in.lanes[p.Lane].Cursor >= p.Seq
}

func (c *Bootstrap) apply(l *Ledger) Result {
	l.streamsCreated = l.streamsCreated || c.StreamsCreated
	if len(l.lanes) > 0 {
		return Result{}
	}
	l.secret = append([]byte(nil), c.Secret...)
	for _, identity := range c.Lanes {
		l.lanes = append(l.lanes, LaneCursor{Identity: identity})
	}
	return Result{}
}

// apply ingests each record exactly once: it compares and sets the lane's
// cursor, and an id that is known does not create a second job.
func (c *Ingest) apply(l *Ledger) Result {
	if int(c.Lane) >= len(l.lanes) || l.lanes[c.Lane].Identity != c.Identity {
		return Result{Err: fmt.Errorf("lane %d: %w", c.Lane, ErrLaneMismatch)}
	}
	ln := &l.lanes[c.Lane]
	if ln.Cursor != c.From || c.To < c.From {
		return Result{Err: fmt.Errorf("lane %d at %d, not %d: %w", c.Lane, ln.Cursor, c.From, ErrCursorMismatch)}
	}
	ingested := make([]Ingested, len(c.Jobs))
	for i := range c.Jobs {
		ingested[i] = l.ingestJob(&c.Jobs[i], ln.Identity, c.CreateQueues)
		l.tickIngested(c.Jobs[i].ID)
		if c.Jobs[i].Position.Seq == c.To {
			ln.LastID = c.Jobs[i].ID
		}
	}
	for i := range c.Rejected {
		l.reject(&c.Rejected[i], c.Lane)
		l.tickIngested(c.Rejected[i].ID)
		if c.Rejected[i].Seq == c.To {
			ln.LastID = c.Rejected[i].ID
		}
	}
	ln.Cursor = c.To
	l.lastIngested = ln.LastID
	return Result{Ingested: ingested}
}

func (in *ingestion) ingestJob(j *job.Job, identity string, createQueues bool) Ingested {
	if j.Guards != nil {
		return in.ingestGuarded(j, identity, createQueues)
	}
	ingested, _ := in.addJob(j, identity, createQueues)
	return ingested
}

// addJob creates the job that a record asks for, unless it exists or is
// rejected, with a reason.
func (in *ingestion) addJob(j *job.Job, identity string, createQueues bool) (f Ingested, reason string) {
	if known := in.jobs.byID[j.ID]; known != nil {
		if known.queue.name != j.Queue {
			reason := "id_conflict: the id names a job of queue " + known.queue.name
			in.rejectJob(j, identity, reason)
			return IngestedRejected, reason
		}
		return IngestedKnown, ""
	}
	if in.jobs.forgotten.has(j.ID) {
		return IngestedKnown, ""
	}
	q, err := in.queueFor(j, createQueues)
	if err != nil {
		in.rejectJob(j, identity, err.Error())
		return IngestedRejected, err.Error()
	}
	if err := in.checkRunnerLimit(q, j.Function); err != nil {
		in.rejectJob(j, identity, err.Error())
		return IngestedKeysFull, err.Error()
	}
	r := in.newStoredJob(j, q)
	if r.due > in.now {
		r.state = job.Delayed
		in.store(nil, r)
		return IngestedDelayed, ""
	}
	in.enqueue(nil, r)
	return IngestedWaiting, ""
}

// queueFor returns the queue of job j, or creates it if create is set.
func (in *ingestion) queueFor(j *job.Job, create bool) (*queue, error) {
	q := in.queues.get(j.Queue)
	switch {
	case q != nil && q.name[0] == '_':
		return nil, job.ErrSystemQueue
	case q != nil:
		return q, nil
	case !create:
		return nil, ErrQueueUnknown
	case in.queues.byName.Len() >= MaxQueues:
		return nil, errTooManyQueues
	}
	if err := job.ValidQueue(j.Queue); err != nil {
		return nil, err
	}
	return in.queues.add(j.Queue, job.RecordID(j.Queue, in.index, in.Now()), job.DefaultQueueConfig), nil
}

// newStoredJob returns the stored form of an ingested job. Unless the producer
// set a start time the job is due, even if the time at which its record was
// stored is ahead of the ledger's time.
func (in *ingestion) newStoredJob(j *job.Job, q *queue) *storedJob {
	r := &storedJob{
		id: j.ID, queue: q, function: in.intern(j.Function), accepted: j.Accepted.UnixNano(),
		seq: j.Position.Seq, lane: j.Position.Lane, priority: min(j.Priority, job.MaxPriority),
	}
	r.due = min(r.accepted, in.now)
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
func (in *ingestion) reject(c *Rejection, laneNumber uint8) {
	if in.jobs.byID[c.ID] != nil || in.jobs.forgotten.has(c.ID) {
		return
	}
	q := in.queues.get(c.Queue)
	if q == nil {
		q = in.queues.get(job.SystemQueue)
	}
	r := &storedJob{
		id: c.ID, queue: q, accepted: c.Accepted.UnixNano(), due: in.now, state: job.Failed,
		seq: c.Seq, lane: laneNumber, priority: job.DefaultPriority, n: 1, flags: malformed,
	}
	fault := &job.Fault{Message: c.Reason, Type: job.FaultRejected}
	r.run = &run{executor: noExecutor, failure: in.failure(c.Reason, fault)}
	in.store(nil, r)
	in.emitDispatch(r, DispatchQueued, q.name)
	in.emitUnstartedFailure(r, "rejected: "+c.Reason)
	letter := in.addDeadLetter(r, "rejected: "+c.Reason, fault)
	if job.ValidQueue(c.Queue) == nil {
		letter.Queue = strings.Clone(c.Queue) // as written by its producer
	}
}

// rejectJob rejects a record that could be parsed, under the id of its
// position, because its own id may be another job's.
func (in *ingestion) rejectJob(j *job.Job, identity, reason string) {
	id := job.RecordID(identity, j.Position.Seq, j.Accepted)
	in.reject(&Rejection{ID: id, Queue: j.Queue, Seq: j.Position.Seq, Accepted: j.Accepted, Reason: reason}, j.Position.Lane)
}
