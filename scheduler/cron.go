package scheduler

import (
	"fmt"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// How cron entries tick.
const (
	// overdueAfter is how late a tick may come: beyond it nobody held the
	// authority for so long that the tick counts as missed.
	overdueAfter  = 30 * time.Second
	ticksAtOnce   = 256         // in flight
	missedAtMost  = 1000        // missed ticks of an entry that are counted at a time
	tickAgainWait = time.Second // after a tick's job was not stored
)

// cronDesk is what a tenure knows of cron entries beyond the ledger. A tick
// goes two ways: the ledger commits that it has come and which is next, then
// its job is published under an id that name and tick give. Whoever takes over
// in between publishes it again, and the fold makes one job of it.
type cronDesk struct {
	timed   bool                    // the members have said what time it is
	begun   bool                    // the declared entries are reconciled
	look    bool                    // the entries may not be as they were
	due     time.Time               // of the next tick; zero: none
	ticking map[string]bool         // entries whose tick is in flight
	sent    map[job.ID]time.Time    // ticks' jobs: stored or under way (zero), or not before then
	times   map[[2]string]CronTimes // read so far, by expression and zone
}

func newCronDesk() cronDesk {
	return cronDesk{
		look: true, ticking: map[string]bool{}, sent: map[job.ID]time.Time{}, times: map[[2]string]CronTimes{},
	}
}

// follow looks again after a caller's command about cron entries.
func (d *cronDesk) follow(c ledger.Command) {
	switch c.Kind() {
	case ledger.KindSetCron, ledger.KindRemoveCron, ledger.KindPauseCron:
		d.look = true
	}
}

func (d *cronDesk) timesOf(c *ledger.Cron) (CronTimes, error) {
	key := [2]string{c.Times, c.Zone}
	if t, ok := d.times[key]; ok {
		return t, nil
	}
	t, err := ParseCron(c.Times, c.Zone)
	if err == nil {
		if len(d.times) >= ledger.MaxCrons {
			clear(d.times) // of entries that are gone
		}
		d.times[key] = t
	}
	return t, err
}

// planCron fills in what only the authority can say of a caller's command: the
// next tick, by the clock of its stamps.
func (m *mind) planCron(c ledger.Command) error {
	switch c := c.(type) {
	case *ledger.SetCron:
		times, err := m.crons.timesOf(&c.Cron)
		c.Next = time.Time{}
		if err == nil {
			c.Next = times.After(m.clock.now())
		}
		return err
	case *ledger.PauseCron:
		c.Next = time.Time{}
		var have ledger.CronView
		m.ledger().View(func(l *ledger.Ledger) { have, _ = l.Cron(c.Name) })
		if times, err := m.crons.timesOf(&have.Cron); err == nil && !c.Paused {
			c.Next = times.After(m.clock.now())
		}
	}
	return nil
}

// reconcileCrons brings the ledger's declared entries to what the
// configuration says. Entries of callers are left alone, unless one has a name
// that is declared.
func (m *mind) reconcileCrons(l *ledger.Ledger) {
	declared := map[string]bool{}
	for _, c := range m.cfg.Crons {
		declared[c.Name] = true
		if have, ok := l.Cron(c.Name); ok && have.Same(&c) {
			continue
		}
		times, err := m.crons.timesOf(&c)
		if err != nil { // the configuration was checked with the same code
			m.sched.log.Error("declared cron entry cannot be read", "entry", c.Name, "error", err)
			continue
		}
		m.declare(c.Name, &ledger.SetCron{Cron: c, Replace: true, Next: times.After(m.clock.now())})
	}
	l.Crons("", func(c ledger.CronView) bool {
		if c.Declared && !declared[c.Name] {
			m.declare(c.Name, &ledger.RemoveCron{Name: c.Name, Declared: true})
		}
		return true
	})
}

func (m *mind) declare(name string, c ledger.Command) {
	m.queue(c, func(r ledger.Result, _ uint64) {
		m.crons.look = true
		if r.Err != nil {
			m.sched.log.Error("declared cron entry is not as the configuration says", "entry", name, "error", r.Err)
		}
	})
}

// lookCrons commits the ticks that have come and publishes their jobs, and
// gives the time until the next. After the whole yard was away the first stamps
// may be far behind: nothing ticks by them, or what was missed would seem due.
func (m *mind) lookCrons() time.Duration {
	d, now := &m.crons, m.clock.now()
	if m.bringing != "" {
		return never
	}
	if !d.begun {
		if !d.timed && len(m.members) > 1 {
			return never
		}
		d.begun = true
		m.ledger().View(m.reconcileCrons)
	}
	if d.look || !d.due.IsZero() && !d.due.After(now) {
		d.look, d.due = false, time.Time{}
		var come ledger.TickCrons
		var jobs []ledger.Tick
		m.ledger().View(func(l *ledger.Ledger) {
			l.DueCrons(func(c ledger.CronView) bool {
				if c.Next.After(now) {
					d.due = c.Next
					return false
				}
				if len(d.ticking) >= ticksAtOnce {
					return false // the rest when these are committed
				}
				if !d.ticking[c.Name] {
					d.ticking[c.Name] = true
					come.Ticks = append(come.Ticks, m.tick(&c, now))
				}
				return true
			})
			jobs = d.unsent(l)
		})
		m.commitTicks(&come)
		for i := range jobs {
			m.publishTick(&jobs[i])
		}
	}
	if d.due.IsZero() {
		return never
	}
	return d.due.Sub(now)
}

// tick is an entry's tick that has come, with what follows. If it is long past,
// it and all others that are count as missed.
func (m *mind) tick(c *ledger.CronView, now time.Time) ledger.CronTick {
	t := ledger.CronTick{Name: c.Name, Rev: c.Rev, At: c.Next, Fire: true}
	times, err := m.crons.timesOf(&c.Cron)
	if err != nil { // another release could read it
		m.sched.log.Error("cron entry cannot be read and stands still", "entry", c.Name, "error", err)
		t.Fire = false
		return t
	}
	t.Next = times.After(c.Next)
	overdue := now.Add(-overdueAfter)
	if !c.Next.Before(overdue) {
		return t
	}
	if t.Fire = c.CatchUp; !t.Fire {
		t.Missed = 1
	}
	for ; t.Missed < missedAtMost && !t.Next.IsZero() && t.Next.Before(overdue); t.Missed++ {
		t.Next = times.After(t.Next)
	}
	if !t.Next.IsZero() && t.Next.Before(overdue) { // too many to count
		t.Next = times.After(overdue)
	}
	m.sched.log.Warn("cron entry's ticks were missed", "entry", c.Name, "from", c.Next, "missed", t.Missed, "made_up_for", t.Fire)
	return t
}

func (m *mind) commitTicks(c *ledger.TickCrons) {
	if len(c.Ticks) == 0 {
		return
	}
	m.queue(c, func(ledger.Result, uint64) {
		for i := range c.Ticks {
			delete(m.crons.ticking, c.Ticks[i].Name)
		}
		m.crons.look = true
	})
}

// unsent gives the ticks' jobs that are to be published now, and forgets what
// has been folded.
func (d *cronDesk) unsent(l *ledger.Ledger) (jobs []ledger.Tick) {
	now, still := time.Now(), make(map[job.ID]time.Time)
	l.Ticks(func(t ledger.Tick) {
		again, known := d.sent[t.Job]
		if !known || !again.IsZero() && !again.After(now) {
			jobs = append(jobs, t)
			again = time.Time{}
		}
		still[t.Job] = again
	})
	d.sent = still
	return jobs
}

// publishTick stores the job of a tick. The record is heard of at once, as one
// that a node has taken in.
func (m *mind) publishTick(t *ledger.Tick) {
	at, key := time.Now(), t.Job.String()
	m.sched.lanes.Publish(t.Queue, key, at, t.Body, func(p job.Position, fresh bool, err error) {
		m.postAside(func() {
			switch {
			case err != nil:
				m.sched.log.Warn("cron entry's job is not stored yet", "job", key, "queue", t.Queue, "error", err)
				if _, waits := m.crons.sent[t.Job]; waits {
					m.crons.sent[t.Job] = time.Now().Add(tickAgainWait)
				}
			case fresh && int(p.Lane) < len(m.lanes):
				lane := m.lanes[p.Lane]
				record := job.Record{Position: p, Queue: t.Queue, Key: key, Stored: at, Body: t.Body}
				m.hear(lane, judge([]job.Record{record}, lane.identity, m.cfg.Defaults))
			}
		})
	})
}

// CheckCron refuses an entry that could not tick or make a job, with a
// [*job.InvalidError] that names the field.
func CheckCron(c *ledger.Cron) error {
	if _, err := ParseCron(c.Times, c.Zone); err != nil {
		return err
	}
	if err := job.ValidQueue(c.Name); err != nil {
		return &job.InvalidError{Reason: fmt.Sprintf("name %q: must be 1 to %d letters, digits, '_' and '-', a letter or digit first", c.Name, job.MaxQueueLen)}
	}
	if err := job.ValidQueue(c.Queue); err != nil {
		return &job.InvalidError{Reason: "queue: " + err.Error()}
	}
	if len(c.Body) > ledger.MaxCronBody {
		return &job.InvalidError{Reason: fmt.Sprintf("job has %d bytes; a cron entry's at most %d: store what is larger elsewhere and name it in params", len(c.Body), ledger.MaxCronBody)}
	}
	spec, err := job.ParseSpec(c.Body)
	switch {
	case err != nil:
		return err
	case spec.Deferred():
		return &job.InvalidError{Reason: "run_at, delay_ms: a cron entry's schedule says when its jobs run"}
	case spec.Blob != nil:
		return &job.InvalidError{Reason: "blob is written by nodes; send the body itself"}
	case spec.Guarded():
		return &job.InvalidError{Reason: "a cron entry's job has no unique, rate limit or debounce key; overlap \"skip\" keeps its jobs apart"}
	}
	return nil
}
