package ledger

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// explainLedger returns a ledger with a queue of limit 2. Its jobs 0 and 1 are
// active, 2 to 5 are waiting, 4 first, and 6 and 7 are delayed.
func explainLedger(t *testing.T) (*Ledger, Stamp) {
	t.Helper()
	l, stamp := ledgerWithAuthority(t)
	f := &Ingest{Identity: "L0", To: 8, CreateQueues: true}
	for i := range 8 {
		j := job.Job{
			ID: jobID(i), Queue: "mail", Position: job.Position{Seq: uint64(i + 1)}, Priority: job.DefaultPriority,
			Accepted: scriptStart.Add(time.Duration(i) * time.Second), Function: []string{"", "echo", "py#f"}[i%3],
		}
		if i == 4 {
			j.Priority = 9
		}
		if i >= 6 {
			j.RunAt = scriptStart.Add(time.Duration(10-i) * time.Hour)
		}
		f.Jobs = append(f.Jobs, j)
	}
	stamp.At = scriptStart.Add(time.Minute)
	r := l.Apply(stamp, []Command{&AddQueue{ID: jobID(99), Name: "mail", Config: job.QueueConfig{Limit: 2}}, f, &Place{Placements: []Placement{
		{Job: jobID(1), N: 1, Node: "n2", Incarnation: 1, Channel: "overhop/w1"},
		{Job: jobID(0), N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"},
	}}})
	if r[0].Err != nil || r[1].Err != nil || !r[2].Placed[0] || !r[2].Placed[1] {
		t.Fatalf("%+v", r)
	}
	stamp.Index++
	return l, stamp
}

func TestDiagnose(t *testing.T) {
	l, stamp := explainLedger(t)
	diagnosis := func(i int) JobDiagnosis {
		t.Helper()
		p, ok := l.Diagnose(jobID(i))
		if !ok {
			t.Fatalf("unknown job %d", i)
		}
		return p
	}
	// 3 and 4 are for the same executors, 2 and 5 for a runner; 4 has a higher priority.
	if p := diagnosis(3); p.AheadHigher != 1 || !p.LowerDue.IsZero() {
		t.Errorf("before the job of a lower priority: %+v", p)
	}
	if p := diagnosis(4); p.AheadHigher != 0 || !p.LowerDue.Equal(diagnosis(3).Due) {
		t.Errorf("after the job of a higher priority: %+v", p)
	}
	if p := diagnosis(5); p.AheadHigher != 0 || !p.LowerDue.IsZero() {
		t.Errorf("among jobs of one priority: %+v", p)
	}
	for i, ahead := range map[int]int{2: 0, 3: 1, 4: 0, 5: 1} {
		if p := diagnosis(i); p.State != job.Waiting || p.Ahead != ahead || !p.LimitReached || p.QueueView.Counts[job.Waiting] != 4 {
			t.Errorf("job %d: %d ahead, want %d: %+v", i, p.Ahead, ahead, p)
		}
	}
	if p := diagnosis(0); p.State != job.Active || p.Recalled != "" || p.Fence == 0 || p.Node != "n1" {
		t.Errorf("active job: %+v", p)
	}
	if p := diagnosis(6); p.Retrying || p.Debounced || !p.Due.Equal(scriptStart.Add(4*time.Hour)) || !p.RequestedAt.Equal(p.Due) {
		t.Errorf("delayed job: %+v", p)
	}
	if _, ok := l.Diagnose(jobID(50)); ok {
		t.Error("diagnosis of a job that does not exist")
	}
	due := stamp.At.Add(time.Minute)
	l.Apply(stamp, []Command{
		&Settle{Settlements: []Settlement{{Job: jobID(0), N: 1, Next: job.NextRetry, At: due, Reason: "boom", Fault: &job.Fault{Message: "boom"}}}},
		&CancelJob{Job: jobID(1)},
	})
	if p := diagnosis(0); p.State != job.Delayed || !p.Retrying || p.Redelivered || !p.Due.Equal(due) || p.Reason != "boom" {
		t.Errorf("job between two attempts: %+v", p)
	}
	if p := diagnosis(1); p.Recalled != job.RecallCancelled {
		t.Errorf("cancelled job: %+v", p)
	}
}

func TestQueueReads(t *testing.T) {
	l, stamp := explainLedger(t)
	if _, paused := l.PausedSince("mail"); paused {
		t.Error("a queue that is not paused has a time since when")
	}
	l.Apply(stamp, []Command{&PauseQueue{Name: "mail", Paused: true}})
	stamp.Index++
	kept, err := Decode(bytes.NewReader(encoded(t, l)))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []*Ledger{l, kept} {
		if at, paused := l.PausedSince("mail"); !paused || !at.Equal(stamp.At) {
			t.Errorf("paused since %s, %t", at, paused)
		}
	}
	if h := l.ActiveInQueue("mail", 20); len(h) != 2 || h[0].ID == h[1].ID || h[0].Channel != "overhop/w1" {
		t.Errorf("active: %+v", h)
	}
	if h := l.ActiveInQueue("mail", 1); len(h) != 1 {
		t.Errorf("first active: %+v", h)
	}
	if h := l.ActiveInQueue("none", 20); h != nil {
		t.Errorf("active jobs of an unknown queue: %+v", h)
	}
	heads := l.WaitlistHeads("mail", 5)
	if len(heads) != 3 || heads[0].ID != jobID(3) || heads[1].ID != jobID(4) || heads[2].ID != jobID(2) || heads[2].Count != 2 || heads[2].Class != "py#" {
		t.Errorf("heads: %+v", heads)
	}
	if w, ok := l.OldestWaitingJob("mail"); !ok || w.ID != jobID(2) {
		t.Errorf("oldest: %+v", w)
	}
	if id, at, _, ok := l.NextDelayed("mail"); !ok || id != jobID(7) || !at.Equal(scriptStart.Add(3*time.Hour)) {
		t.Errorf("next delayed: %s, %s, %t", id, at, ok)
	}
	if _, _, notBefore, ok := l.NextDelayed("none"); ok || !notBefore.IsZero() {
		t.Errorf("next delayed of an unknown queue: %s, %t", notBefore, ok)
	}
	// More delayed jobs of another queue come first than are examined, but the
	// queue has few enough to scan them.
	f := &Ingest{Identity: "L0", From: 8, To: 8 + maxDueScan + 1, CreateQueues: true}
	for i := range maxDueScan + 1 {
		f.Jobs = append(f.Jobs, job.Job{ID: jobID(1000 + i), Queue: "others", Position: job.Position{Seq: uint64(9 + i)}, Accepted: scriptStart, RunAt: scriptStart.Add(time.Hour)})
	}
	if r := l.Apply(stamp, []Command{f}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	if id, _, _, ok := l.NextDelayed("mail"); !ok || id != jobID(7) {
		t.Errorf("next delayed behind another queue: %s, %t", id, ok)
	}
}

// TestNextDelayed_NotBefore checks the bound for a queue with more delayed jobs than are searched, which are due
// after those of another queue: it is the same for delays, for times of the wall clock, and for both.
func TestNextDelayed_NotBefore(t *testing.T) {
	for _, clock := range []string{"elapsed", "wall", "both"} {
		l, stamp := explainLedger(t)
		l.Apply(stamp, []Command{&RemoveJob{Job: jobID(6)}, &RemoveJob{Job: jobID(7)}})
		f := &Ingest{Identity: "L0", From: 8, To: 8, CreateQueues: true}
		add := func(queue string, in time.Duration) {
			f.To++
			j := job.Job{ID: jobID(1000 + int(f.To)), Queue: queue, Position: job.Position{Seq: f.To}, Accepted: l.Now()}
			if clock == "elapsed" || clock == "both" && f.To%2 == 0 {
				j.Delay = in
			} else {
				j.RunAt = l.Now().Add(in)
			}
			f.Jobs = append(f.Jobs, j)
		}
		for range 2*maxDueScan + 2 {
			add("others", time.Hour)
			add("many", 2*time.Hour)
		}
		stamp.Index++
		if r := l.Apply(stamp, []Command{f}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		if _, _, notBefore, ok := l.NextDelayed("many"); ok || !notBefore.Equal(l.Now().Add(time.Hour)) {
			t.Errorf("%s: not before %s, %t", clock, notBefore, ok)
		}
	}
}

func TestLastDecision_UnpublishedEvents(t *testing.T) {
	l, stamp := explainLedger(t)
	lines, all := l.UnpublishedEvents(jobID(1), 1000)
	if len(lines) != 4 || !all || !strings.Contains(string(lines[3]), `"event":"worker.assigned"`) {
		t.Errorf("unpublished: %q, %t", lines, all)
	}
	if lines, all := l.UnpublishedEvents(jobID(1), 3); all || len(lines) > 1 {
		t.Errorf("unpublished, limited: %q, %t", lines, all)
	}
	l.Apply(stamp, []Command{&MarkPublished{Events: l.LastEvent()}})
	if lines, all := l.UnpublishedEvents(jobID(1), 1000); len(lines) != 0 || !all {
		t.Errorf("after all were published: %q, %t", lines, all)
	}
	stamp.Index++
	guard := &job.Guards{Unique: job.Guard{Key: job.GuardKey{1}, TTL: time.Hour}}
	r := l.Apply(stamp, []Command{&Ingest{Identity: "L0", From: 8, To: 10, Jobs: []job.Job{
		{ID: jobID(20), Queue: "mail", Position: job.Position{Seq: 9}, Accepted: scriptStart, Guards: guard},
		{ID: jobID(21), Queue: "mail", Position: job.Position{Seq: 10}, Accepted: scriptStart, Guards: guard},
	}}})
	if r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	if decision, at, ok := l.LastDecision(jobID(21)); !ok || decision.Ingested != IngestedDuplicate || decision.Job != jobID(20) || !at.Equal(l.Now()) {
		t.Errorf("decision: %+v, %s, %t", decision, at, ok)
	}
	if _, _, ok := l.LastDecision(jobID(1)); ok {
		t.Error("decision about a job without guards")
	}
}

// BenchmarkDiagnose diagnoses the last waiting job, with and without 100,000 active
// jobs, and lists the one active job of a queue that was placed after all of them.
func BenchmarkDiagnose(b *testing.B) {
	for _, waiting := range []int{1000, 1_000_000} {
		l, stamp := filledLedger(b, waiting)
		for _, active := range []int{0, 100_000} {
			if active > waiting {
				continue
			}
			for n := 0; n < active; n += 1000 {
				p := &Place{}
				for i := n; i < n+1000; i++ {
					p.Placements = append(p.Placements, Placement{Job: benchID(i), N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"})
				}
				stamp.Index++
				l.Apply(stamp, []Command{p, &MarkPublished{Events: l.LastEvent()}})
			}
			b.Run(fmt.Sprintf("waiting=%d/active=%d", waiting, active), func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					p, ok := l.Diagnose(benchID(waiting - 1))
					if !ok || p.Ahead < waiting-1-active-1000 {
						b.Fatalf("%+v", p)
					}
					l.ActiveInQueue("mail", 20)
					l.WaitlistHeads("mail", 5)
					l.OldestWaitingJob("mail")
					l.NextDelayed("mail")
				}
			})
		}
		if waiting < 1_000_000 {
			continue
		}
		stamp.Index++
		late := job.Job{ID: jobID(1), Queue: "late", Position: job.Position{Seq: uint64(waiting + 1)}, Accepted: scriptStart}
		l.Apply(stamp, []Command{
			&Ingest{Identity: "L0", From: uint64(waiting), To: uint64(waiting + 1), Jobs: []job.Job{late}, CreateQueues: true},
			&Place{Placements: []Placement{{Job: late.ID, N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"}}},
		})
		b.Run(fmt.Sprintf("waiting=%d/behind", waiting), func(b *testing.B) {
			for range b.N {
				if h := l.ActiveInQueue("late", 20); len(h) != 1 {
					b.Fatalf("%+v", h)
				}
			}
		})
	}
}
