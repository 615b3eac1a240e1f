package ledger

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

// checkGuards compares the indexes of held keys.
func checkGuards(l *Ledger) error {
	var err error
	jobs := make(map[job.ID]int)
	l.guards.byTime.Scan(func(h *heldKey) bool {
		if l.guards.byKey[h.key] != h {
			err = fmt.Errorf("key %x that expires at %d is not in byKey", h.key, h.until)
		}
		if h.rate {
			return err == nil
		}
		jobs[h.job]++
		r := l.jobs.find(h.job)
		_, indexed := l.guards.byJob.Get(h)
		switch {
		case !indexed || jobs[h.job] > 2 || r == nil && h.until >= untilEnd || r != nil && r.flags&guarded == 0:
			err = fmt.Errorf("key %x is held by job %s: %+v", h.key, h.job, r)
		case h.until == untilStart && (r.run != run{} || r.state != job.Waiting && r.state != job.Delayed):
			err = fmt.Errorf("key %x is held until the start of %s, which has started or ended: %+v", h.key, h.job, r)
		case h.until == untilEnd && r.state.Ended():
			err = fmt.Errorf("key %x is held until the end of %s, which has ended: %+v", h.key, h.job, r)
		}
		return err == nil
	})
	held := 0
	for _, n := range jobs {
		held += n
	}
	if l.guards.byTime.Len() != len(l.guards.byKey) || held != l.guards.byJob.Len() {
		return fmt.Errorf("%d keys in byTime, %d in byKey; %d held by jobs, %d in byJob",
			l.guards.byTime.Len(), len(l.guards.byKey), held, l.guards.byJob.Len())
	}
	refused := 0
	for r := range l.refused.all() {
		refused++
		if last := l.refused.find(r.id); last == nil || last.id != r.id || last.accepted < r.accepted {
			return fmt.Errorf("the last refusal of %s is %+v, not %+v", r.id, last, r)
		}
	}
	if refused != l.refused.size || len(l.refused.byID) > refused {
		return fmt.Errorf("%d refusals, %d in byID, the size is %d", refused, len(l.refused.byID), l.refused.size)
	}
	for position, n := range l.decisions.byPosition {
		if i := n - l.decisions.first; i >= uint64(len(l.decisions.list)) || l.decisions.list[i].position != position {
			return fmt.Errorf("decision about %v has number %d, which is not in the list", position, n)
		}
	}
	return err
}

// keyClaims is what a producer knows about unique keys from the answers it got: the
// jobs created with each key, and until when no other may be.
type keyClaims map[job.GuardKey]map[job.ID]int64

// ingest records the results of the Ingest commands of an entry.
func (c keyClaims) ingest(l *Ledger, cmds []Command, results []Result) error {
	for i, cmd := range cmds {
		f, ok := cmd.(*Ingest)
		if !ok || results[i].Err != nil {
			continue
		}
		for k, ingested := range results[i].Ingested {
			if g := f.Jobs[k].Guards; g != nil {
				if err := c.ingestOne(l, &f.Jobs[k], ingested); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (c keyClaims) ingestOne(l *Ledger, j *job.Job, ingested Ingested) error {
	r, ok := l.Decision(j.Position)
	if !ok || r.Ingested != ingested {
		return fmt.Errorf("%s was ingested as %d, its decision is %+v, %t", j.ID, ingested, r, ok)
	}
	if copiesDecision(l, j) {
		return nil
	}
	switch ingested {
	case IngestedDebounced:
		for _, holders := range c {
			delete(holders, r.Job)
		}
	case IngestedWaiting, IngestedDelayed:
		if r.Job != j.ID {
			return fmt.Errorf("%s was created, its decision names %s", j.ID, r.Job)
		}
	case IngestedDuplicate:
		_, again := l.Alias(j.ID) // the first record with the id may have had another key
		if c[j.Guards.Unique.Key] == nil && !again || r.Job == j.ID {
			return fmt.Errorf("%s is a duplicate of %s, which was not created with its key", j.ID, r.Job)
		}
		return nil
	default:
		return nil
	}
	if u := j.Guards.Unique; u.IsSet() {
		due := l.elapsedAt(j.RunAt)
		if j.Guards.Debounce.IsSet() {
			due = l.elapsed + int64(j.Guards.Debounce.TTL)
		}
		if c[u.Key] == nil {
			c[u.Key] = make(map[job.ID]int64)
		}
		c[u.Key][r.Job] = max(l.elapsed+int64(u.TTL), due)
	}
	return nil
}

// copiesDecision reports whether the decision about a record is that of an earlier record
// with the same id, whose keys may be others, so that it tells nothing about its own.
func copiesDecision(l *Ledger, j *job.Job) bool {
	before := l.decisions.list[:l.decisions.byPosition[j.Position]-l.decisions.first]
	for i := len(before) - 1; i >= 0; i-- {
		if before[i].id == j.ID {
			return before[i].accepted >= j.Accepted.UnixNano()
		}
	}
	return false
}

// check returns an error if two jobs hold the same key.
func (c keyClaims) check(l *Ledger) error {
	for key, holders := range c {
		live := 0
		for id, until := range holders {
			if l.jobs.find(id) == nil || until <= l.elapsed {
				delete(holders, id) // a released key does not become held again
			} else {
				live++
			}
		}
		if live > 1 {
			return fmt.Errorf("unique key %x is held by %d jobs: %v", key, live, holders)
		}
	}
	return nil
}

// drawGuards draws guards for every third job, with few keys, so that they collide.
func drawGuards(t *rapid.T) *job.Guards {
	guard := func(kind byte) job.Guard {
		held := rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, 8 * time.Second, 2 * time.Hour}).Draw(t, "held")
		if held == 0 {
			return job.Guard{}
		}
		return job.Guard{Key: job.GuardKey{kind, byte(rapid.IntRange(0, 2).Draw(t, "key"))}, TTL: held}
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

// maybeDuplicate returns j, or instead a copy of the last record with guards. Only
// copies have the same time.
func (g *generator) maybeDuplicate(t *rapid.T, j job.Job) job.Job {
	if g.guarded != nil && rapid.IntRange(0, 4).Draw(t, "copy") == 0 {
		duplicate := *g.guarded
		duplicate.Position = j.Position
		return duplicate
	}
	j.Accepted = j.Accepted.Add(time.Duration(j.Position.Seq)*10 + time.Duration(j.Position.Lane))
	g.guarded = &j
	return j
}

// uniqueJob returns a job whose unique key no other job has.
func uniqueJob(i int) job.Job {
	j := benchJob(i)
	j.Guards = &job.Guards{Unique: job.Guard{Key: job.GuardKey(benchID(i)), TTL: time.Hour}}
	return j
}

// TestGuards_Full checks that a job that needs one key too many becomes a dead letter
// with the decision IngestedKeysFull, and that a job without guards is created.
func TestGuards_Full(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	l.guards.max = 2
	ingest := func(from int, jobs ...job.Job) []Ingested {
		stamp.Index++
		c := &Ingest{Identity: "L0", From: uint64(from), To: uint64(from + len(jobs)), CreateQueues: true, Jobs: jobs}
		r := l.Apply(stamp, []Command{c})[0]
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		return r.Ingested
	}
	third := uniqueJob(2)
	if got := ingest(0, uniqueJob(0), uniqueJob(1), third, benchJob(3)); fmt.Sprint(got) != fmt.Sprint([]Ingested{IngestedWaiting, IngestedWaiting, IngestedKeysFull, IngestedWaiting}) {
		t.Errorf("ingested as %v", got)
	}
	if r, _ := l.Decision(third.Position); r.Ingested != IngestedKeysFull || r.Reason != ReasonKeysFull {
		t.Errorf("decision is %+v", r)
	}
	if dead := l.DeadLettersAfter(0); len(dead) != 1 || dead[0].Position != third.Position {
		t.Errorf("dead letters are %+v", dead)
	}
	stamp.At = stamp.At.Add(2 * time.Hour)
	third.Position.Seq, third.Accepted = 5, stamp.At
	if got := ingest(4, third); got[0] != IngestedWaiting || l.HeldKeys() != 1 {
		t.Errorf("ingested as %v with %d keys held", got, l.HeldKeys())
	}
}

// TestDecisions_Bounded checks that decisions are dropped when they are too many or
// too old, and that a snapshot contains those that are kept.
func TestDecisions_Bounded(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	const n = maxDecisions + 5000
	for first := 0; first < n; first += 500 {
		c := &Ingest{Identity: "L0", From: uint64(first), To: uint64(first + 500), CreateQueues: true}
		for i := first; i < first+500; i++ {
			j := uniqueJob(i)
			j.Guards.Unique.Key = job.GuardKey{1} // all but one are duplicates
			c.Jobs = append(c.Jobs, j)
		}
		stamp.Index++
		l.Apply(stamp, []Command{c})
	}
	if len(l.decisions.list) != maxDecisions || len(l.decisions.byPosition) != maxDecisions || len(l.decisions.byID) != maxDecisions {
		t.Errorf("%d decisions, %d by position, %d by id", len(l.decisions.list), len(l.decisions.byPosition), len(l.decisions.byID))
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
	if r, ok := back.Decision(last); !ok || r.Ingested != IngestedDuplicate || r.Job != benchID(0) || r.Queue != "mail" {
		t.Errorf("decision after decoding is %+v, %t", r, ok)
	}
	if _, ok := back.Decision(job.Position{Seq: 1}); ok {
		t.Error("the first decision is still kept")
	}
	stamp.At = stamp.At.Add(DedupeHorizon + time.Second)
	for range maxDecisions/maxPruned + 1 {
		stamp.Index++
		back.Apply(stamp, []Command{&MarkIngested{Lanes: []LaneEnd{{Last: n, At: stamp.At}}}})
	}
	if len(back.decisions.list)+len(back.decisions.byPosition)+len(back.decisions.byID) != 0 {
		t.Errorf("%d decisions are kept beyond the horizon", len(back.decisions.list))
	}
	if err := checkInvariants(back); err != nil {
		t.Error(err)
	}
}

// guardedEncoding returns an encoded ledger with keys of every kind and decisions.
func guardedEncoding(t testing.TB) []byte {
	t.Helper()
	l, stamp := ledgerWithAuthority(t)
	c := &Ingest{Identity: "L0", To: 4, CreateQueues: true}
	for i := range 4 {
		c.Jobs = append(c.Jobs, uniqueJob(i))
	}
	c.Jobs[1].Guards.Unique.Key = c.Jobs[0].Guards.Unique.Key
	c.Jobs[2].Guards.Rate = job.Guard{Key: job.GuardKey{1}, TTL: time.Hour}
	c.Jobs[3].Guards.Debounce = job.Guard{Key: job.GuardKey{2}, TTL: time.Hour}
	l.Apply(stamp, []Command{c})
	if l.HeldKeys() != 5 {
		t.Fatalf("%d keys are held", l.HeldKeys())
	}
	return encoded(t, l)
}

// BenchmarkUniqueKeys measures the memory of a held key in addition to its job.
func BenchmarkUniqueKeys(b *testing.B) {
	const n = 200_000
	plain, keyed := 0.0, 0.0
	for range b.N {
		for _, c := range []struct {
			make func(int) job.Job
			size *float64
		}{{benchJob, &plain}, {uniqueJob, &keyed}} {
			before := heapInUse()
			l, stamp := ledgerWithAuthority(b)
			for first := 0; first < n; first += 1000 {
				f := &Ingest{Identity: "L0", From: uint64(first), To: uint64(first + 1000), CreateQueues: true}
				for i := first; i < first+1000; i++ {
					f.Jobs = append(f.Jobs, c.make(i))
				}
				stamp.Index++
				l.Apply(stamp, []Command{f, &MarkPublished{Events: l.LastEvent()}})
			}
			for range 200 { // drops the decisions
				stamp.Index++
				stamp.At = stamp.At.Add(4 * time.Second)
				l.Apply(stamp, []Command{&MarkPublished{Events: l.LastEvent()}})
			}
			*c.size = float64(heapInUse()-before) / n
			if got := l.HeldKeys(); got != 0 && got != n {
				b.Fatalf("%d keys are held", got)
			}
		}
	}
	b.ReportMetric(plain, "bytes/job")
	b.ReportMetric(keyed-plain, "bytes/key")
}

// TestGuards_ExpiredButNotSwept checks that an expired key is free immediately,
// even if more keys have expired than are removed at a time.
func TestGuards_ExpiredButNotSwept(t *testing.T) {
	l := New()
	key := func(i int) job.GuardKey { return job.GuardKey{byte(i), byte(i >> 8)} }
	for i := range maxPruned + 1 {
		l.guards.hold(&heldKey{key: key(i), until: int64(1 + i), rate: true})
	}
	last := job.Guard{Key: key(maxPruned), TTL: 1}
	end := int64(1 + maxPruned)
	if l.guards.holder(last, end-1) == nil {
		t.Error("a key is free before it expires")
	}
	l.guards.expire(end)
	if l.HeldKeys() != 1 || l.guards.byKey[last.Key] == nil {
		t.Fatalf("%d keys are left to remove", l.HeldKeys())
	}
	if h := l.guards.holder(last, end); h != nil {
		t.Errorf("expired key is held until %d", h.until)
	}
}
