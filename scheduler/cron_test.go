package scheduler

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

func everySecond(name string) ledger.Cron {
	return ledger.Cron{Name: name, Times: "* * * * * *", Queue: "mail", Body: []byte(`{"function":"send"}`)}
}

func (y *yard) cron(name string) (v ledger.CronView) {
	y.raft.View(func(l *ledger.Ledger) { v, _ = l.Cron(name) })
	return v
}

func (y *yard) addCron(c ledger.Cron) {
	y.t.Helper()
	if r := y.do(&ledger.SetCron{Cron: c}); r.Err != nil {
		y.t.Fatal(r.Err)
	}
}

// ticked fails unless an entry ticked at each second from one to another, and
// each made one job. It gives their number.
func (y *yard) ticked(name string, from, to time.Time) (n int) {
	y.t.Helper()
	for at := from; !at.After(to); at = at.Add(time.Second) {
		if _, known := y.find(job.TickID(name, at)); !known {
			y.t.Errorf("%s did not tick at %s", name, at.Format(time.TimeOnly))
		}
		n++
	}
	jobs := 0
	y.raft.View(func(l *ledger.Ledger) {
		q, _ := l.Queue("mail")
		for _, k := range q.Counts {
			jobs += k
		}
	})
	if jobs != n {
		y.t.Errorf("%d ticks made %d jobs", n, jobs)
	}
	return n
}

func TestCron_Ticks(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		began := time.Now().Truncate(time.Second).Add(time.Second)
		y.addCron(everySecond("e"))
		y.pass(10 * time.Second)
		v := y.cron("e")
		if late := time.Now().Add(-1100 * time.Millisecond); v.Last.Before(late) {
			t.Errorf("last tick %s at %s", v.Last, time.Now())
		}
		if n := y.ticked("e", began, v.Last); n < 9 {
			t.Errorf("%d ticks in ten seconds", n)
		}
		y.lanes.set(func() {
			if stored := len(y.lanes.lanes[0].records); uint64(stored) != v.Fired {
				t.Errorf("%d records of %d ticks", stored, v.Fired)
			}
		})
	})
}

// TestCron_ChangeOfAuthority ends the tenure at every stage of a tick: whatever
// was on its way, each tick makes one job and none is left out.
func TestCron_ChangeOfAuthority(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		began := time.Now().Truncate(time.Second).Add(time.Second)
		y.addCron(everySecond("e"))
		for i := range 40 { // a tick is committed, published and folded within some milliseconds
			y.pass(time.Until(time.Now().Truncate(time.Second).Add(time.Second + time.Duration(i)*500*time.Microsecond)))
			if err := y.end(); err != nil {
				t.Fatal(err)
			}
			y.begin()
		}
		y.pass(3 * time.Second)
		v := y.cron("e")
		if n := y.ticked("e", began, v.Last); n < 40 || v.Overdue > 0 {
			t.Errorf("%d ticks, %d missed", n, v.Overdue)
		}
	})
}

func TestCron_LanesDown(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		began := time.Now().Truncate(time.Second).Add(time.Second)
		y.addCron(everySecond("e"))
		y.pass(2 * time.Second)
		y.lanes.set(func() { y.lanes.down = errors.New("no leader") })
		y.pass(10 * time.Second)
		y.lanes.set(func() { y.lanes.down = nil })
		y.pass(5 * time.Second)
		y.ticked("e", began, y.cron("e").Last)
	})
}

// TestCron_Missed leaves the yard without an authority for ten minutes. In a
// yard of three the first stamps are then far behind.
func TestCron_Missed(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		inYard(t, nodes, missed)
	}
}

func missed(y *yard) {
	for _, c := range []ledger.Cron{
		{Name: "made", Times: "0 * * * * *", Queue: "mail", Body: []byte(anyJob), CatchUp: true},
		{Name: "skipped", Times: "0 * * * * *", Queue: "mail", Body: []byte(anyJob)},
		{Name: "soon", Times: "3 * * * * *", Queue: "mail", Body: []byte(anyJob)},
		{Name: "often", Times: "* * * * * *", Queue: "mail", Body: []byte(anyJob)},
	} {
		y.addCron(c)
	}
	y.until("a tick", func() bool { return y.cron("made").Fired == 1 && y.cron("skipped").Fired == 1 })
	last, often := y.cron("made").Last, y.cron("often").Fired
	if err := y.end(); err != nil {
		y.t.Fatal(err)
	}
	silence := func(is bool) {
		for _, n := range y.fleet.nodes {
			n.look(func() { n.silent = is })
		}
	}
	silence(true)
	y.pass(10*time.Minute + 40*time.Second)
	y.begin()
	y.pass(time.Second)
	silence(false)
	y.pass(2 * time.Second)
	for name, want := range map[string]struct{ fired, missed uint64 }{"made": {2, 9}, "skipped": {1, 10}, "soon": {1, 11}} {
		v := y.cron(name)
		if v.Fired != want.fired || v.Overdue != want.missed {
			y.t.Errorf("%s: %d ticks, %d missed; want %+v", name, v.Fired, v.Overdue, want)
		}
		if want := last.Add(11 * time.Minute); name != "soon" && !v.Next.Equal(want) {
			y.t.Errorf("%s: next tick %s, want %s", name, v.Next, want)
		}
	}
	if _, known := y.find(job.TickID("made", last.Add(time.Minute))); !known {
		y.t.Error("nothing makes up for what was missed")
	}
	// The last half minute is not missed, it comes late.
	if v := y.cron("often"); v.Fired-often < 30 || v.Fired-often > 36 || v.Overdue < 600 {
		y.t.Errorf("of every second, %d ticks after the break, %d missed", v.Fired-often, v.Overdue)
	}
}

func TestCron_Overlap(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		alone := everySecond("alone")
		alone.Alone = true
		y.addCron(alone)
		y.until("a tick", func() bool { return y.cron("alone").Fired == 1 })
		y.pass(5 * time.Second)
		v := y.cron("alone")
		if v.Fired != 1 || v.Skipped < 4 {
			t.Fatalf("%d ticks, %d skipped beside a job that has not ended", v.Fired, v.Skipped)
		}
		if v.LeftFor != v.LastJob || time.Since(v.Left) > 1500*time.Millisecond {
			t.Errorf("the tick of %s was left out for %s, want the last second's for %s", v.Left, v.LeftFor, v.LastJob)
		}
		if r := y.do(&ledger.CancelJob{Job: v.LastJob}); r.Err != nil {
			t.Fatal(r.Err)
		}
		y.pass(1500 * time.Millisecond)
		if v := y.cron("alone"); v.Fired != 2 {
			t.Errorf("%d ticks after the job has ended", v.Fired)
		}
	})
}

func TestCron_PauseAndResume(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		y.addCron(everySecond("e"))
		y.until("a tick", func() bool { return y.cron("e").Fired == 2 })
		y.do(&ledger.PauseCron{Name: "e", Paused: true})
		y.pass(5 * time.Second)
		if v := y.cron("e"); v.Fired != 2 || !v.Next.IsZero() {
			t.Errorf("paused: %+v", v)
		}
		y.do(&ledger.PauseCron{Name: "e"})
		y.pass(2500 * time.Millisecond)
		if v := y.cron("e"); v.Fired < 4 || v.Fired > 5 || v.Overdue > 0 {
			t.Errorf("resumed: %+v", v)
		}
		y.do(&ledger.RemoveCron{Name: "e"})
		before := y.counts()
		y.pass(5 * time.Second)
		if after := y.counts(); after != before {
			t.Errorf("a removed entry ticks: %+v after %+v", after, before)
		}
		if r := y.do(&ledger.SetCron{Cron: ledger.Cron{Name: "bad", Times: "0 0 99 * * *", Queue: "mail"}}); r.Err == nil {
			t.Error("an entry that cannot be read was taken")
		}
	})
}

// TestCron_Reconcile changes the configuration between tenures: it is the truth
// for what it declares, and leaves callers' entries alone.
func TestCron_Reconcile(t *testing.T) {
	declared := func(name, times string) ledger.Cron {
		c := everySecond(name)
		c.Times, c.Declared = times, true
		return c
	}
	inYard(t, 3, func(y *yard) {
		y.addCron(everySecond("mine"))
		y.addCron(everySecond("both"))
		y.do(&ledger.PauseCron{Name: "b", Paused: true})
		for _, tenure := range []struct {
			crons []ledger.Cron
			want  string
		}{
			{[]ledger.Cron{declared("a", "@daily"), declared("b", "@hourly")}, "a @daily true, b @hourly true, both * * * * * * false, mine * * * * * * false, "},
			{[]ledger.Cron{declared("b", "@daily"), declared("both", "@hourly")}, "b @daily true, both @hourly true, mine * * * * * * false, "},
			{nil, "mine * * * * * * false, "},
		} {
			if err := y.end(); err != nil {
				t.Fatal(err)
			}
			y.sched.cfg.Crons = tenure.crons
			y.begin()
			y.pass(2 * time.Second) // until the members have said what time it is
			got := ""
			y.raft.View(func(l *ledger.Ledger) {
				l.Crons("", func(c ledger.CronView) bool {
					got += fmt.Sprintf("%s %s %t, ", c.Name, c.Times, c.Declared)
					if c.Next.IsZero() != c.Paused {
						t.Errorf("%s waits for %s", c.Name, c.Next)
					}
					return true
				})
			})
			if got != tenure.want {
				t.Errorf("%s, want %s", got, tenure.want)
			}
		}
	}, func(c *Config) { c.Crons = []ledger.Cron{declared("b", "@hourly")} })
}

// TestCron_ManyAtOnce: more entries than tick at once, all at one moment.
func TestCron_ManyAtOnce(t *testing.T) {
	const entries = 2000
	inYard(t, 3, func(y *yard) {
		for i := range entries {
			c := everySecond(fmt.Sprint("e", i))
			c.Times = "0 5 * * * *"
			y.sched.tenure().post(func() {
				m := y.sched.tenure()
				s := &ledger.SetCron{Cron: c}
				if err := m.planCron(s); err != nil {
					t.Error(err)
				}
				m.queue(s, nil)
			})
		}
		y.pass(2 * time.Second)
		y.pass(time.Until(y.cron("e0").Next) + 10*time.Second)
		if got := int(y.counts().Pending); got != entries {
			t.Errorf("%d jobs of %d entries", got, entries)
		}
	})
}
