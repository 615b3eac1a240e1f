package ledger

import (
	"fmt"
	"strings"
	"time"

	"yardmaster/job"
)

// Folded says what became of a record.
type Folded uint8

// What a fold may do with a record.
const (
	FoldedWaiting  Folded = iota + 1 // a new job, due now
	FoldedDelayed                    // a new job, due later
	FoldedKnown                      // the job is known: nothing
	FoldedRejected                   // a dead letter

	// What only guards bring about.
	FoldedDuplicate // another job holds its unique key: nothing
	FoldedLimited   // its rate limit key is held: nothing but a word in history
	FoldedDebounced // a job that had not started has become what it asks for
	FoldedLater     // no more keys can be held: a dead letter
)

// lane is how far a job lane has been folded.
type lane struct {
	identity string
	cursor   uint64 // last folded sequence
	lastID   job.ID // of the job or rejection at or last before it
}

// LaneCursor is a lane as the ledger knows it.
type LaneCursor struct {
	Identity string
	Cursor   uint64 // last folded sequence; 0: none
	LastID   job.ID
}

// Lanes gives the lanes' identities and cursors, by number.
func (l *Ledger) Lanes() []LaneCursor {
	view := make([]LaneCursor, len(l.lanes))
	for i, ln := range l.lanes {
		view[i] = LaneCursor{Identity: ln.identity, Cursor: ln.cursor, LastID: ln.lastID}
	}
	return view
}

// Folded tells that a lane has been folded up to a record.
func (l *Ledger) Folded(p job.Position) bool {
	return int(p.Lane) < len(l.lanes) && l.lanes[p.Lane].cursor >= p.Seq
}

// StreamsMade tells that the yard's streams have existed: a missing one is a
// loss.
func (l *Ledger) StreamsMade() bool { return l.made }

func (l *Ledger) found(c *Found) Result {
	l.made = l.made || c.Made
	if len(l.lanes) > 0 {
		return Result{}
	}
	l.secret = append([]byte(nil), c.Secret...)
	for _, identity := range c.Lanes {
		l.lanes = append(l.lanes, lane{identity: identity})
	}
	return Result{}
}

// fold takes records in, each once: the cursor is compared and set, and an id
// that is known makes no second job.
func (l *Ledger) fold(c *Fold) Result {
	if int(c.Lane) >= len(l.lanes) || l.lanes[c.Lane].identity != c.Identity {
		return Result{Err: fmt.Errorf("lane %d: %w", c.Lane, ErrLaneIdentity)}
	}
	ln := &l.lanes[c.Lane]
	if ln.cursor != c.From || c.To < c.From {
		return Result{Err: fmt.Errorf("lane %d at %d, not %d: %w", c.Lane, ln.cursor, c.From, ErrCursor)}
	}
	folded := make([]Folded, len(c.Jobs))
	for i := range c.Jobs {
		folded[i] = l.foldJob(&c.Jobs[i], ln.identity, c.CreateQueues)
		l.landed(c.Jobs[i].ID)
		if c.Jobs[i].Position.Seq == c.To {
			ln.lastID = c.Jobs[i].ID
		}
	}
	for i := range c.Rejected {
		l.reject(&c.Rejected[i], c.Lane)
		l.landed(c.Rejected[i].ID)
		if c.Rejected[i].Seq == c.To {
			ln.lastID = c.Rejected[i].ID
		}
	}
	ln.cursor = c.To
	l.lastFolded = ln.lastID
	return Result{Folded: folded}
}

func (l *Ledger) foldJob(j *job.Job, identity string, createQueues bool) Folded {
	if j.Guards != nil {
		return l.foldGuarded(j, identity, createQueues)
	}
	folded, _ := l.makeJob(j, identity, createQueues)
	return folded
}

// makeJob makes the job that a record asks for, unless it is known or, for the
// reason it gives, rejected.
func (l *Ledger) makeJob(j *job.Job, identity string, createQueues bool) (f Folded, reason string) {
	if known := l.jobs.byID[j.ID]; known != nil {
		if known.queue.name != j.Queue {
			reason := "id_conflict: the id names a job of queue " + known.queue.name
			l.rejectJob(j, identity, reason)
			return FoldedRejected, reason
		}
		return FoldedKnown, ""
	}
	if l.jobs.gone.has(j.ID) {
		return FoldedKnown, ""
	}
	q, err := l.queueFor(j, createQueues)
	if err != nil {
		l.rejectJob(j, identity, err.Error())
		return FoldedRejected, err.Error()
	}
	r := l.newRecord(j, q)
	if r.due > l.now {
		r.state = job.Delayed
		l.put(nil, r)
		return FoldedDelayed, ""
	}
	l.queueUp(nil, r)
	return FoldedWaiting, ""
}

// queueFor finds the queue a job goes to, or makes it.
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
		return nil, errQueuesFull
	}
	if err := job.ValidQueue(j.Queue); err != nil {
		return nil, err
	}
	return l.queues.add(j.Queue, job.RecordID(j.Queue, l.index, l.Now()), job.DefaultQueueConfig), nil
}

// newRecord is the job as it is folded. Without a time of its own it is due,
// even if a lane's clock that is ahead of ours says it was stored later.
func (l *Ledger) newRecord(j *job.Job, q *queue) *record {
	r := &record{
		id: j.ID, queue: q, function: l.jobs.intern(j.Function), accepted: j.Accepted.UnixNano(),
		pos: j.Position.Seq, lane: j.Position.Lane, priority: min(j.Priority, job.MaxPriority),
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
	if g := j.Guards; g != nil && (g.Unique.Given() || g.Debounce.Given()) {
		r.flags = guarded
	}
	return r
}

// queueUp makes a job waiting under a new dispatch number. next is not yet in
// any index.
func (l *Ledger) queueUp(old, next *record) {
	next.state = job.Waiting
	next.n++
	l.put(old, next)
	l.outbox.emit(Event{Kind: DispatchQueued, Job: next.id, N: next.n, A: target(next), B: next.queue.name})
}

// target is where a job's dispatch may run, as its event says.
func target(r *record) string {
	if runner, _ := job.SplitFunction(r.function); runner != "" {
		return job.Channel(job.RRQ, runner)
	}
	return r.queue.name
}

func (l *Ledger) reject(c *Rejection, laneNumber uint8) {
	if l.jobs.byID[c.ID] != nil || l.jobs.gone.has(c.ID) {
		return
	}
	q := l.queues.get(c.Queue)
	if q == nil {
		q = l.queues.get(job.SystemQueue)
	}
	r := &record{
		id: c.ID, queue: q, accepted: c.Accepted.UnixNano(), due: l.now, state: job.Failed,
		pos: c.Seq, lane: laneNumber, priority: job.DefaultPriority, n: 1, flags: malformed,
	}
	fault := &job.Fault{Message: c.Reason, Type: job.FaultRejected}
	r.run = &run{hand: nobody, failed: l.jobs.failure(c.Reason, fault)}
	l.put(nil, r)
	l.outbox.emit(Event{Kind: DispatchQueued, Job: r.id, N: 1, A: q.name, B: q.name})
	l.endUnstarted(r, "rejected: "+c.Reason)
	letter := l.bury(r, "rejected: "+c.Reason, fault)
	if job.ValidQueue(c.Queue) == nil {
		letter.Queue = strings.Clone(c.Queue) // as its producer wrote it
	}
}

// rejectJob rejects a readable record under the id of its place, because its
// own id may be another job's.
func (l *Ledger) rejectJob(j *job.Job, identity, reason string) {
	id := job.RecordID(identity, j.Position.Seq, j.Accepted)
	l.reject(&Rejection{ID: id, Queue: j.Queue, Seq: j.Position.Seq, Accepted: j.Accepted, Reason: reason}, j.Position.Lane)
}

// endUnstarted emits the way of a dispatch that nobody was told of, in the
// contract's order.
func (l *Ledger) endUnstarted(r *record, reason string) {
	l.outbox.emit(Event{Kind: DispatchNotified, Job: r.id, N: r.n, A: "none", B: r.queue.name})
	l.outbox.emit(Event{Kind: DispatchFailed, Job: r.id, N: r.n, A: reason, B: r.queue.name})
	l.counts.Failed++
}

// bury writes a job's dead letter.
func (l *Ledger) bury(r *record, reason string, fault *job.Fault) *DeadItem {
	return l.outbox.addDead(DeadItem{
		Job: r.id, N: r.n, Queue: r.queue.name, Function: r.function,
		Position: job.Position{Lane: r.lane, Seq: r.pos}, Attempts: r.attempt,
		Accepted: time.Unix(0, r.accepted).UTC(), At: l.Now(), Reason: reason, Fault: fault,
	})
}

// promote makes delayed jobs waiting that the stamp's time has reached.
func (l *Ledger) promote() {
	for range maxPromotions {
		item, ok := l.jobs.due.Min()
		if !ok || item.at > l.now {
			return
		}
		next := *item.r
		l.queueUp(item.r, &next)
	}
}

// NextDue is when the next delayed job is due; ok is false if none is.
func (l *Ledger) NextDue() (at time.Time, ok bool) {
	item, ok := l.jobs.due.Min()
	return time.Unix(0, item.at), ok
}
