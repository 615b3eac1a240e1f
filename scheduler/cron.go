package scheduler

import (
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/cronspec"
)

// Parameters of cron ticks.
const (
	// missedAfter is how late a tick may be. A later one counts as missed: there
	// was no authority when it was due.
	missedAfter      = 30 * time.Second
	maxTicksInFlight = 256
	maxMissed        = 1000        // missed ticks of an entry that are counted one by one
	tickRetryDelay   = time.Second // between two attempts to publish a tick's job
	moveRetryDelay   = time.Second // until next ticks are compared with their schedules again
)

// crons commits the ticks of cron entries and publishes their jobs. It belongs to the
// loop's goroutine. A tick takes two steps: an entry commits that it has come and when
// the next one is due, then its job is published under an id derived from the entry's
// name and the tick. A new authority publishes the job again, and the ledger makes one
// job of both.
type crons struct {
	loop     *eventLoop
	client   Lanes
	lanes    *lanes
	capacity *capacity

	clockKnown bool                            // the members' median time is known
	reconciled bool                            // reconcile has run
	moveAt     time.Time                       // when to compare the next ticks with their schedules, see moveTicks; zero: not
	dirty      bool                            // the entries or ticks may have changed
	nextTick   time.Time                       // when the next tick is due; zero: not known, or there is none
	inFlight   map[string]bool                 // names of entries whose tick is in flight
	published  map[job.ID]time.Time            // jobs of ticks that were published: when to publish again; zero: stored or in flight
	schedules  map[[2]string]cronspec.Schedule // parsed schedules, by expression and time zone
}

// scheduleOf returns an entry's parsed schedule.
func (cr *crons) scheduleOf(c *ledger.Cron) (cronspec.Schedule, error) {
	key := [2]string{c.Schedule, c.TimeZone}
	if t, ok := cr.schedules[key]; ok {
		return t, nil
	}
	t, err := cronspec.Parse(c.Schedule, c.TimeZone)
	if err == nil {
		if len(cr.schedules) >= ledger.MaxCrons {
			clear(cr.schedules) // some are of removed entries
		}
		cr.schedules[key] = t
	}
	return t, err
}

// setNextTick sets the time of the next tick in a caller's command that sets or resumes a
// cron entry; the ledger does not evaluate schedules. It ignores other commands. It
// returns an error if the schedule is invalid.
func (cr *crons) setNextTick(c ledger.Command) error {
	switch c := c.(type) {
	case *ledger.SetCron:
		schedule, err := cr.scheduleOf(&c.Cron)
		c.Next = time.Time{}
		if err == nil {
			c.Next = cr.nextTickOf(schedule, cr.entry(c.Cron.Name))
		}
		return err
	case *ledger.PauseCron:
		c.Next = time.Time{}
		existing := cr.entry(c.Name)
		if schedule, err := cr.scheduleOf(&existing.Cron); err == nil && !c.Paused {
			c.Next = cr.nextTickOf(schedule, existing)
		}
	}
	return nil
}

// entry returns the entry of the ledger with a name, the zero entry if there is none.
func (cr *crons) entry(name string) (entry ledger.CronView) {
	cr.loop.ledger.View(func(l *ledger.Ledger) { entry, _ = l.Cron(name) })
	return entry
}

// nextTickOf returns the next tick of an entry by a schedule: the first after the present time. After the
// clocks have been set back, this may be the last tick, which does not come again.
func (cr *crons) nextTickOf(schedule cronspec.Schedule, entry ledger.CronView) time.Time {
	next := schedule.After(cr.loop.clock.times().Wall)
	if next.Equal(entry.Last) {
		next = schedule.After(next)
	}
	return next
}

// reconcile submits the commands that make the ledger's declared cron entries
// equal to the configuration's. Entries set by callers stay, unless the
// configuration declares the same name.
func (cr *crons) reconcile(l *ledger.Ledger) {
	declared := map[string]bool{}
	for _, c := range cr.loop.cfg.Crons {
		declared[c.Name] = true
		existing, ok := l.Cron(c.Name)
		if ok && existing.Equal(&c) {
			continue
		}
		schedule, err := cr.scheduleOf(&c)
		if err != nil { // not expected: cronspec.Check has accepted the configuration
			cr.loop.log.Error("invalid schedule of declared cron entry", "entry", c.Name, "err", err)
			continue
		}
		cr.submitDeclared(c.Name, &ledger.SetCron{Cron: c, Replace: true, Next: cr.nextTickOf(schedule, existing)})
	}
	l.Crons("", func(c ledger.CronView) bool {
		if c.Declared && !declared[c.Name] {
			cr.submitDeclared(c.Name, &ledger.RemoveCron{Name: c.Name, Declared: true})
		}
		return true
	})
}

// submitDeclared submits a command about the declared cron entry with a name.
func (cr *crons) submitDeclared(name string, c ledger.Command) {
	cr.loop.submit(c, func(r ledger.Result, _ uint64) {
		cr.dirty = true
		if r.Err != nil {
			cr.loop.log.Error("declared cron entry refused by the ledger", "entry", name, "err", r.Err)
		}
	})
}

// moveTicks submits the commands that move the next ticks in the ledger to where the schedules
// have them. They differ if the clocks have been set back, or if another build has computed them, by
// other rules or with another database of time zones. A tick that is due stays. An entry
// whose tick is in flight, or whose last job is not stored yet, is compared later.
func (cr *crons) moveTicks(l *ledger.Ledger, now time.Time) {
	cr.moveAt = time.Time{}
	var moved []ledger.CronTick
	l.Crons("", func(c ledger.CronView) bool {
		schedule, err := cr.scheduleOf(&c.Cron)
		every := schedule.Interval()
		switch {
		case err != nil || !c.Next.After(now) || every > 0 && c.Next.Sub(now) <= every:
			return true
		case c.Publishing || cr.inFlight[c.Name]:
			cr.moveAt = time.Now().Add(moveRetryDelay)
			return true
		}
		if next := cr.nextTickOf(schedule, c); !next.Equal(c.Next) {
			cr.loop.log.Info("next tick of cron entry moved", "entry", c.Name, "from", c.Next, "to", next)
			cr.inFlight[c.Name] = true
			moved = append(moved, ledger.CronTick{Name: c.Name, Rev: c.Rev, At: c.Next, Next: next})
		}
		return true
	})
	for part := range slices.Chunk(moved, maxTicksInFlight) {
		cr.commit(&ledger.TickCrons{Ticks: part})
	}
}

// fireDue submits the ticks that are due, publishes the jobs of committed ticks, and
// returns the time until the next tick, or idleWait if there is none. Its first effective
// call also reconciles the declared entries and moves ticks that other builds have computed
// otherwise. It does nothing before the median of the members' clocks is known: after the whole
// cluster was down, the first stamps may be far behind, and missed ticks would seem to be due.
func (cr *crons) fireDue() time.Duration {
	now := cr.loop.clock.times().Wall
	if !cr.reconciled {
		if !cr.clockKnown && len(cr.capacity.members) > 1 {
			return idleWait
		}
		cr.reconciled = true
		cr.loop.ledger.View(func(l *ledger.Ledger) {
			cr.reconcile(l)
			cr.moveTicks(l, now)
		})
	}
	tickDue := !cr.nextTick.IsZero() && !cr.nextTick.After(now)
	if cr.dirty || tickDue {
		cr.dirty, cr.nextTick = false, time.Time{}
		if !cr.moveAt.IsZero() && !time.Now().Before(cr.moveAt) {
			cr.loop.ledger.View(func(l *ledger.Ledger) { cr.moveTicks(l, now) })
		}
		var due ledger.TickCrons
		var committed []ledger.Tick
		cr.loop.ledger.View(func(l *ledger.Ledger) {
			l.DueCrons(func(c ledger.CronView) bool {
				if c.Next.After(now) {
					cr.nextTick = c.Next
					return false
				}
				if len(cr.inFlight) >= maxTicksInFlight {
					return false // the others are handled when these are committed
				}
				if !cr.inFlight[c.Name] {
					cr.inFlight[c.Name] = true
					due.Ticks = append(due.Ticks, cr.tick(&c, now))
				}
				return true
			})
			committed = cr.takeUnpublished(l)
		})
		cr.commit(&due)
		for i := range committed {
			cr.publish(&committed[i])
		}
	}
	if cr.nextTick.IsZero() {
		return idleWait
	}
	return cr.nextTick.Sub(now)
}

// tick returns the tick of an entry that is due, with the time of the next one. If the
// tick is later than missedAfter, it is counted as missed, together with all later ticks
// that are; an entry with CatchUp makes one job for them.
func (cr *crons) tick(c *ledger.CronView, now time.Time) ledger.CronTick {
	tick := ledger.CronTick{Name: c.Name, Rev: c.Rev, At: c.Next, Fire: true}
	schedule, err := cr.scheduleOf(&c.Cron)
	if err != nil { // set by another release that accepts it
		cr.loop.log.Error("invalid schedule of cron entry, entry stopped", "entry", c.Name, "err", err)
		tick.Fire = false
		return tick
	}
	tick.Next = schedule.After(c.Next)
	overdue := now.Add(-missedAfter)
	if !c.Next.Before(overdue) {
		return tick
	}
	tick.Fire = c.CatchUp
	if !tick.Fire {
		tick.Missed = 1
	}
	nextOverdue := func() bool { return !tick.Next.IsZero() && tick.Next.Before(overdue) }
	for tick.Missed < maxMissed && nextOverdue() {
		tick.Missed++
		tick.Next = schedule.After(tick.Next)
	}
	if nextOverdue() { // too many to count
		tick.Next = schedule.After(overdue)
	}
	cr.loop.log.Warn("cron ticks missed", "entry", c.Name, "from", c.Next, "count", tick.Missed, "caught_up", tick.Fire)
	return tick
}

// commit submits the ticks, if there are any.
func (cr *crons) commit(c *ledger.TickCrons) {
	if len(c.Ticks) == 0 {
		return
	}
	cr.loop.submit(c, func(ledger.Result, uint64) {
		for i := range c.Ticks {
			delete(cr.inFlight, c.Ticks[i].Name)
		}
		cr.dirty = true
	})
}

// takeUnpublished returns, once, the committed ticks whose jobs are to be published now:
// those that this tenure has not published, and those whose publication failed and is to
// be retried. It rebuilds cr.published from the ticks in the ledger, which has dropped
// those whose jobs were ingested.
func (cr *crons) takeUnpublished(l *ledger.Ledger) (ticks []ledger.Tick) {
	now := time.Now()
	published := make(map[job.ID]time.Time)
	l.Ticks(func(t ledger.Tick) {
		retryAt, known := cr.published[t.Job]
		retryDue := !retryAt.IsZero() && !retryAt.After(now)
		if !known || retryDue {
			ticks = append(ticks, t)
			retryAt = time.Time{} // no retry, unless this publication fails
		}
		published[t.Job] = retryAt
	})
	cr.published = published
	return ticks
}

// publish appends the job of a tick to a lane, without waiting for the result. If that
// fails, the job is published again after tickRetryDelay.
func (cr *crons) publish(tick *ledger.Tick) {
	key := tick.Job.String()
	cr.client.Publish(tick.Queue, key, time.Now(), tick.Body, func(err error) {
		if err == nil {
			return
		}
		cr.loop.postReply(func() {
			cr.loop.log.Warn("cron job publish failed, retrying", "job", key, "queue", tick.Queue, "err", err)
			if _, pending := cr.published[tick.Job]; pending {
				cr.published[tick.Job] = time.Now().Add(tickRetryDelay)
			}
		})
	})
}
