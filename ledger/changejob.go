package ledger

import (
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// ChangeJob changes when a waiting or delayed job starts, or its priority. A nil priority
// and a zero time leave what they would change. A repeated command changes nothing and succeeds.
type ChangeJob struct {
	Job      job.ID
	Priority *uint8    // 0 to 9; 9 starts first
	RunAt    time.Time // not before; a time that has passed means immediately
	Asked
}

func (*ChangeJob) Kind() Kind { return KindChangeJob }

// Settings returns what the command changes as text, such as "priority=9 run_at=now".
func (c *ChangeJob) Settings() string {
	var settings []string
	if c.Priority != nil {
		settings = append(settings, fmt.Sprintf("priority=%d", *c.Priority))
	}
	switch {
	case c.RunAt.IsZero():
	case !c.RunAt.After(time.Unix(0, 0)):
		settings = append(settings, "run_at=now")
	default:
		settings = append(settings, "run_at="+FormatTime(c.RunAt))
	}
	return strings.Join(settings, " ")
}

// apply changes the job. The dispatch of a waiting job that is to start later ends as
// failed; its next one is queued when it is due.
func (c *ChangeJob) apply(l *Ledger) Result {
	old := l.jobs.find(c.Job)
	switch {
	case old == nil:
		return Result{Err: job.ErrJobNotFound}
	case old.state != job.Waiting && old.state != job.Delayed:
		return Result{Err: notChangeable(old.state), State: old.state}
	}
	next := *old
	if c.Priority != nil {
		next.priority = min(*c.Priority, job.MaxPriority)
	}
	if !c.RunAt.IsZero() {
		next.runAt(max(c.RunAt.UnixNano(), 0), l.now)
	}
	if next.priority == old.priority && next.due == old.due {
		return Result{State: old.state}
	}
	if err := next.checkExpiry(); err != nil {
		return Result{Err: err, State: old.state}
	}
	l.act(c.By, "job.set", Event{Job: old.id, B: old.queue.name}, c.Settings(), nil)
	l.extendKeys(&next)
	if next.priority != old.priority {
		l.emitDetails(&next, "")
	}
	switch {
	case next.due > l.now:
		if old.state == job.Waiting {
			l.emitUnstartedFailure(old, failedDispatch{reason: reasonRescheduled, to: InState(job.Delayed), due: next.due})
		}
		next.state = job.Delayed
		l.store(old, &next)
	case old.state == job.Delayed && next.due != old.due:
		l.enqueue(old, &next)
	default:
		l.store(old, &next)
	}
	return Result{State: next.state}
}

// reasonRescheduled is the reason of a dispatch that ended because its job is to start
// later.
const reasonRescheduled = "rescheduled: its job is to start later"

// runAt makes the job due at a time, in Unix nanoseconds. A job that is due stays as it is
// if the time has passed.
func (r *storedJob) runAt(at, now int64) {
	switch {
	case at > now:
	case r.due <= now:
		return
	default:
		at = now
	}
	r.setDue(at)
}

// setDue makes the job due at a time, in Unix nanoseconds, which is also the time at which
// it is to run.
func (r *storedJob) setDue(at int64) {
	r.due, r.options.runAt = at, at
}

// extendKeys holds the unique keys of a job that is to start later at least until it is
// due, as when it was created.
func (g *guards) extendKeys(stored *storedJob) {
	if stored.flags&guarded == 0 {
		return
	}
	for _, held := range g.heldBy(stored.id) {
		if held.until < stored.due {
			extended := *held
			extended.until = stored.due
			g.hold(&extended)
		}
	}
}

// notChangeable returns the error for a job in a state in which it cannot be changed.
func notChangeable(state job.State) error {
	remedy := map[job.State]string{
		job.Active:    "'yardmaster job cancel' stops it",
		job.Completed: "'yardmaster job replay' runs it again as a new job",
		job.Failed:    "'yardmaster job retry' lets it wait again",
		job.Cancelled: "'yardmaster job retry' lets it wait again",
		job.Expired:   "'yardmaster job retry' lets it wait again, without an expiry",
	}[state]
	return fmt.Errorf("the job is %s; %w; %s", state, job.ErrNotChangeable, remedy)
}
