package series

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// event is a transition that a test keeps, to count it again.
type event struct {
	at int64
	t  ledger.Transition
}

var epoch = time.Date(2026, 11, 27, 10, 3, 7, 0, time.UTC)

// randomTransition returns a transition at a time of a life that a job may have.
func randomTransition(r *rand.Rand, queues, errors int, now int64) ledger.Transition {
	t := ledger.Transition{Queue: fmt.Sprintf("q%d", r.IntN(queues))}
	long := int64(1) << (14 + r.IntN(28)) // 16 µs to an hour
	long += r.Int64N(long)
	fault := func() string { return fmt.Sprintf("E%d", r.IntN(errors)) }
	switch r.IntN(9) {
	case 0, 1:
		t.After = job.Waiting
	case 2, 3:
		t.Before, t.After, t.Attempt, t.Due = job.Waiting, job.Active, 1+uint32(r.IntN(2)), now-long
		t.Redelivered = r.IntN(8) == 0
	case 4:
		t.Before, t.After, t.Started = job.Active, job.Completed, now-long
	case 5:
		t.Before, t.After, t.Started, t.Error = job.Active, job.Delayed, now-long, fault()
		t.GivenBack = r.IntN(4) == 0
	case 6:
		t.Before, t.After, t.Started, t.Error = job.Active, job.Failed, now-long, fault()
	case 7:
		t.Before, t.After, t.Error = []job.State{job.New, job.Waiting}[r.IntN(2)], job.Failed, "rejected"
	case 8:
		t.Before, t.After = job.Waiting, []job.State{job.Cancelled, job.Expired}[r.IntN(2)]
	}
	return t
}

// history returns random entries, and what they did.
func history(r *rand.Rand, entries, queues, errors int) (list []Entry, all []event) {
	now, index := epoch, uint64(r.IntN(1000)+1)
	for range entries {
		index += 1 + r.Uint64N(3)
		switch r.IntN(40) {
		case 0:
			now = now.Add(time.Duration(r.Int64N(int64(40 * time.Minute))))
		case 1:
			now = now.Add(time.Duration(r.Int64N(int64(3 * time.Hour))))
		default:
			now = now.Add(time.Duration(r.Int64N(int64(5 * time.Second))))
		}
		e := Entry{Index: index, At: now}
		for range r.IntN(5) {
			t := randomTransition(r, queues, errors, now.UnixNano())
			e.Transitions = append(e.Transitions, t)
			all = append(all, event{now.UnixNano(), t})
		}
		list = append(list, e)
	}
	return list, all
}

// counted is what a test counts without a series.
type counted struct {
	counts    Counts
	wait, run []int64
	failures  map[string]uint64
}

// count counts events of a queue, "" for all, from a time until before another one.
func count(all []event, queue string, from, to int64) (c counted) {
	c.failures = make(map[string]uint64)
	for _, e := range all {
		if e.at < from || e.at >= to || queue != "" && e.t.Queue != queue {
			continue
		}
		fails := func(kind int) { c.counts[kind]++; c.failures[e.t.Error]++ }
		if e.t.Before == job.New {
			c.counts[Accepted]++
		}
		switch {
		case e.t.After == job.Active:
			if c.counts[Started]++; e.t.Attempt == 1 && !e.t.Redelivered {
				c.wait = append(c.wait, e.at-e.t.Due)
			}
		case e.t.After == job.Completed:
			c.counts[Completed]++
		case e.t.After == job.Failed:
			fails(Failed)
		case e.t.After == job.Cancelled:
			c.counts[Cancelled]++
		case e.t.After == job.Expired:
			c.counts[Expired]++
		case e.t.GivenBack:
			c.counts[Returned]++
		case e.t.Before == job.Active:
			fails(Retried)
		}
		if e.t.Before == job.Active && !e.t.GivenBack {
			c.run = append(c.run, e.at-e.t.Started)
		}
	}
	return c
}

// check compares statistics with what a test has counted.
func (c *counted) check(t *testing.T, what string, s Stats) {
	t.Helper()
	if s.Counts != c.counts {
		t.Fatalf("%s: counts %v, want %v", what, s.Counts, c.counts)
	}
	checkQuantiles(t, what+" wait", s.Wait, c.wait)
	checkQuantiles(t, what+" run", s.Run, c.run)
}

func checkQuantiles(t *testing.T, what string, q Quantiles, exact []int64) {
	t.Helper()
	if q.Count != uint64(len(exact)) {
		t.Fatalf("%s: %d durations, want %d", what, q.Count, len(exact))
	}
	if len(exact) == 0 {
		return
	}
	slices.Sort(exact)
	for rank, got := range map[int]time.Duration{(len(exact) + 1) / 2: q.P50, len(exact) - len(exact)/100: q.P99} {
		want := time.Duration(exact[rank-1])
		if diff := (got - want).Abs(); diff > want*33/1000+time.Microsecond {
			t.Fatalf("%s: rank %d of %d is %v, want %v", what, rank, len(exact), got, want)
		}
	}
}

// TestSeries compares series with what is counted by hand, for random histories: also after parts
// were encoded, decoded and applied again.
func TestSeries(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		entries, all := history(r, 200+r.IntN(3000), 5, 6)
		s := New()
		for i := range entries {
			s.Apply(&entries[i])
			if r.IntN(300) > 0 {
				continue
			}
			decoded, err := Decode(s.Encode())
			if err != nil {
				t.Fatal(err)
			}
			s = decoded
			for again := max(0, i-20); again <= i; again++ {
				s.Apply(&entries[again])
			}
		}
		last := entries[len(entries)-1].At
		until := last.Add(time.Duration(r.Int64N(int64(time.Minute))))
		for _, window := range []time.Duration{15 * time.Minute, time.Hour, 24 * time.Hour} {
			for _, queue := range []string{"", "q1"} {
				checkView(t, fmt.Sprintf("seed %d, window %v of %q", seed, window, queue), s.Clone().Read(window, queue, until), all, queue, until)
			}
		}
	}
}

// checkView compares a view with the events.
func checkView(t *testing.T, what string, v *View, all []event, queue string, until time.Time) {
	t.Helper()
	known := 0
	for i := range v.Points {
		from := v.Start.Add(time.Duration(i) * v.Step)
		p := &v.Points[i]
		wanted := count(all, queue, from.UnixNano(), from.Add(v.Step).UnixNano())
		wantKnown := from.Add(v.Step).After(epoch) && (!from.Add(v.Step).After(v.At) || until.Sub(v.At) < 10*time.Second)
		if p.Known != wantKnown {
			t.Fatalf("%s: the point at %v is known: %v, want %v", what, from, p.Known, wantKnown)
		}
		if p.Known {
			known++
			wanted.check(t, fmt.Sprintf("%s: point at %v", what, from), p.Stats)
		}
	}
	if len(v.Points) == 0 || v.Start.Add(time.Duration(len(v.Points))*v.Step).After(until) {
		t.Fatalf("%s: %d points from %v, step %v", what, len(v.Points), v.Start, v.Step)
	}
	minute := until.Truncate(time.Minute)
	span := time.Duration(len(v.Points)) * v.Step
	from, to := minute.Add(-span).UnixNano(), minute.Add(time.Minute).UnixNano()
	total := count(all, queue, from, to)
	total.check(t, what+": total", v.Total)
	for _, f := range v.Failures {
		if total.failures[f.Type] != f.Count {
			t.Fatalf("%s: %d failures of type %s, want %d", what, f.Count, f.Type, total.failures[f.Type])
		}
		delete(total.failures, f.Type)
	}
	if len(total.failures) > 0 || v.OtherErrors > 0 {
		t.Fatalf("%s: lacks the failures %v, has %d of other types", what, total.failures, v.OtherErrors)
	}
	minutes := 0 // that are compared, which takes long
	for name, stats := range v.Queues {
		one := count(all, name, from, to)
		one.check(t, what+": queue "+name, stats.Stats)
		if ended := one.counts[Completed] + one.counts[Failed] + one.counts[Cancelled] + one.counts[Expired]; span <= time.Hour && v.Step == time.Duration(minuteStep) && minutes < 100 {
			minutes += len(stats.Ended)
			sum := uint64(0)
			for i, n := range stats.Ended {
				c := count(all, name, from+int64(i)*minuteStep, from+int64(i+1)*minuteStep).counts
				if want := c[Completed] + c[Failed] + c[Cancelled] + c[Expired]; uint64(n) != want {
					t.Fatalf("%s: queue %s: %d jobs ended in minute %d, want %d", what, name, n, i, want)
				}
				sum += uint64(n)
			}
			if sum != ended {
				t.Fatalf("%s: queue %s: %d jobs ended, want %d", what, name, sum, ended)
			}
		}
		recentTo := v.At.Truncate(10 * time.Second)
		if recent := count(all, name, recentTo.Add(-time.Minute).UnixNano(), recentTo.UnixNano()); recent.counts != stats.Recent {
			t.Fatalf("%s: queue %s: in the last minute %v, want %v", what, name, stats.Recent, recent.counts)
		}
	}
}

// TestSeries_Restart checks that a series which was encoded and decoded goes on as one that was not.
func TestSeries_Restart(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	entries, _ := history(r, 4000, 250, 400)
	s, restarted := New(), New()
	for i := range entries {
		s.Apply(&entries[i])
		restarted.Apply(&entries[i])
		if i%97 == 0 {
			var err error
			if restarted, err = Decode(restarted.Encode()); err != nil {
				t.Fatal(err)
			}
		}
		if i%500 == 0 && !bytes.Equal(s.Encode(), restarted.Encode()) {
			t.Fatalf("after entry %d, the series differ", i)
		}
	}
}

// TestSeries_Bounds checks that nothing is lost with more queues and types of errors than are kept,
// and that the size is bounded when each minute has as much as possible.
func TestSeries_Bounds(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	pool := make([]ledger.Transition, 20_000)
	for i := range pool {
		pool[i] = randomTransition(r, 400, 300, 0)
	}
	s, now := New(), epoch
	for minute := range uint64(minuteSlots + 10) {
		e := Entry{Index: minute + 1, At: now}
		from := r.IntN(len(pool) - 4000)
		e.Transitions = slices.Clone(pool[from : from+4000])
		for i := range e.Transitions {
			e.Transitions[i].Due += now.UnixNano()
			if e.Transitions[i].Started != 0 {
				e.Transitions[i].Started += now.UnixNano()
			}
		}
		s.Apply(&e)
		now = now.Add(time.Minute)
	}
	v := s.Read(24*time.Hour, "", now)
	if v.Total.Counts == (Counts{}) || len(v.Queues) != maxQueues {
		t.Fatalf("%d queues, total %v", len(v.Queues), v.Total.Counts)
	}
	var byQueue Counts
	for _, q := range v.Queues {
		addCounts(&byQueue, q.Counts)
	}
	addCounts(&byQueue, v.Rest.Counts)
	if byQueue != v.Total.Counts {
		t.Errorf("queues have %v, all together %v", byQueue, v.Total.Counts)
	}
	failed := v.OtherErrors
	for _, f := range v.Failures {
		failed += f.Count
	}
	if want := v.Total.Counts[Failed] + v.Total.Counts[Retried]; failed != want || len(v.Failures) != maxFailureTypes {
		t.Errorf("%d failures of %d types, want %d of %d", failed, len(v.Failures), want, maxFailureTypes)
	}
	if size := len(s.Encode()); size > 15<<20 || size < 6<<20 {
		t.Errorf("the series has %.1f MiB", float64(size)/(1<<20))
	}
	if _, err := Decode(s.Encode()); err != nil {
		t.Error(err)
	}
}

func addCounts(to *Counts, counts Counts) {
	for kind, n := range counts {
		to[kind] += n
	}
}

// TestSeries_Gap checks that what happened before a series began is not known.
func TestSeries_Gap(t *testing.T) {
	s := New()
	s.StartAt(100, epoch)
	s.Apply(&Entry{Index: 90, At: epoch, Transitions: []ledger.Transition{{Queue: "a", After: job.Waiting}}})
	s.Apply(&Entry{Index: 101, At: epoch.Add(time.Minute), Transitions: []ledger.Transition{{Queue: "a", After: job.Waiting}}})
	v := s.Read(15*time.Minute, "", epoch.Add(2*time.Minute))
	known := 0
	for _, p := range v.Points {
		if p.Known {
			known++
		}
	}
	if v.Total.Counts[Accepted] != 1 || known != 6 {
		t.Errorf("%d accepted, %d points are known; want 1 and 6", v.Total.Counts[Accepted], known)
	}
}

// TestSeries_Happenings checks which events are kept, and how many.
func TestSeries_Happenings(t *testing.T) {
	s := New()
	act := func(action string, id job.ID) ledger.Event {
		return ledger.Event{Kind: ledger.OperatorActed, A: action, B: "mail", Job: id, Extra: &ledger.Extra{C: "x", By: &ledger.Actor{Name: "ann", Door: ledger.DoorCLI, Reason: "why"}}}
	}
	s.Apply(&Entry{Index: 1, At: epoch, Events: []ledger.Event{
		{Kind: ledger.AuthorityAcquired, A: "n1"}, {Kind: ledger.AuthorityRenewed, A: "n1"}, act("queue.pause", job.ID{}), act("job.cancel", job.ID{1}),
	}})
	want := []Happening{
		{At: epoch, Action: AuthorityAcquired, Target: "n1"},
		{At: epoch, Action: "queue.pause", Queue: "mail", Target: "x", Actor: "ann", Door: "cli", Reason: "why"},
	}
	if !slices.Equal(s.happenings, want) {
		t.Errorf("got %+v, want %+v", s.happenings, want)
	}
	for i := range uint64(2 * maxHappenings) {
		s.Apply(&Entry{Index: 2 + i, At: epoch.Add(time.Hour), Events: []ledger.Event{act(fmt.Sprint(i), job.ID{})}})
	}
	if n := len(s.happenings); n != maxHappenings || s.happenings[n-1].Action != fmt.Sprint(2*maxHappenings-1) {
		t.Errorf("%d happenings, the last one %+v", n, s.happenings[n-1])
	}
	s.Apply(&Entry{Index: 5000, At: epoch.Add(26 * time.Hour)})
	if len(s.happenings) > 0 {
		t.Errorf("%d happenings are older than a day", len(s.happenings))
	}
}

// TestCells checks that each duration is near the middle of its cell, and that cells are in order.
func TestCells(t *testing.T) {
	last := 0
	for nanos := int64(0); nanos < int64(50*24*time.Hour); nanos += nanos/37 + 700 {
		cell := cellOf(nanos)
		if diff := (middleOf(cell) - time.Duration(nanos)).Abs(); cell < last || diff > time.Duration(nanos*33/1000)+time.Microsecond {
			t.Fatalf("%v is in cell %d, around %v, after cell %d", time.Duration(nanos), cell, middleOf(cell), last)
		}
		last = cell
	}
	if cellOf(-5) != 0 || cmp.Compare(cellOf(1<<62), cells-1) != 0 {
		t.Error("durations out of range are in other cells")
	}
}

func FuzzDecode(f *testing.F) {
	entries, _ := history(rand.New(rand.NewPCG(1, 1)), 50, 3, 3)
	s := New()
	for i := range entries {
		s.Apply(&entries[i])
	}
	f.Add(s.Encode())
	f.Add(New().Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		decoded, err := Decode(b)
		if err != nil {
			return
		}
		at := time.Unix(0, decoded.now)
		decoded.Apply(&Entry{Index: decoded.Index() + 1, At: at.Add(time.Minute), Transitions: []ledger.Transition{{Queue: "a", After: job.Waiting}}})
		decoded.Read(15*time.Minute, "", at.Add(2*time.Minute))
		decoded.Read(15*time.Minute, "a", at)
		decoded.Encode()
	})
}

// BenchmarkApply measures what a transition takes, with 20 queues.
func BenchmarkApply(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	now := epoch.UnixNano()
	entries := make([]Entry, 256)
	for i := range entries {
		for range 64 {
			entries[i].Transitions = append(entries[i].Transitions, randomTransition(r, 20, 5, now))
		}
	}
	s, index := New(), uint64(0)
	b.ReportAllocs()
	for n := 0; n < b.N; n += 64 {
		index++
		e := &entries[index%256]
		now += int64(5 * time.Millisecond) // 12,800 transitions a second
		e.Index, e.At = index, time.Unix(0, now)
		s.Apply(e)
	}
}

// BenchmarkRead measures a view of 24 hours with 20 busy queues.
func BenchmarkRead(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	s, now := New(), epoch
	for i := range uint64(minuteSlots) {
		e := Entry{Index: i + 1, At: now}
		for range 500 {
			e.Transitions = append(e.Transitions, randomTransition(r, 20, 5, now.UnixNano()))
		}
		s.Apply(&e)
		now = now.Add(time.Minute)
	}
	for _, window := range []time.Duration{time.Hour, 24 * time.Hour} {
		b.Run(window.String(), func(b *testing.B) {
			for b.Loop() {
				s.Read(window, "", now)
			}
		})
	}
	b.Run("clone", func(b *testing.B) {
		for b.Loop() {
			s.Clone()
		}
	})
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			s.Encode()
		}
	})
}
