package ledger

import (
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// ChangeJob changes when a waiting or delayed job starts, or its priority. A nil priority
// and zero times leave what they would change. A repeated command changes nothing and succeeds,
// except that a delay begins again.
type ChangeJob struct {
	Job      job.ID
	Priority *uint8    // 0 to 9; 9 starts first
	RunAt    time.Time // not before; a time that has passed means immediately
	Asked
	Delay time.Duration // not before this time from now; excludes RunAt
}

func (*ChangeJob) Kind() Kind { return KindChangeJob }

// Settings returns what the command changes as text, such as "priority=9 run_at=now".
func (c *ChangeJob) Settings() string { return c.settings(false) }

// settings is like Settings. If long is set, the delay has all its units: "5m0s" and not "5m".
func (c *ChangeJob) settings(long bool) string {
	var settings []string
	if c.Priority != nil {
		settings = append(settings, fmt.Sprintf("priority=%d", *c.Priority))
	}
	switch {
	case c.Delay > 0:
		settings = append(settings, "delay="+durationText(c.Delay, long))
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
	delayed := l.runLater(&next, c)
	if next.priority == old.priority && next.dueMoment() == old.dueMoment() {
		return Result{State: old.state}
	}
	if err := next.checkExpiry(&l.clocks); delayed && err != nil {
		return Result{Err: err, State: old.state}
	}
	l.act(c.By, "job.set", Event{Job: old.id, B: old.queue.name}, c.settings(l.longDurations()), nil)
	if delayed {
		l.extendKeys(&next, l.elapsedOf(next.dueMoment()))
	}
	if next.priority != old.priority {
		l.emitDetails(&next, "")
	}
	switch {
	case delayed:
		if old.state == job.Waiting {
			l.emitUnstartedFailure(old, failedDispatch{reason: reasonRescheduled, to: InState(job.Delayed), due: next.due})
		}
		next.state = job.Delayed
		l.store(old, &next)
	case old.state == job.Delayed && next.dueMoment() != old.dueMoment():
		l.enqueue(old, &next)
	default:
		l.store(old, &next)
	}
	return Result{State: next.state}
}

// reasonRescheduled is the reason of a dispatch that ended because its job is to start
// later.
const reasonRescheduled = "rescheduled: its job is to start later"

// runLater makes a waiting or delayed job due at the time in the command, and reports whether the
// job is to be delayed. A job that is due stays as it is if that time has passed.
func (l *Ledger) runLater(stored *storedJob, c *ChangeJob) (delayed bool) {
	isDue := stored.state == job.Waiting || l.passed(stored.dueMoment())
	switch m := l.wallMoment(max(c.RunAt.UnixNano(), 0)); {
	case c.Delay > 0:
		stored.runAt(l.after(c.Delay))
		return true
	case c.RunAt.IsZero():
		return !isDue
	case !l.passed(m):
		stored.runAt(m)
		return true
	case !isDue:
		stored.runAt(l.past(l.now))
	}
	return false
}

// runAt makes the job due at a moment, which is also when it is to run.
func (r *storedJob) runAt(m moment) {
	r.setDue(m)
	r.options.runAt = m.at
}

// extendKeys holds the unique keys of a job that is to start later at least until due, the
// elapsed time at which it is due, as when it was created.
func (g *guards) extendKeys(stored *storedJob, due int64) {
	if stored.flags&guarded == 0 {
		return
	}
	for _, held := range g.heldBy(stored.id) {
		if held.until < due {
			extended := *held
			extended.until = due
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
