package scheduler

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

func everySecond(name string) ledger.Cron {
	return ledger.Cron{Name: name, Schedule: "* * * * * *", Queue: "mail", Body: []byte(`{"function":"send"}`)}
}

func (h *harness) cron(name string) (v ledger.CronView) {
	h.raft.View(func(l *ledger.Ledger) { v, _ = l.Cron(name) })
	return v
}

func (h *harness) addCron(c ledger.Cron) {
	h.t.Helper()
	if r := h.propose(&ledger.SetCron{Cron: c}); r.Err != nil {
		h.t.Fatal(r.Err)
	}
}

// wantTicks checks that an entry ticked at each second of a range and each tick made
// one job. It returns the number of ticks.
func (h *harness) wantTicks(name string, from, to time.Time) (n int) {
	h.t.Helper()
	for at := from; !at.After(to); at = at.Add(time.Second) {
		if _, known := h.find(job.TickID(name, at)); !known {
			h.t.Errorf("%s did not tick at %s", name, at.Format(time.TimeOnly))
		}
		n++
	}
	jobs := 0
	h.raft.View(func(l *ledger.Ledger) {
		q, _ := l.Queue("mail")
		for _, k := range q.Counts {
			jobs += k
		}
	})
	if jobs != n {
		h.t.Errorf("%d ticks made %d jobs", n, jobs)
	}
	return n
}

func TestCron_Ticks(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		began := time.Now().Truncate(time.Second).Add(time.Second)
		h.addCron(everySecond("e"))
		h.advance(10 * time.Second)
		v := h.cron("e")
		if late := time.Now().Add(-1100 * time.Millisecond); v.Last.Before(late) {
			t.Errorf("last tick %s at %s", v.Last, time.Now())
		}
		if n := h.wantTicks("e", began, v.Last); n < 9 {
			t.Errorf("%d ticks in ten seconds", n)
		}
		h.lanes.set(func() {
			if stored := len(h.lanes.lanes[0].records); uint64(stored) != v.Fired {
				t.Errorf("%d records of %d ticks", stored, v.Fired)
			}
		})
	})
}

// TestCron_ChangeOfAuthority ends the tenure at every stage of a tick: each
// tick must make exactly one job.
func TestCron_ChangeOfAuthority(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		began := time.Now().Truncate(time.Second).Add(time.Second)
		h.addCron(everySecond("e"))
		for i := range 40 { // a tick is committed, published and ingested within some milliseconds
			h.advance(time.Until(time.Now().Truncate(time.Second).Add(time.Second + time.Duration(i)*500*time.Microsecond)))
			if err := h.end(); err != nil {
				t.Fatal(err)
			}
			h.begin()
		}
		h.advance(3 * time.Second)
		v := h.cron("e")
		if n := h.wantTicks("e", began, v.Last); n < 40 || v.Missed > 0 {
			t.Errorf("%d ticks, %d missed", n, v.Missed)
		}
	})
}

func TestCron_LanesDown(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		began := time.Now().Truncate(time.Second).Add(time.Second)
		h.addCron(everySecond("e"))
		h.advance(2 * time.Second)
		h.lanes.set(func() { h.lanes.down = errors.New("no leader") })
		h.advance(10 * time.Second)
		h.lanes.set(func() { h.lanes.down = nil })
		h.advance(5 * time.Second)
		h.wantTicks("e", began, h.cron("e").Last)
	})
}

// TestCron_Missed leaves the cluster without an authority for ten minutes. In
// a cluster of three the first stamps are then far behind.
func TestCron_Missed(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		runHarness(t, nodes, missed)
	}
}

func missed(h *harness) {
	for _, c := range []ledger.Cron{
		{Name: "made", Schedule: "0 * * * * *", Queue: "mail", Body: []byte(anyJob), CatchUp: true},
		{Name: "skipped", Schedule: "0 * * * * *", Queue: "mail", Body: []byte(anyJob)},
		{Name: "soon", Schedule: "3 * * * * *", Queue: "mail", Body: []byte(anyJob)},
		{Name: "often", Schedule: "* * * * * *", Queue: "mail", Body: []byte(anyJob)},
	} {
		h.addCron(c)
	}
	h.until("a tick", func() bool { return h.cron("made").Fired == 1 && h.cron("skipped").Fired == 1 })
	last, often := h.cron("made").Last, h.cron("often").Fired
	if err := h.end(); err != nil {
		h.t.Fatal(err)
	}
	silence := func(is bool) {
		for _, n := range h.fleet.nodes {
			n.do(func() { n.silent = is })
		}
	}
	silence(true)
	h.advance(10*time.Minute + 40*time.Second)
	h.begin()
	h.advance(time.Second)
	silence(false)
	h.advance(2 * time.Second)
	for name, want := range map[string]struct{ fired, missed uint64 }{"made": {2, 9}, "skipped": {1, 10}, "soon": {1, 11}} {
		v := h.cron(name)
		if v.Fired != want.fired || v.Missed != want.missed {
			h.t.Errorf("%s: %d ticks, %d missed; want %+v", name, v.Fired, v.Missed, want)
		}
		if want := last.Add(11 * time.Minute); name != "soon" && !v.Next.Equal(want) {
			h.t.Errorf("%s: next tick %s, want %s", name, v.Next, want)
		}
	}
	if _, known := h.find(job.TickID("made", last.Add(time.Minute))); !known {
		h.t.Error("no job was enqueued for the missed ticks")
	}
	// Ticks of the last 30 seconds are late and do not count as missed.
	if v := h.cron("often"); v.Fired-often < 30 || v.Fired-often > 36 || v.Missed < 600 {
		h.t.Errorf("of every second, %d ticks after the break, %d missed", v.Fired-often, v.Missed)
	}
}

func TestCron_Overlap(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		alone := everySecond("alone")
		alone.NoOverlap = true
		h.addCron(alone)
		h.until("a tick", func() bool { return h.cron("alone").Fired == 1 })
		h.advance(5 * time.Second)
		v := h.cron("alone")
		if v.Fired != 1 || v.Skipped < 4 {
			t.Fatalf("%d ticks, %d skipped while the previous job runs", v.Fired, v.Skipped)
		}
		if v.UnfiredFor != v.LastJob || time.Since(v.LastUnfired) > 1500*time.Millisecond {
			t.Errorf("the tick of %s was skipped because of %s, want the last second's because of %s", v.LastUnfired, v.UnfiredFor, v.LastJob)
		}
		if r := h.propose(&ledger.CancelJob{Job: v.LastJob}); r.Err != nil {
			t.Fatal(r.Err)
		}
		h.advance(1500 * time.Millisecond)
		if v := h.cron("alone"); v.Fired != 2 {
			t.Errorf("%d ticks after the job has ended", v.Fired)
		}
	})
}

func TestCron_PauseAndResume(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		h.addCron(everySecond("e"))
		h.until("a tick", func() bool { return h.cron("e").Fired == 2 })
		h.propose(&ledger.PauseCron{Name: "e", Paused: true})
		h.advance(5 * time.Second)
		if v := h.cron("e"); v.Fired != 2 || !v.Next.IsZero() {
			t.Errorf("paused: %+v", v)
		}
		h.propose(&ledger.PauseCron{Name: "e"})
		h.advance(2500 * time.Millisecond)
		if v := h.cron("e"); v.Fired < 4 || v.Fired > 5 || v.Missed > 0 {
			t.Errorf("resumed: %+v", v)
		}
		h.propose(&ledger.RemoveCron{Name: "e"})
		before := h.counts()
		h.advance(5 * time.Second)
		if after := h.counts(); after != before {
			t.Errorf("a removed entry ticks: %+v after %+v", after, before)
		}
		if r := h.propose(&ledger.SetCron{Cron: ledger.Cron{Name: "bad", Schedule: "0 0 99 * * *", Queue: "mail"}}); r.Err == nil {
			t.Error("an entry with an invalid schedule was accepted")
		}
	})
}

// TestCron_Reconcile changes the configuration between tenures: it determines
// the declared entries and leaves callers' entries alone.
func TestCron_Reconcile(t *testing.T) {
	declared := func(name, times string) ledger.Cron {
		c := everySecond(name)
		c.Schedule, c.Declared = times, true
		return c
	}
	runHarness(t, 3, func(h *harness) {
		h.addCron(everySecond("mine"))
		h.addCron(everySecond("both"))
		h.propose(&ledger.PauseCron{Name: "b", Paused: true})
		for _, tenure := range []struct {
			crons []ledger.Cron
			want  string
		}{
			{[]ledger.Cron{declared("a", "@daily"), declared("b", "@hourly")}, "a @daily true, b @hourly true, both * * * * * * false, mine * * * * * * false, "},
			{[]ledger.Cron{declared("b", "@daily"), declared("both", "@hourly")}, "b @daily true, both @hourly true, mine * * * * * * false, "},
			{nil, "mine * * * * * * false, "},
		} {
			if err := h.end(); err != nil {
				t.Fatal(err)
			}
			h.sched.cfg.Crons = tenure.crons
			h.begin()
			h.advance(2 * time.Second) // until the members' time is known
			got := ""
			h.raft.View(func(l *ledger.Ledger) {
				l.Crons("", func(c ledger.CronView) bool {
					got += fmt.Sprintf("%s %s %t, ", c.Name, c.Schedule, c.Declared)
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

// A new authority moves the next ticks that its schedules do not have, as an entry has them that
// an earlier build has computed by other rules, and ticks then.
func TestCron_MovesTicks(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		entry := func(name, schedule string, in time.Duration) {
			c := everySecond(name)
			c.Schedule, c.TimeZone = schedule, "Europe/Berlin"
			h.sched.current().loop.post(func() {
				h.sched.current().loop.submit(&ledger.SetCron{Cron: c, Next: time.Now().Truncate(time.Hour).Add(in)}, nil)
			})
		}
		const day = 24 * time.Hour
		entry("late", "0 1 * * * *", 800*day)
		entry("early", "0 30 2 * * *", 30*time.Second)
		entry("interval", "@every 1m", 50*time.Second)
		entry("right", "0 2 * * * *", 2*time.Minute)
		h.advance(time.Second)
		right := h.cron("right")
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
		h.begin()
		h.advance(2 * time.Second)
		midnight := time.Now().Truncate(day)
		for name, want := range map[string]time.Duration{"late": time.Minute, "early": 90 * time.Minute, "interval": 50 * time.Second, "right": 2 * time.Minute} {
			if v := h.cron(name); !v.Next.Equal(midnight.Add(want)) {
				t.Errorf("%s: next tick %s, want %s", name, v.Next, midnight.Add(want))
			}
		}
		if v := h.cron("right"); v.Rev != right.Rev || v.Missed+v.Skipped+v.Fired > 0 {
			t.Errorf("%+v, before %+v", v, right)
		}
		h.advance(2 * time.Minute)
		for name, want := range map[string]uint64{"late": 1, "early": 0, "interval": 2, "right": 1} {
			if v := h.cron(name); v.Fired != want || v.Missed > 0 {
				t.Errorf("%s: %d ticks, %d missed, want %d", name, v.Fired, v.Missed, want)
			}
		}
	})
}

// TestCron_ClocksSetBack sets clocks forward, lets entries tick, and sets the clocks back: entries must tick
// at the right times again at once, and no tick comes twice.
func TestCron_ClocksSetBack(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		daily, twice, every := everySecond("daily"), everySecond("twice"), everySecond("every")
		daily.Schedule, twice.Schedule, every.Schedule = "5 8 0 * * *", "10,40 * * * * *", "@every 10s"
		for _, c := range []ledger.Cron{everySecond("second"), daily, twice, every} {
			h.addCron(c)
		}
		h.advance(3 * time.Second)
		set := func(ahead time.Duration) {
			for _, n := range h.fleet.nodes {
				n.do(func() { n.clockOffset = ahead })
			}
		}
		eight := time.Now().Truncate(24 * time.Hour).Add(8*time.Minute + 5*time.Second)
		set(time.Until(eight) - 5*time.Second)
		h.until("the daily tick of fast clocks", func() bool { return h.cron("daily").Last.Equal(eight) })
		h.advance(10 * time.Second)
		last := h.cron("second").Last
		if ahead := time.Until(last); ahead < 5*time.Minute {
			t.Fatalf("with fast clocks, the last tick is only %s ahead", ahead)
		}
		set(0)
		h.advance(4 * time.Second)
		back := time.Now()
		wantNext := func(when string) {
			t.Helper()
			for name, longest := range map[string]time.Duration{"second": time.Second, "twice": 30 * time.Second, "every": 10 * time.Second} {
				if wait := time.Until(h.cron(name).Next); wait > longest {
					t.Errorf("%s: %s waits for %s", when, name, wait)
				}
			}
			if v := h.cron("daily"); !v.Next.Equal(eight.Add(24 * time.Hour)) {
				t.Errorf("%s: the daily entry waits for %s", when, v.Next)
			}
		}
		wantNext("set back")
		h.propose(&ledger.PauseCron{Name: "daily", Paused: true})
		h.propose(&ledger.PauseCron{Name: "daily"})
		daily.NoOverlap = true
		h.propose(&ledger.SetCron{Cron: daily, Replace: true})
		wantNext("resumed and changed")
		fired := h.cron("second").Fired
		h.advance(time.Until(last.Add(time.Minute)))
		wantNext("when the clocks show the same again")
		v := h.cron("second")
		again := uint64(last.Sub(back.Truncate(time.Second))/time.Second) + 60 - (v.Fired - fired)
		if again < 5 || again > 90 {
			t.Errorf("%d ticks came for the second time and had no effect", again)
		}
		total, jobs := 0, 0
		h.raft.View(func(l *ledger.Ledger) {
			q, _ := l.Queue("mail")
			for _, k := range q.Counts {
				jobs += k
			}
		})
		for _, name := range []string{"second", "daily", "twice", "every"} {
			total += int(h.cron(name).Fired)
		}
		if jobs != total {
			t.Errorf("%d ticks made %d jobs", total, jobs)
		}
	})
}

// When clocks are set, a missed tick is counted once, and a tick that is due then fires once, also
// if its last job has not ended.
func TestCron_ClocksAreSet(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		named := func(name string, catchUp, alone bool) ledger.Cron {
			return ledger.Cron{Name: name, Schedule: "0 30 2 * * *", TimeZone: "Europe/Berlin", Queue: "mail", Body: []byte(anyJob), CatchUp: catchUp, NoOverlap: alone}
		}
		// away leaves the yard without an authority until a time.
		away := func(until time.Time) {
			if err := h.end(); err != nil {
				t.Fatal(err)
			}
			for _, n := range h.fleet.nodes {
				n.do(func() { n.silent = true; n.beat.Stop() }) // without its ticks, months pass at once
			}
			h.advance(time.Until(until))
			for _, n := range h.fleet.nodes {
				n.do(func() { n.silent = false; n.beat.Reset(time.Second) })
			}
			h.begin()
			h.advance(2 * time.Second)
		}
		want := func(when, name string, fired, missed, skipped uint64, last time.Time) {
			t.Helper()
			if v := h.cron(name); v.Fired != fired || v.Missed != missed || v.Skipped != skipped || !v.Last.Equal(last) {
				t.Errorf("%s, %s: %d ticks, %d missed, %d skipped, last %s; want %d, %d, %d, %s", when, name, v.Fired, v.Missed, v.Skipped, v.Last, fired, missed, skipped, last)
			}
		}
		at := func(month time.Month, day, hour, minute int) time.Time {
			return time.Date(2000, month, day, hour, minute, 0, 0, time.UTC)
		}
		away(at(3, 25, 12, 0))
		h.addCron(named("forward", true, false))
		away(at(3, 26, 1, 0).Add(-5 * time.Second)) // 01:59:55 before the clock is set to 03:00
		h.advance(time.Minute)
		want("forward", "forward", 1, 0, 0, at(3, 26, 1, 0))
		away(at(3, 27, 0, 29)) // a day later, before 02:29
		h.advance(2 * time.Minute)
		want("the day after", "forward", 2, 0, 0, at(3, 27, 0, 30))
		h.propose(&ledger.RemoveCron{Name: "forward"})

		away(at(10, 28, 12, 0))
		for _, c := range []ledger.Cron{named("once", true, false), named("skip", false, false), named("alone", false, true)} {
			h.addCron(c)
		}
		away(at(10, 29, 1, 10)) // 02:10 for the second time: 02:30 was missed once, forty minutes ago
		want("back", "once", 1, 0, 0, at(10, 29, 0, 30))
		want("back", "skip", 0, 1, 0, time.Time{})
		h.advance(21 * time.Minute) // over 02:30 for the second time
		want("back again", "once", 1, 0, 0, at(10, 29, 0, 30))
		want("back again", "skip", 0, 1, 0, time.Time{})
		away(at(10, 30, 1, 29))
		h.advance(2 * time.Minute)
		want("the next day", "once", 2, 0, 0, at(10, 30, 1, 30))
		want("the next day", "skip", 1, 1, 0, at(10, 30, 1, 30))
		want("the next day", "alone", 1, 1, 0, at(10, 30, 1, 30))
		away(at(10, 31, 1, 29))
		h.advance(2 * time.Minute)
		want("overlapping", "alone", 1, 1, 1, at(10, 30, 1, 30))
	})
}

// TestCron_ManyAtOnce has more entries tick at the same time than may be in
// flight.
func TestCron_ManyAtOnce(t *testing.T) {
	const entries = 2000
	runHarness(t, 3, func(h *harness) {
		for i := range entries {
			c := everySecond(fmt.Sprint("e", i))
			c.Schedule = "0 5 * * * *"
			h.sched.current().loop.post(func() {
				tenure := h.sched.current()
				s := &ledger.SetCron{Cron: c}
				if err := tenure.crons.setNextTick(s); err != nil {
					t.Error(err)
				}
				tenure.loop.submit(s, nil)
			})
		}
		h.advance(2 * time.Second)
		h.advance(time.Until(h.cron("e0").Next) + 10*time.Second)
		if got := int(h.counts().Pending); got != entries {
			t.Errorf("%d jobs of %d entries", got, entries)
		}
	})
}
