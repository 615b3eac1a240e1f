package ledger

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"yardmaster/job"
)

// holdsGuards recounts the keys that are held.
func holdsGuards(l *Ledger) error {
	var err error
	jobs := make(map[job.ID]int)
	l.guards.byTime.Scan(func(h *heldKey) bool {
		if l.guards.byKey[h.key] != h {
			err = fmt.Errorf("key %x ends at %d, which is not the key", h.key, h.until)
		}
		if h.rate {
			return err == nil
		}
		jobs[h.job]++
		r := l.jobs.byID[h.job]
		_, indexed := l.guards.byJob.Get(h)
		switch {
		case !indexed || r == nil || r.flags&guarded == 0 || jobs[h.job] > 2:
			err = fmt.Errorf("key %x is held by %s, which is %+v", h.key, h.job, r)
		case h.until == untilStart && (r.run != nil || r.state != job.Waiting && r.state != job.Delayed):
			err = fmt.Errorf("debounce key %x is held by %s, which has started or ended: %+v", h.key, h.job, r)
		}
		return err == nil
	})
	held := 0
	for _, n := range jobs {
		held += n
	}
	if l.guards.byTime.Len() != len(l.guards.byKey) || held != l.guards.byJob.Len() {
		return fmt.Errorf("%d keys by time, %d by key; %d of jobs, %d by job",
			l.guards.byTime.Len(), len(l.guards.byKey), held, l.guards.byJob.Len())
	}
	for place, n := range l.rulings.byPlace {
		if i := n - l.rulings.first; i >= uint64(len(l.rulings.list)) || l.rulings.list[i].place != place {
			return fmt.Errorf("the ruling about %v is number %d, which is not there", place, n)
		}
	}
	return err
}

// claims is what a producer who believes every answer knows of unique keys:
// which jobs were made under each, and until when nothing else may be.
type claims map[job.GuardKey]map[job.ID]int64

// hear follows an entry's folds by their answers alone.
func (c claims) hear(l *Ledger, cmds []Command, results []Result) error {
	for i, cmd := range cmds {
		f, ok := cmd.(*Fold)
		if !ok || results[i].Err != nil {
			continue
		}
		for k, folded := range results[i].Folded {
			if g := f.Jobs[k].Guards; g != nil {
				if err := c.one(l, &f.Jobs[k], folded); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (c claims) one(l *Ledger, j *job.Job, folded Folded) error {
	r, ok := l.Ruling(j.Position)
	if !ok || r.Folded != folded {
		return fmt.Errorf("%s was folded as %d, the ruling is %+v, %t", j.ID, folded, r, ok)
	}
	switch folded {
	case FoldedDebounced:
		for _, of := range c {
			delete(of, r.Job)
		}
	case FoldedWaiting, FoldedDelayed:
		if r.Job != j.ID {
			return fmt.Errorf("%s was made, its ruling says %s", j.ID, r.Job)
		}
	case FoldedDuplicate:
		if c[j.Guards.Unique.Key] == nil || r.Job == j.ID {
			return fmt.Errorf("%s is called a duplicate of %s, which nobody made under its key", j.ID, r.Job)
		}
		return nil
	default:
		return nil
	}
	if u := j.Guards.Unique; u.Given() {
		due := j.RunAt
		if j.Guards.Debounce.Given() {
			due = l.Now().Add(j.Guards.Debounce.For)
		}
		if c[u.Key] == nil {
			c[u.Key] = make(map[job.ID]int64)
		}
		c[u.Key][r.Job] = max(l.now+int64(u.For), due.UnixNano())
	}
	return nil
}

// see looks whether two jobs hold one key.
func (c claims) see(l *Ledger) error {
	for key, of := range c {
		live := 0
		for id, until := range of {
			if l.jobs.byID[id] == nil || until <= l.now {
				delete(of, id) // a key that was let go is never taken up again
			} else {
				live++
			}
		}
		if live > 1 {
			return fmt.Errorf("unique key %x is held by %d jobs: %v", key, live, of)
		}
	}
	return nil
}

// someGuards gives every third job guards of few keys, so that they meet.
func someGuards(t *rapid.T) *job.Guards {
	guard := func(kind byte) job.Guard {
		held := rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, 8 * time.Second, 2 * time.Hour}).Draw(t, "held")
		if held == 0 {
			return job.Guard{}
		}
		return job.Guard{Key: job.GuardKey{kind, byte(rapid.IntRange(0, 2).Draw(t, "key"))}, For: held}
	}
	if rapid.IntRange(0, 2).Draw(t, "guarded") > 0 {
		return nil
	}
	g := &job.Guards{Unique: guard('u')}
	if rapid.Bool().Draw(t, "rate") {
		g.Rate = guard('r')
	} else {
		g.Debounce = guard('d')
	}
	return g
}

// perhapsCopy stores the last record with guards once more instead of a new
// one. Only copies come under the same time.
func (y *yard) perhapsCopy(t *rapid.T, j job.Job) job.Job {
	if y.guarded != nil && rapid.IntRange(0, 4).Draw(t, "copy") == 0 {
		again := *y.guarded
		again.Position = j.Position
		return again
	}
	j.Accepted = j.Accepted.Add(time.Duration(j.Position.Seq)*10 + time.Duration(j.Position.Lane))
	y.guarded = &j
	return j
}

// uniqueJob is a job with a unique key of its own.
func uniqueJob(i int) job.Job {
	j := benchJob(i)
	j.Guards = &job.Guards{Unique: job.Guard{Key: job.GuardKey(benchID(i)), For: time.Hour}}
	return j
}

// TestGuards_Full: what needs one key too many is a dead letter, and whoever
// asked hears "later"; what needs no more is made.
func TestGuards_Full(t *testing.T) {
	l, stamp := led(t)
	l.guards.most = 2
	fold := func(from int, jobs ...job.Job) []Folded {
		stamp.Index++
		c := &Fold{Identity: "L0", From: uint64(from), To: uint64(from + len(jobs)), CreateQueues: true, Jobs: jobs}
		r := l.Apply(stamp, []Command{c})[0]
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		return r.Folded
	}
	third := uniqueJob(2)
	if got := fold(0, uniqueJob(0), uniqueJob(1), third, benchJob(3)); fmt.Sprint(got) != fmt.Sprint([]Folded{FoldedWaiting, FoldedWaiting, FoldedLater, FoldedWaiting}) {
		t.Errorf("folded as %v", got)
	}
	if r, _ := l.Ruling(third.Position); r.Folded != FoldedLater || r.Reason != ReasonKeysFull {
		t.Errorf("ruling is %+v", r)
	}
	if dead := l.DeadAfter(0); len(dead) != 1 || dead[0].Position != third.Position {
		t.Errorf("dead letters are %+v", dead)
	}
	stamp.At = stamp.At.Add(2 * time.Hour)
	third.Position.Seq, third.Accepted = 5, stamp.At
	if got := fold(4, third); got[0] != FoldedWaiting || l.HeldKeys() != 1 {
		t.Errorf("folded as %v with %d keys held", got, l.HeldKeys())
	}
}

// TestRulings_Bounded: rulings go when they are too many or too old, and the
// ledger comes back from a snapshot with those that are left.
func TestRulings_Bounded(t *testing.T) {
	l, stamp := led(t)
	const n = maxRulings + 5000
	for first := 0; first < n; first += 500 {
		c := &Fold{Identity: "L0", From: uint64(first), To: uint64(first + 500), CreateQueues: true}
		for i := first; i < first+500; i++ {
			j := uniqueJob(i)
			j.Guards.Unique.Key = job.GuardKey{1} // all but one are duplicates
			c.Jobs = append(c.Jobs, j)
		}
		stamp.Index++
		l.Apply(stamp, []Command{c})
	}
	if len(l.rulings.list) != maxRulings || len(l.rulings.byPlace) != maxRulings || len(l.rulings.byID) != maxRulings {
		t.Errorf("%d rulings, %d by place, %d by id", len(l.rulings.list), len(l.rulings.byPlace), len(l.rulings.byID))
	}
	var buf bytes.Buffer
	if err := l.Encode(&buf); err != nil {
		t.Fatal(err)
	}
	back, err := Decode(&buf)
	if err != nil {
		t.Fatal(err)
	}
	last := job.Position{Seq: benchJob(n - 500).Position.Seq}
	if r, ok := back.Ruling(last); !ok || r.Folded != FoldedDuplicate || r.Job != benchID(0) || r.Queue != "mail" {
		t.Errorf("after restoring the ruling is %+v, %t", r, ok)
	}
	if _, ok := back.Ruling(job.Position{Seq: 1}); ok {
		t.Error("the first ruling is still there")
	}
	stamp.At = stamp.At.Add(DedupeHorizon + time.Second)
	for range maxRulings/maxForgotten + 1 {
		stamp.Index++
		back.Apply(stamp, nil)
	}
	if len(back.rulings.list)+len(back.rulings.byPlace)+len(back.rulings.byID) != 0 {
		t.Errorf("%d rulings outlive their time", len(back.rulings.list))
	}
	if err := holds(back); err != nil {
		t.Error(err)
	}
}

// guardedEncoding holds keys of every kind, and rulings.
func guardedEncoding(t testing.TB) []byte {
	t.Helper()
	l, stamp := led(t)
	c := &Fold{Identity: "L0", To: 4, CreateQueues: true}
	for i := range 4 {
		c.Jobs = append(c.Jobs, uniqueJob(i))
	}
	c.Jobs[1].Guards.Unique.Key = c.Jobs[0].Guards.Unique.Key
	c.Jobs[2].Guards.Rate = job.Guard{Key: job.GuardKey{1}, For: time.Hour}
	c.Jobs[3].Guards.Debounce = job.Guard{Key: job.GuardKey{2}, For: time.Hour}
	l.Apply(stamp, []Command{c})
	if l.HeldKeys() != 5 {
		t.Fatalf("%d keys are held", l.HeldKeys())
	}
	return encoded(t, l)
}

// BenchmarkUniqueKeys measures what a held key takes beside its job.
func BenchmarkUniqueKeys(b *testing.B) {
	const n = 200_000
	plain, keyed := 0.0, 0.0
	for range b.N {
		for _, c := range []struct {
			make func(int) job.Job
			size *float64
		}{{benchJob, &plain}, {uniqueJob, &keyed}} {
			before := heap()
			l, stamp := led(b)
			for first := 0; first < n; first += 1000 {
				f := &Fold{Identity: "L0", From: uint64(first), To: uint64(first + 1000), CreateQueues: true}
				for i := first; i < first+1000; i++ {
					f.Jobs = append(f.Jobs, c.make(i))
				}
				stamp.Index++
				l.Apply(stamp, []Command{f, &Told{Events: l.LastEvent()}})
			}
			for range 200 { // rulings go with time
				stamp.Index++
				stamp.At = stamp.At.Add(4 * time.Second)
				l.Apply(stamp, []Command{&Told{Events: l.LastEvent()}})
			}
			*c.size = float64(heap()-before) / n
			if got := l.HeldKeys(); got != 0 && got != n {
				b.Fatalf("%d keys are held", got)
			}
		}
	}
	b.ReportMetric(plain, "bytes/job")
	b.ReportMetric(keyed-plain, "bytes/key")
}

// A key whose time is over is free in the very entry that comes after, even if
// so many have run out that it is not swept yet.
func TestGuards_RunOutButNotSwept(t *testing.T) {
	l := New()
	key := func(i int) job.GuardKey { return job.GuardKey{byte(i), byte(i >> 8)} }
	for i := range maxForgotten + 1 {
		l.guards.hold(&heldKey{key: key(i), until: int64(1 + i), rate: true})
	}
	last := job.Guard{Key: key(maxForgotten), For: 1}
	end := int64(1 + maxForgotten)
	if l.guards.live(last, end-1) == nil {
		t.Error("a key is free before its time is over")
	}
	l.guards.expire(end)
	if l.HeldKeys() != 1 || l.guards.byKey[last.Key] == nil {
		t.Fatalf("%d keys are left to sweep", l.HeldKeys())
	}
	if h := l.guards.live(last, end); h != nil {
		t.Errorf("a key that has run out is held until %d", h.until)
	}
}
