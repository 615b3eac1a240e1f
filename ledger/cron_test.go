package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

// cron parses the commands about cron entries.
func (s *script) cron(verb string, words []string) Command {
	name, at, _ := strings.Cut(words[0], "@")
	var next time.Time
	if text := option(words, "next"); text != "" {
		next = s.time(text)
	}
	set := func(key string) bool { return option(words, key) == "y" }
	switch verb {
	case "remove-cron":
		return &RemoveCron{Name: name, Declared: set("declared")}
	case "pause-cron":
		return &PauseCron{Name: name, Paused: true}
	case "resume-cron":
		return &PauseCron{Name: name, Next: next}
	case "tick":
		s.id(words[0])
		t := CronTick{Name: name, Rev: s.number(option(words, "rev")), At: s.time(at), Next: next, Fire: !set("no-job")}
		if missed := option(words, "missed"); missed != "" {
			t.Missed = uint32(s.number(missed))
		}
		return &TickCrons{Ticks: []CronTick{t}}
	}
	c := Cron{
		Name: name, Schedule: words[1], Queue: "mail", Body: []byte(`{"function":"send"}`),
		CatchUp: set("catchup"), NoOverlap: set("no-overlap"), Declared: set("declared"),
	}
	if queue := option(words, "queue"); queue != "" {
		c.Queue = queue
	}
	return &SetCron{Cron: c, Replace: set("replace"), Next: next}
}

// crons writes the entries, and the jobs of ticks that are in no lane yet.
func (s *script) crons() {
	since := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return t.Sub(scriptStart).String()
	}
	s.ledger.Crons("", func(c CronView) bool {
		fmt.Fprintf(&s.out, "%s %s of %s rev %d paused %t next %s last %s fired %d skipped %d missed %d", c.Name, c.Schedule, c.Queue,
			c.Rev, c.Paused, since(c.Next), since(c.Last), c.Fired, c.Skipped, c.Missed)
		if c.Publishing {
			fmt.Fprintf(&s.out, " publishing %s", c.LastJob)
		}
		if !c.LastUnfired.IsZero() {
			fmt.Fprintf(&s.out, " unfired %s for %s", since(c.LastUnfired), c.UnfiredFor)
		}
		fmt.Fprintln(&s.out)
		return true
	})
	s.ledger.DueCrons(func(c CronView) bool {
		fmt.Fprintln(&s.out, "due:", c.Name, since(c.Next))
		return true
	})
}

// cron draws a command about one of a few entries. Ticks are mostly those that are
// due, as an authority would propose them.
func (g *generator) cron(t *rapid.T) Command {
	name := rapid.SampledFrom([]string{"e1", "e2", "e3", "bad name"}).Draw(t, "entry")
	next := g.at.At.Add(time.Duration(rapid.IntRange(1, 5).Draw(t, "next")) * time.Second)
	switch rapid.IntRange(0, 9).Draw(t, "about an entry") {
	case 0:
		return &RemoveCron{Name: name, Declared: rapid.Bool().Draw(t, "declared")}
	case 1:
		return &PauseCron{Name: name, Paused: rapid.Bool().Draw(t, "paused"), Next: next}
	case 2, 3, 4:
		return &SetCron{Next: next, Replace: rapid.Bool().Draw(t, "replace"), Cron: Cron{
			Name: name, Schedule: fmt.Sprint(rapid.IntRange(1, 2).Draw(t, "times")), Queue: "mail", Body: []byte(`{"function":"send"}`),
			NoOverlap: rapid.Bool().Draw(t, "alone"), Declared: rapid.IntRange(0, 5).Draw(t, "declared") == 0,
		}}
	}
	c := &TickCrons{}
	g.ledger.DueCrons(func(v CronView) bool {
		rev := v.Rev - uint64(rapid.SampledFrom([]int{0, 0, 0, 0, 1}).Draw(t, "old"))
		c.Ticks = append(c.Ticks, CronTick{
			Name: v.Name, Rev: rev, At: v.Next, Next: v.Next.Add(time.Duration(rapid.IntRange(-1, 4).Draw(t, "step")) * time.Second),
			Fire: rapid.IntRange(0, 3).Draw(t, "fire") > 0, Missed: uint32(rapid.IntRange(0, 2).Draw(t, "missed")),
		})
		return true
	})
	return c
}

// checkCrons compares the indexes of cron entries with the entries.
func checkCrons(l *Ledger) (err error) {
	waiting, publishing := 0, 0
	l.crons.byName.Scan(func(name string, c *cron) bool {
		waits := c.waits()
		at, found := l.crons.byTime.Get(c)
		switch {
		case name != c.Name:
			err = fmt.Errorf("entry %s is indexed as %s", c.Name, name)
		case waits && (!found || at != c):
			err = fmt.Errorf("entry %s waits for %s and is not in byTime", name, c.Next)
		case c.Paused && waits:
			err = fmt.Errorf("entry %s is paused and waits for %s", name, c.Next)
		case c.tick != nil && (l.crons.ticks[c.tick.Job] != c || c.tick.Job != job.TickID(name, c.Last)):
			err = fmt.Errorf("entry %s: tick %s is not indexed, or is of another entry", name, c.tick.Job)
		}
		if waits {
			waiting++
		}
		if c.tick != nil {
			publishing++
		}
		return err == nil
	})
	if err == nil && (waiting != l.crons.byTime.Len() || publishing != len(l.crons.ticks)) {
		err = fmt.Errorf("%d entries wait, %d in byTime; %d publish, %d in ticks", waiting, l.crons.byTime.Len(), publishing, len(l.crons.ticks))
	}
	return err
}

// TestCron_TicksOnce has several authorities, unaware of each other, propose the
// same ticks repeatedly, late and in any order, and ingests what they publish any
// number of times. Each tick must be applied once, and none skipped.
func TestCron_TicksOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, at := New(), Stamp{Term: 1, At: scriptStart}
		apply := func(cmds ...Command) []Result {
			at.Index++
			at.Epoch = l.Authority().Epoch
			return l.Apply(at, cmds)
		}
		apply(&Lead{Owner: "n1", Until: at.At.Add(time.Hour)})
		apply(&Bootstrap{Secret: []byte{1}, Lanes: []string{"L0"}})
		apply(&SetCron{Cron: Cron{Name: "e", Schedule: "x", Queue: "mail", Body: []byte(`{}`)}, Next: at.At.Add(time.Second)})
		var proposed []CronTick
		var published []job.ID
		seq, fired := uint64(0), uint64(0)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0: // an authority sees what is due
				l.DueCrons(func(v CronView) bool {
					proposed = append(proposed, CronTick{Name: v.Name, Rev: v.Rev, At: v.Next, Next: v.Next.Add(time.Second), Fire: true})
					return true
				})
			case 1:
				if len(proposed) > 0 {
					apply(&TickCrons{Ticks: []CronTick{rapid.SampledFrom(proposed).Draw(t, "proposed")}})
				}
			case 2:
				l.Ticks(func(tick Tick) { published = append(published, tick.Job) })
			case 3:
				if len(published) > 0 {
					seq++
					apply(&Ingest{Identity: "L0", From: seq - 1, To: seq, CreateQueues: true, Jobs: []job.Job{{
						ID: rapid.SampledFrom(published).Draw(t, "published"), Queue: "mail", Position: job.Position{Seq: seq}, Accepted: at.At,
					}}})
				}
			}
			v, _ := l.Cron("e")
			if v.Fired < fired || v.Fired > fired+1 {
				t.Fatalf("%d ticks applied, after %d", v.Fired, fired)
			}
			fired = v.Fired
			if want := scriptStart.Add(time.Duration(fired) * time.Second); fired > 0 && !v.Last.Equal(want) {
				t.Fatalf("tick %d is %s, want %s", fired, v.Last, want)
			}
			q, _ := l.Queue("mail")
			jobs, publishing := uint64(q.Counts[job.Waiting]), uint64(len(l.crons.ticks))
			if jobs+publishing != fired {
				t.Fatalf("%d ticks created %d jobs, %d are being published", fired, jobs, publishing)
			}
		}
	})
}

func TestCron_Bound(t *testing.T) {
	l, stamp := New(), stampAt(1, 0, 0)
	set := func(i int) error {
		c := &SetCron{Cron: Cron{Name: fmt.Sprint("e", i), Queue: "mail"}}
		return l.Apply(stamp, []Command{c})[0].Err
	}
	for i := range MaxCrons {
		if err := set(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := set(MaxCrons); err != ErrTooManyCrons {
		t.Errorf("one entry too many: %v", err)
	}
	if err := set(0); err != nil {
		t.Errorf("existing entry: %v", err)
	}
}

// In entries of an earlier build, a tick that neither creates a job nor was missed ended an entry
// whose next tick was not after it.
func TestTickCrons_EarlierLevel(t *testing.T) {
	for level, want := range map[uint8]time.Time{7: {}, level8: scriptStart.Add(time.Minute)} {
		l, at := New(), stampAt(1, 0, 0)
		l.Apply(at, []Command{&Lead{Owner: "n1", Until: scriptStart.Add(time.Hour), Level: level}})
		at.Epoch = l.Authority().Epoch
		at.Index = 2
		tick := CronTick{Name: "e", Rev: 2, At: scriptStart.Add(time.Hour), Next: scriptStart.Add(time.Minute)}
		l.Apply(at, []Command{&SetCron{Cron: Cron{Name: "e", Queue: "mail"}, Next: tick.At}, &TickCrons{Ticks: []CronTick{tick}}})
		if v, ok := l.Cron("e"); !ok || !v.Next.Equal(want) {
			t.Errorf("level %d: next tick %s, want %s", level, v.Next, want)
		}
	}
}
