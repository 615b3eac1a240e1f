package ledger

import (
	"fmt"
	"maps"
	"math"
	"slices"
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

// LaneCursor is how far a lane has been ingested.
type LaneCursor struct {
	Identity      string
	Cursor        uint64    // sequence of the last ingested message, whose records are all ingested; 0: none
	Floor         uint64    // records below it may have been purged
	LastID        job.ID    // id of the last job or rejection at the cursor, or before it
	IngestedUntil time.Time // every record that was stored earlier, in elapsed time, is ingested; zero: not known
}

// ingestion turns the records of lanes into jobs.
type ingestion struct {
	dispatches
	decisions
	refused      refusals
	lanes        []LaneCursor
	lastIngested job.ID // id of the last ingested record

	relocatedFloor uint64 // relocated records below it may have been purged
	revived        uint64 // index of the last entry in which an ended job became unfinished
	released       uint64 // index of the last entry after which bodies of failed jobs were removed
}

// Lanes returns the states of all lanes, by lane number.
func (in *ingestion) Lanes() []LaneCursor { return slices.Clone(in.lanes) }

// Ingested reports whether the record at position p has been ingested.
func (in *ingestion) Ingested(p job.Position) bool {
	return int(p.Lane) < len(in.lanes) && in.lanes[p.Lane].Cursor >= p.Seq
}

// apply has no effect on a cluster that is bootstrapped, except that it may
// record the creation of the streams.
func (c *Bootstrap) apply(l *Ledger) Result {
	if c.StreamsCreated {
		l.streams = max(l.streams, c.Generation, 1)
	}
	if len(l.lanes) > 0 {
		return Result{}
	}
	l.secret = slices.Clone(c.Secret)
	for _, identity := range c.Lanes {
		l.lanes = append(l.lanes, LaneCursor{Identity: identity, IngestedUntil: l.emptyUntil()})
	}
	return Result{}
}

// apply ingests each record exactly once: it compares and sets the lane's
// cursor, and an id that is known does not create a second job.
func (c *Ingest) apply(l *Ledger) Result {
	if int(c.Lane) >= len(l.lanes) || l.lanes[c.Lane].Identity != c.Identity {
		return Result{Err: fmt.Errorf("lane %d: %w", c.Lane, ErrLaneMismatch)}
	}
	lane := &l.lanes[c.Lane]
	if lane.Cursor != c.From || c.To < c.From {
		return Result{Err: fmt.Errorf("lane %d at %d, not %d: %w", c.Lane, lane.Cursor, c.From, ErrCursorMismatch)}
	}

	last := job.Position{Lane: c.Lane, Seq: c.To} // the last record of the message c.To that was recorded
	recordIngested := func(id job.ID, at job.Position) {
		l.tickIngested(id)
		if at.Compare(last) >= 0 {
			last, lane.LastID = at, id
		}
	}
	ingested := make([]Ingested, len(c.Jobs))
	for i := range c.Jobs {
		j := &c.Jobs[i]
		ingested[i] = l.ingestJob(j, lane.Identity, c.CreateQueues)
		recordIngested(j.ID, j.Position)
	}
	for i := range c.Rejected {
		rejection := &c.Rejected[i]
		l.reject(rejection, c.Lane)
		recordIngested(rejection.ID, job.Position{Lane: c.Lane, Seq: rejection.Seq, Index: rejection.Index})
	}
	lane.Cursor = c.To
	l.lastIngested = lane.LastID
	return Result{Ingested: ingested}
}

// ingestJob ingests a record of the lane with the given identity.
func (in *ingestion) ingestJob(j *job.Job, identity string, createQueues bool) Ingested {
	if j.Guards != nil {
		return in.ingestGuarded(j, identity, createQueues)
	}
	ingested, _ := in.addJob(j, identity, createQueues)
	return ingested
}

// addJob creates the job that a record of the lane with the given identity asks
// for, unless the job exists already. A record that is rejected becomes a dead
// letter, and addJob returns the reason.
func (in *ingestion) addJob(j *job.Job, identity string, createQueues bool) (ingested Ingested, reason string) {
	if existing := in.jobs.find(j.ID); existing != nil {
		if existing.queue.name != j.Queue {
			reason := "id_conflict: the id names a job of queue " + existing.queue.name
			in.rejectJob(j, identity, reason)
			return IngestedRejected, reason
		}
		return IngestedKnown, ""
	}
	if in.jobs.hasForgotten(&j.ID) {
		return IngestedKnown, ""
	}

	err := in.checkLimits(j)
	var q *queue
	if err == nil {
		q, err = in.queueFor(j, createQueues)
	}
	if err != nil {
		in.rejectJob(j, identity, err.Error())
		return IngestedRejected, err.Error()
	}
	if err := in.checkRunnerLimit(q, j.Function); err != nil {
		in.rejectJob(j, identity, err.Error())
		return IngestedKeysFull, err.Error()
	}

	added := in.newStoredJob(j, q)
	if !in.passed(added.dueMoment()) {
		added.state = job.Delayed
		in.store(nil, &added)
		in.emitChange(OutNew, &added, InState(job.Delayed))
		ingested = IngestedDelayed
	} else {
		in.enqueue(nil, &added)
		ingested = IngestedWaiting
	}
	in.emitDetails(&added, j.Labels)
	if in.changes != nil {
		in.changes.label(added.number, j.Labels)
	}
	return ingested, ""
}

// checkLimits returns an error if a limit that the job names does not exist.
func (j *jobs) checkLimits(added *job.Job) error {
	for _, use := range added.Limits {
		if j.limits.get(use.Limit) == nil {
			return &job.MissingLimitError{Limit: use.Limit}
		}
	}
	return nil
}

// MissingLimit returns the first limit in a job's specification that does not exist, "" if all
// do.
func (j *jobs) MissingLimit(limits map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if j.limits.get(name) == nil {
			return name
		}
	}
	return ""
}

// queueFor returns the queue of job j, or creates it if create is set.
func (in *ingestion) queueFor(j *job.Job, create bool) (*queue, error) {
	q := in.queues.get(j.Queue)
	switch {
	case q != nil && q.isSystem():
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
	added := in.queues.add(j.Queue, job.RecordID(j.Queue, job.Position{Seq: in.index}, in.Now()), job.DefaultQueueConfig)
	in.act(Actor{Reason: "its first job was enqueued"}, "queue.add", Event{B: added.name}, "", settingsOfQueue(&added.config))
	return added, nil
}

// newStoredJob returns the stored form of an ingested job, with times in Unix
// nanoseconds.
func (in *ingestion) newStoredJob(j *job.Job, q *queue) storedJob {
	stored := storedJob{
		record:   record{id: j.ID, accepted: j.Accepted.UnixNano(), priority: min(j.Priority, job.MaxPriority)},
		function: j.Function,
		traits:   in.traits.of(traitsID{q, Class(j.Function), groupKey{j.LimitKey, joinUses(j.Limits)}}),
		options: options{
			maxAttempts: j.MaxAttempts, timeout: j.Timeout, retryInterval: j.RetryInterval, retryOnTimeout: choiceOf(j.RetryOnTimeout),
			resultTTL: j.ResultTTL, blobOwner: j.BlobOwner,
		},
	}
	if j.NoPriority && q.config.Priority != nil {
		stored.priority = min(*q.config.Priority, job.MaxPriority)
	}
	stored.setPosition(j.Position)
	in.setMoments(&stored, j)
	if g := j.Guards; g != nil && (g.Unique.IsSet() || g.Debounce.IsSet()) {
		stored.flags = guarded // a rate limit alone is not held by the job
	}
	return stored
}

// freshRecord is how long ago a lane may have been ingested to its end so that the age of a record
// in it is not taken into account. The age is measured by wall clocks, and a wrong one must not
// let a delay end early. The authority has the end of an idle lane recorded every 10 seconds, so a
// lane that is read was ingested to its end less than freshRecord ago.
const freshRecord = 25 * time.Second

// age returns how long ago a record was accepted, by the wall clock, but not more than has passed
// since its lane was ingested to its end; 0 if that was less than freshRecord ago.
func (in *ingestion) age(j *job.Job) time.Duration {
	longest := int64(math.MaxInt64)
	if until := in.lanes[j.Position.Lane].IngestedUntil; !until.IsZero() {
		longest = in.elapsed - until.UnixNano()
	}
	if longest < int64(freshRecord) {
		return 0
	}
	return time.Duration(max(0, min(in.wall-j.Accepted.UnixNano(), longest)))
}

// setMoments sets when an ingested job is due and when it expires. Unless the producer set a
// start time or a delay, the job is due, even if the time at which its record was stored is
// ahead of the ledger's time. A debounce key delays the job by the key's TTL.
func (in *ingestion) setMoments(stored *storedJob, j *job.Job) {
	relative := in.outbox.level >= level8 // an earlier build took all times for those of one clock
	o := &stored.options
	expires := moment{at: j.Expires.UnixNano(), wall: relative}
	if relative && j.ExpiresIn > 0 {
		expires = in.after(j.ExpiresIn - in.age(j))
	}
	if !j.Expires.IsZero() {
		o.expires, o.expiryShift, o.expiryWall = max(expires.at, 1), expires.shift, expires.wall
	}
	window := time.Duration(0)
	if j.Guards != nil {
		window = j.Guards.Debounce.TTL
	}
	switch {
	case relative && window > 0:
		stored.runAt(in.after(window))
	case window > 0:
		stored.runAt(moment{at: in.now + int64(window)})
	case relative && j.Delay > 0:
		stored.runAt(in.after(j.Delay - in.age(j)))
	case !j.RunAt.IsZero():
		stored.runAt(moment{at: j.RunAt.UnixNano(), wall: relative})
	default:
		stored.setDue(in.past(min(stored.accepted, in.now)))
	}
}

// reject stores a failed job for a record that does not describe a valid job,
// and adds a dead letter. A job of an unknown queue is stored in the system
// queue. An id that is known already is ignored.
func (in *ingestion) reject(rejection *Rejection, lane uint8) {
	if _, known := in.Known(rejection.ID); known {
		return
	}
	q := in.queues.get(rejection.Queue)
	if q == nil {
		q = in.queues.get(job.SystemQueue)
	}
	stored := &storedJob{
		record: record{
			id: rejection.ID, accepted: rejection.Accepted.UnixNano(), due: in.now, state: job.Failed,
			priority: job.DefaultPriority, n: 1, flags: malformed,
		},
		traits: in.jobs.traits.of(traitsID{queue: q}), options: options{blobOwner: rejection.BlobOwner},
	}
	stored.setPosition(job.Position{Lane: lane, Seq: rejection.Seq, Index: rejection.Index})
	fault := &job.Fault{Message: rejection.Reason, Type: job.FaultRejected}
	stored.run.failure = in.failure(rejection.Reason, fault)
	in.store(nil, stored)

	reason := "rejected: " + rejection.Reason
	in.emitQueued(stored, OutNew)
	in.emitDetails(stored, "")
	in.emitUnstartedFailure(stored, failedDispatch{reason: reason, errorType: fault.Type, to: InState(job.Failed)})
	letter := in.addDeadLetter(stored, reason, fault)
	stored.run.failure.deadLetter = letter.Number
	if job.ValidQueue(rejection.Queue) == nil {
		letter.Queue = strings.Clone(rejection.Queue) // as written by its producer
	}
}

// rejectJob rejects a record that could be parsed, under the id of its
// position, because its own id may be another job's.
func (in *ingestion) rejectJob(j *job.Job, identity, reason string) {
	id := job.RecordID(identity, j.Position, j.Accepted)
	in.reject(&Rejection{ID: id, Queue: j.Queue, Seq: j.Position.Seq, Index: j.Position.Index, Accepted: j.Accepted, Reason: reason, BlobOwner: j.BlobOwner}, j.Position.Lane)
}
