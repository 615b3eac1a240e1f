package sim

import (
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// clockChecker checks the times of entries, and those at which jobs start and end because time has
// passed. It knows how much time has passed, and what each wall clock shows.
type clockChecker struct {
	sim      *simulation
	merged   map[job.ID]bool // records that have replaced the content of a waiting job; copies change nothing
	last     ledger.Clock
	before   ledger.Clock  // last when the authority was acquired
	start    time.Time     // when the elapsed time would have been 0 by the bubble's clock
	jump     time.Duration // by which wall clocks have put the elapsed time ahead while all members were stopped
	lag      time.Duration // by which the elapsed time is behind, because hand-overs lost some
	behind   time.Duration // likewise, also while the authority does not know it yet
	byWall   time.Time     // start of the last tenure that went by wall clocks
	settled  time.Time     // when the last entry was made by an authority that knew the members' clocks
	made     time.Time     // when the last entry was made
	now      time.Time     // likewise the present one, and jump
	waits    map[job.ID]*wait
	expiries map[job.ID]*wait
	starts   map[job.ID]time.Time // run_at
}

// wait is a relative time that ends when at least as much time has passed.
type wait struct {
	what   string
	since  time.Time
	length time.Duration
	age    time.Duration // by which it may be shorter, because it began earlier by the wall clocks
	lag    time.Duration // of the elapsed time when it began
	lead   time.Duration // of the ledger's wall clock over the elapsed time, likewise
}

// Tolerances of the times.
const (
	clockTolerance = time.Millisecond
	waitTolerance  = 10 * time.Millisecond   // two heartbeats' usual travel: while lag is not measured again after a hand-over, it may be wrong by as much
	handlingTime   = 100 * time.Millisecond  // within which an authority has handled a heartbeat, and made an entry since
	handOverLoss   = 1500 * time.Millisecond // of elapsed time: what passes until the answer to a heartbeat arrives
	wallTolerance  = time.Second
	sampleAge      = 12 * time.Second        // how old the samples of a member's clock may be
	sampleDelay    = 11 * time.Second        // how late a heartbeat arrives at most; by as much its times are behind
	allHeardAfter  = 2500 * time.Millisecond // within which a new authority hears from all members that reach it
	keptWait       = 3 * time.Second         // for how long a majority waits for a member that has kept the elapsed time; the next heartbeat then decides
	overdueAfter   = 3 * time.Second
	freshRecord    = 25 * time.Second // how long a lane must have been unread for the age of its records to count
)

func newClockChecker(sim *simulation) *clockChecker {
	return &clockChecker{sim: sim, merged: map[job.ID]bool{}, waits: map[job.ID]*wait{}, expiries: map[job.ID]*wait{}, starts: map[job.ID]time.Time{}}
}

// checkStamp checks the times of an entry. It is called before the entry's commands and events are.
func (c *clockChecker) checkStamp(l *ledger.Ledger, e *logEntry) {
	at := l.Clock()
	switch {
	case at.Elapsed.Before(c.last.Elapsed):
		c.sim.fail("entry %d: the elapsed time goes back by %s", e.stamp.Index, c.last.Elapsed.Sub(at.Elapsed))
	case at.Now.Before(c.last.Now):
		c.sim.fail("entry %d: the ledger's time goes back by %s", e.stamp.Index, c.last.Now.Sub(at.Now))
	}
	acquires := false // by clocks of which the tenure knows no more than its own
	switch e.commands[0].(type) {
	case *ledger.Lead:
		acquires, c.before = true, c.last
		if shown, passed := at.Now.Sub(c.last.Now), e.made.Sub(c.made); !c.made.IsZero() && shown > passed+clockTolerance {
			c.sim.fail("entry %d: the ledger's time advances by %s, %s have passed", e.stamp.Index, shown, passed)
		}
	case *ledger.Bootstrap:
		acquires = true
	}
	if acquires || e.stamp.Epoch == l.Authority().Epoch {
		c.checkElapsed(e, acquires)
		c.checkWall(e, at.Wall, acquires)
	}
	c.last, c.made, c.now = at, e.made, e.made.Add(c.jump)
}

// checkElapsed checks that the elapsed time advances as time passes, no faster, and no slower apart
// from what a hand-over may lose. If no member has kept it, wall clocks may tell it.
func (c *clockChecker) checkElapsed(e *logEntry, acquires bool) {
	raw := e.stamp.At.Add(e.stamp.Offsets.Elapsed)
	if c.start.IsZero() {
		c.start = e.made.Add(-time.Duration(raw.UnixNano()))
	}
	lag := e.made.Add(c.jump).Sub(c.start) - time.Duration(raw.UnixNano())
	known := !acquires && e.heard.knewMedian(e.made)
	noneKept := known && !e.heard.elapsed && (e.heard.n == members || e.made.Sub(e.heard.since) > keptWait)
	decided := noneKept && (e.heard.n == members && e.made.Sub(e.heard.newest) > handlingTime || e.made.Sub(e.heard.since) > keptWait+allHeardAfter)
	switch {
	case noneKept && lag < c.lag-clockTolerance:
		c.checkByWall(fmt.Sprintf("entry %d", e.stamp.Index), e.made, raw)
		c.jump += c.lag - lag
		lag = c.lag
	case decided:
	case lag < max(-clockTolerance, c.lag-handOverLoss): // a member may have kept what an earlier hand-over lost
		c.sim.fail("entry %d: the elapsed time is %s ahead", e.stamp.Index, c.lag-lag)
	case known && e.heard.elapsed && lag > c.lag+handOverLoss+sampleDelay+c.sim.clocks.allSuspended():
		c.sim.fail("entry %d: the elapsed time is %s behind, it was %s", e.stamp.Index, lag, c.lag)
	}
	c.behind = lag
	if decided && c.byWall != e.heard.since {
		c.byWall = e.heard.since
		c.sim.report.Clocks.ToldByWall++
	}
	if decided || known && e.heard.elapsed {
		c.lag = lag
	}
}

// checkByWall checks an elapsed time that wall clocks have told.
func (c *clockChecker) checkByWall(what string, at, elapsed time.Time) {
	_, highest := c.sim.clocks.between(at.Add(-sampleAge))
	if byWall := at.Add(highest).Sub(c.before.Wall); elapsed.Sub(c.before.Elapsed) > byWall+wallTolerance {
		c.sim.fail("%s: the elapsed time advances by %s, by wall clocks %s have passed", what, elapsed.Sub(c.before.Elapsed), byWall)
	}
}

// onTold is called when an authority has told a member the elapsed time at a time. If wall clocks have
// told it, the member may keep it although no entry shows it.
func (c *clockChecker) onTold(proc *process, epoch uint64, at, elapsed time.Time) {
	lag := at.Add(c.jump).Sub(c.start) - time.Duration(elapsed.UnixNano())
	if proc.heard.elapsed || lag >= c.lag-clockTolerance {
		return
	}
	if epoch == proc.sim.checker.epoch {
		c.checkByWall(proc.id+" tells", at, elapsed)
	}
	c.jump += c.lag - lag
}

// checkWall checks that the ledger's wall clock is a median of those of the members. The authority knows
// it from the heartbeat of the member on that makes a majority. It goes by the best of three heartbeats
// of each member, and leaves a difference of half a second alone. A heartbeat that travels long shows a
// time that is behind by as much, so that the bounds are not the same to both sides.
func (c *clockChecker) checkWall(e *logEntry, wall time.Time, acquires bool) {
	if acquires || !e.heard.knewMedian(e.made) {
		return
	}
	c.settled = e.made
	lowest, highest := c.sim.clocks.between(e.made.Add(-sampleAge))
	switch ahead := wall.Sub(e.made); {
	case ahead > highest+wallTolerance:
		c.sim.fail("entry %d: its wall clock is %s ahead, the members' are at most %s", e.stamp.Index, ahead, highest)
	case ahead < lowest-wallTolerance-sampleDelay:
		c.sim.fail("entry %d: its wall clock is %s ahead, the members' are at least %s", e.stamp.Index, ahead, lowest)
	}
}

// wait returns a wait that begins now.
func (c *clockChecker) wait(what string, length, age time.Duration) *wait {
	return &wait{what: what, since: c.now, length: length, age: age, lag: c.lag, lead: c.last.Wall.Sub(c.last.Elapsed)}
}

// onIngested is called when a job was ingested into a lane that had been read to its end at a time.
func (c *clockChecker) onIngested(j *job.Job, became ledger.Ingested, holder job.ID, readUntil time.Time) {
	age := time.Duration(0)
	if unread := c.last.Elapsed.Sub(readUntil); unread >= freshRecord {
		age = unread
	}
	switch {
	case became == ledger.IngestedDebounced && c.merged[j.ID]:
	case became == ledger.IngestedDebounced:
		c.merged[j.ID] = true
		c.waits[holder] = c.wait("window", j.Guards.Debounce.TTL, 0)
	case became != ledger.IngestedWaiting && became != ledger.IngestedDelayed:
		return
	case j.Guards != nil && j.Guards.Debounce.IsSet():
		c.waits[j.ID] = c.wait("window", j.Guards.Debounce.TTL, 0)
	case j.Delay > 0:
		c.waits[j.ID] = c.wait("delay", j.Delay, age)
	case !j.RunAt.IsZero():
		c.starts[j.ID] = j.RunAt
	}
	if j.ExpiresIn > 0 && became != ledger.IngestedDebounced {
		c.expiries[j.ID] = c.wait("expiry", j.ExpiresIn, age)
	}
}

// onSettled is called when a dispatch has ended and its job waits for another.
func (c *clockChecker) onSettled(e *logEntry, s *ledger.Settlement) {
	if length := s.At.Sub(e.stamp.At); !s.At.IsZero() && length > 0 {
		c.waits[s.Job] = c.wait("wait before a retry", length, 0)
	}
}

// drop forgets the times of a job that does not wait for them any more.
func (c *clockChecker) drop(id job.ID) {
	delete(c.waits, id)
	delete(c.expiries, id)
	delete(c.starts, id)
}

// onEvent checks the times at which a job is queued and expires.
func (c *clockChecker) onEvent(l *ledger.Ledger, e *ledger.Event) {
	view, _, ok := l.Find(e.Job)
	switch {
	case !ok || view.State.Ended() && view.State != job.Expired:
		c.drop(e.Job)
	case e.Kind == ledger.DispatchFailed && view.State == job.Expired:
		if w := c.expiries[e.Job]; w != nil {
			c.sim.report.Clocks.Expiries++
			c.ended(e.Job, w)
		}
		c.drop(e.Job)
	case e.Kind == ledger.DispatchNotified && e.A != "none":
		c.drop(e.Job)
	case e.Kind == ledger.DispatchQueued && view.State != job.Expired:
		w := c.waits[e.Job]
		if w != nil && view.State == job.Delayed && w.since.Equal(c.now) {
			return // a record has replaced its content later in the same entry
		}
		if w != nil {
			c.ended(e.Job, w)
			delete(c.waits, e.Job)
		}
		if at, ok := c.starts[e.Job]; ok {
			c.started(e.Job, at)
			delete(c.starts, e.Job)
		}
	}
}

// ended checks a relative time that has ended.
func (c *clockChecker) ended(id job.ID, w *wait) {
	c.sim.report.Clocks.Waits++
	if (c.last.Wall.Sub(c.last.Elapsed) - w.lead).Abs() > wallTolerance {
		c.sim.report.Clocks.WaitsOverStep++
	}
	if early := w.since.Add(w.length - w.age).Sub(c.now); early > waitTolerance+min(max(0, w.lag-c.lag), handOverLoss) {
		c.sim.fail("the %s of %s ends %s before %s have passed", w.what, id, early, w.length)
	}
}

// started checks a wall-clock time that was reached.
func (c *clockChecker) started(id job.ID, at time.Time) {
	c.sim.report.Clocks.WallTimes++
	if c.settled.IsZero() {
		return // a new cluster goes by its first authority's clock until this one knows the others
	}
	made := c.now.Add(-c.jump)
	since := made
	if c.settled.Before(since) {
		since = c.settled
	}
	if _, highest := c.sim.clocks.between(since.Add(-sampleAge)); at.Sub(made) > highest+wallTolerance {
		c.sim.fail("job %s starts %s before its time", id, at.Sub(made)-highest)
	}
}

// checkOverdue checks that no job waits for a time that has come. It is called after the events of an
// entry.
func (c *clockChecker) checkOverdue(l *ledger.Ledger, e *logEntry) {
	if !e.heard.knewMedian(e.made) || !e.heard.elapsed || e.made.Sub(e.heard.since) < allHeardAfter {
		return
	}
	overdue := func(w *wait) bool { return c.now.Sub(w.since) > w.length+max(0, c.lag-w.lag)+overdueAfter }
	for id, w := range c.waits {
		if view, _, _ := l.Find(id); view.State == job.Delayed && overdue(w) {
			c.sim.fail("entry %d: job %s is delayed %s after its %s of %s has begun", e.stamp.Index, id, c.now.Sub(w.since), w.what, w.length)
		}
	}
	for id, w := range c.expiries {
		if view, _, _ := l.Find(id); (view.State == job.Delayed || view.State == job.Waiting) && view.Attempts == 0 && overdue(w) {
			c.sim.fail("entry %d: job %s waits %s after its %s of %s has begun", e.stamp.Index, id, c.now.Sub(w.since), w.what, w.length)
		}
	}
	lowest, _ := c.sim.clocks.between(e.made.Add(-sampleAge))
	for id, at := range c.starts {
		if view, _, _ := l.Find(id); view.State == job.Delayed && e.made.Add(lowest-sampleDelay).Sub(at) > overdueAfter {
			c.sim.fail("entry %d: job %s is delayed until %s, all wall clocks show more", e.stamp.Index, id, at)
		}
	}
}
