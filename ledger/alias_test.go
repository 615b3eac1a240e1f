package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

// guardedTest is a ledger with two lanes into which producers enqueue jobs with guards. It keeps
// the last decision only.
type guardedTest struct {
	*horizonTest
	accepted int64 // time of the last record, in Unix nanoseconds
}

func newGuardedTest(t *testing.T, level uint8) *guardedTest {
	g := &guardedTest{newLeveledTest(t, level), scriptStart.UnixNano()}
	g.decisions.max = 1
	return g
}

// enqueue ingests the record of a new call from a lane. Its function tells the record.
func (g *guardedTest) enqueue(lane uint8, n int, guards job.Guards) (job.Job, Decision) {
	g.Helper()
	g.accepted++
	j := job.Job{ID: jobID(n), Queue: "mail", Function: fmt.Sprint("f", n), Priority: job.DefaultPriority, Accepted: time.Unix(0, g.accepted), Guards: &guards}
	return j, g.copy(lane, j)
}

// copy ingests a record from a lane.
func (g *guardedTest) copy(lane uint8, j job.Job) Decision {
	g.Helper()
	j.Position = job.Position{Lane: lane, Seq: g.Lanes()[lane].Cursor + 1}
	ingested := g.applyIngest(&j)
	decision, ok := g.Decision(j.Position)
	if !ok || decision.Ingested != ingested {
		g.Fatalf("the record at %v is ingested as %d, the decision is %+v, %t", j.Position, ingested, decision, ok)
	}
	return decision
}

// start places the present dispatch of a job.
func (g *guardedTest) start(id job.ID) {
	g.Helper()
	view, _, _ := g.Find(id)
	g.apply(0, &Place{Placements: []Placement{{Job: id, N: view.Dispatches, Node: "n1", Incarnation: 1, Channel: "overhop/w1"}}})
}

// restore replaces the ledger by the one that its snapshot holds.
func (g *guardedTest) restore() {
	g.Helper()
	g.Ledger = decodedCopy(g.T, g.Ledger)
	g.decisions.max = 1
}

var (
	debounced   = job.Guards{Debounce: job.Guard{Key: job.GuardKey{'d'}, TTL: time.Second}}
	uniqueUntil = job.Guards{Unique: job.Guard{Key: job.GuardKey{'u'}, Until: job.UntilEnd}}
)

// TestAlias_Level checks that entries of an earlier level keep no ids of merged records, so
// that all members have the same state, and those of this level do.
func TestAlias_Level(t *testing.T) {
	for level, want := range map[uint8]Ingested{level8 - 1: IngestedDelayed, level8: IngestedKnown} {
		g := newGuardedTest(t, level)
		g.enqueue(0, 1, debounced)
		g.enqueue(0, 2, debounced)
		g.apply(time.Second)
		g.start(jobID(1))
		g.restore()
		if _, d := g.enqueue(1, 2, debounced); d.Ingested != want {
			t.Errorf("level %d: the repetition of a merged record is %+v, want %s", level, d, ingestedNames[want])
		}
	}
}

// TestAlias_Forgotten checks that the ids of records that became no jobs are kept until every lane
// was ingested for so long that no copy and no repetition is expected.
func TestAlias_Forgotten(t *testing.T) {
	g := newGuardedTest(t, Level)
	g.read(0, 1)
	g.enqueue(0, 1, debounced)
	g.enqueue(0, 2, debounced)
	g.enqueue(0, 3, uniqueUntil)
	g.enqueue(0, 4, uniqueUntil)
	g.apply(time.Minute)
	for id, used := range map[int]int{2: 1, 4: 3} {
		g.end(used)
		for range 26 {
			g.apply(time.Hour)
			g.read(0)
		}
		if a, ok := g.Alias(jobID(id)); !ok || a.Job != jobID(used) || a.Queue != "mail" || a.Holder != (id == 4) {
			t.Fatalf("while lane 1 is not read, the alias of %d is %+v, %t", id, a, ok)
		}
	}
	if _, ok := g.Alias(jobID(1)); ok {
		t.Error("the id of a job is an alias")
	}
	g.read(1)
	g.apply(0)
	for _, id := range []int{2, 4} {
		if _, known := g.Known(jobID(id)); known {
			t.Errorf("the id of %d is kept", id)
		}
		if _, ok := g.Alias(jobID(id)); ok {
			t.Errorf("the alias of %d is kept", id)
		}
	}
	if _, d := g.enqueue(1, 2, debounced); d.Ingested != IngestedDelayed {
		t.Errorf("a new record with the id is %+v", d)
	}
}

// TestAlias_Corrupt checks that a snapshot with aliases of ids that its ring does not have, or not
// in order, is refused.
func TestAlias_Corrupt(t *testing.T) {
	for offsets, valid := range map[[2]uint16]bool{{0, 1}: true, {1, 1}: false, {1, 0}: false, {0, 2}: false} {
		g := newGuardedTest(t, Level)
		for n := 1; n <= 3; n++ {
			g.enqueue(0, n, uniqueUntil)
		}
		aliases := g.jobs.forgotten.slabs[0].aliases
		aliases[0].offset, aliases[1].offset = offsets[0], offsets[1]
		if _, err := Decode(strings.NewReader(string(encoded(t, g.Ledger)))); (err == nil) != valid {
			t.Errorf("offsets %v: %v", offsets, err)
		}
	}
}

// TestAlias_Properties enqueues jobs with guards, and enqueues them again, from lanes that are
// late, while the jobs start, end, and are removed. Each record is decided once: a later one with
// its id gets the same job and changes nothing. A job that others were merged into
// has the content of the newest of them.
func TestAlias_Properties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		g := newGuardedTest(t, Level)
		var records []job.Job
		first := map[job.ID]Decision{}
		content := map[job.ID]string{} // functions of jobs
		decide := func(j job.Job, d Decision, again bool) {
			before, decided := first[j.ID]
			switch {
			case decided && again && before.Ingested == IngestedRateLimited && d.Ingested != IngestedRateLimited:
				r.Fatalf("a copy of %s, which was refused, is %+v", j.ID, d)
			case decided && before.Ingested != IngestedRateLimited:
				if d.Job != before.Job || d.Ingested == IngestedWaiting || d.Ingested == IngestedDelayed {
					r.Fatalf("%s was %+v, and is now %+v", j.ID, before, d)
				}
				return
			}
			first[j.ID] = d
			if d.Ingested == IngestedWaiting || d.Ingested == IngestedDelayed || d.Ingested == IngestedDebounced {
				content[d.Job] = j.Function
			}
		}
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			lane := uint8(rapid.IntRange(0, 1).Draw(r, "lane"))
			some := func() *job.Job { return &records[rapid.IntRange(0, len(records)-1).Draw(r, "record")] }
			switch step := rapid.IntRange(0, 8).Draw(r, "step"); {
			case len(records) == 0 || step < 3:
				j, d := g.enqueue(lane, len(records), rapid.SampledFrom([]job.Guards{
					debounced, uniqueUntil, {Unique: job.Guard{Key: job.GuardKey{'s'}, Until: job.UntilStart}},
					{Rate: job.Guard{Key: job.GuardKey{'r'}, TTL: 5 * time.Second}}, {Unique: job.Guard{Key: job.GuardKey{'t'}, TTL: 3 * time.Second}, Debounce: debounced.Debounce},
				}).Draw(r, "guards"))
				records = append(records, j)
				decide(j, d, false)
			case step == 3: // the call is repeated
				j := some()
				g.accepted++
				j.Accepted = time.Unix(0, g.accepted)
				decide(*j, g.copy(lane, *j), false)
			case step == 4:
				j := some()
				decide(*j, g.copy(lane, *j), true)
			case step == 5:
				g.start(some().ID)
			case step == 6:
				g.stamp.Index++
				g.Apply(g.stamp, []Command{rapid.SampledFrom([]Command{&CancelJob{Job: some().ID, Reason: "test"}, &RemoveJob{Job: some().ID}}).Draw(r, "command")})
			case step == 7:
				g.apply(rapid.SampledFrom([]time.Duration{time.Second, 4 * time.Second, time.Minute}).Draw(r, "pause"))
			default:
				g.restore()
			}
			for id, function := range content {
				if view, _, ok := g.Find(id); ok && view.Function != function {
					r.Fatalf("%s has the content of %s, want that of %s", id, view.Function, function)
				}
			}
		}
	})
}
