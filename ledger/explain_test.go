package ledger

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"yardmaster/job"
)

// explained is a ledger with a queue of limit 2 and jobs in every state: 0 and
// 1 run, 2 to 5 wait, of them 4 first, 6 and 7 are delayed.
func explained(t *testing.T) (*Ledger, Stamp) {
	t.Helper()
	l, stamp := led(t)
	f := &Fold{Identity: "L0", To: 8, CreateQueues: true}
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

func TestPlight(t *testing.T) {
	l, stamp := explained(t)
	plight := func(i int) Plight {
		t.Helper()
		p, ok := l.Plight(jobID(i))
		if !ok {
			t.Fatalf("job %d is not known", i)
		}
		return p
	}
	// 3 and 4 are for the same hands, 2 and 5 for the runner's.
	for i, ahead := range map[int]int{2: 0, 3: 1, 4: 0, 5: 1} {
		if p := plight(i); p.State != job.Waiting || p.Ahead != ahead || !p.Full || p.Line.Counts[job.Waiting] != 4 {
			t.Errorf("job %d: %d ahead, want %d: %+v", i, p.Ahead, ahead, p)
		}
	}
	if p := plight(0); p.State != job.Active || p.Recalled != "" || p.Fence == 0 || p.Node != "n1" {
		t.Errorf("an active job: %+v", p)
	}
	if p := plight(6); p.Again || p.Debounced || !p.Due.Equal(scriptStart.Add(4*time.Hour)) || !p.Asked.Equal(p.Due) {
		t.Errorf("a delayed job: %+v", p)
	}
	if _, ok := l.Plight(jobID(50)); ok {
		t.Error("a job that never was is known")
	}
	due := stamp.At.Add(time.Minute)
	l.Apply(stamp, []Command{
		&Settle{Ends: []End{{Job: jobID(0), N: 1, Next: job.Again, At: due, Reason: "boom", Fault: &job.Fault{Message: "boom"}}}},
		&CancelJob{Job: jobID(1)},
	})
	if p := plight(0); p.State != job.Delayed || !p.Again || p.Redelivered || !p.Due.Equal(due) || p.Reason != "boom" {
		t.Errorf("a job between two attempts: %+v", p)
	}
	if p := plight(1); p.Recalled != job.RecallCancelled {
		t.Errorf("a job that is to stop: %+v", p)
	}
}

func TestQueueFacts(t *testing.T) {
	l, stamp := explained(t)
	if _, paused := l.PausedSince("mail"); paused {
		t.Error("a queue that runs is paused")
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
	if h := l.Holders("mail", 20); len(h) != 2 || h[0].ID == h[1].ID || h[0].Channel != "overhop/w1" {
		t.Errorf("holders: %+v", h)
	}
	if h := l.Holders("mail", 1); len(h) != 1 {
		t.Errorf("one holder: %+v", h)
	}
	if h := l.Holders("none", 20); h != nil {
		t.Errorf("holders of no queue: %+v", h)
	}
	heads := l.Heads("mail", 5)
	if len(heads) != 3 || heads[0].ID != jobID(3) || heads[1].ID != jobID(4) || heads[2].ID != jobID(2) || heads[2].Count != 2 || heads[2].Class != "py#" {
		t.Errorf("heads: %+v", heads)
	}
	if w, ok := l.Oldest("mail"); !ok || w.ID != jobID(2) {
		t.Errorf("oldest: %+v", w)
	}
	if id, at, _, ok := l.NextOf("mail"); !ok || id != jobID(7) || !at.Equal(scriptStart.Add(3*time.Hour)) {
		t.Errorf("next due: %s, %s, %t", id, at, ok)
	}
	if _, _, notBefore, ok := l.NextOf("none"); ok || !notBefore.IsZero() {
		t.Errorf("next due of no queue: %s, %t", notBefore, ok)
	}
	// Others' delayed jobs before it, more than are looked at: its own list is
	// short enough to look through.
	f := &Fold{Identity: "L0", From: 8, To: 8 + maxDueScan + 1, CreateQueues: true}
	for i := range maxDueScan + 1 {
		f.Jobs = append(f.Jobs, job.Job{ID: jobID(1000 + i), Queue: "others", Position: job.Position{Seq: uint64(9 + i)}, Accepted: scriptStart, RunAt: scriptStart.Add(time.Hour)})
	}
	if r := l.Apply(stamp, []Command{f}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	if id, _, _, ok := l.NextOf("mail"); !ok || id != jobID(7) {
		t.Errorf("next due behind others: %s, %t", id, ok)
	}
}

func TestRulingOf_UntoldOf(t *testing.T) {
	l, stamp := explained(t)
	lines, all := l.UntoldOf(jobID(1), 1000)
	if len(lines) != 3 || !all || !strings.Contains(string(lines[2]), `"event":"worker.assigned"`) {
		t.Errorf("untold: %q, %t", lines, all)
	}
	if lines, all := l.UntoldOf(jobID(1), 3); all || len(lines) > 1 {
		t.Errorf("untold, not looked through: %q, %t", lines, all)
	}
	l.Apply(stamp, []Command{&Told{Events: l.LastEvent()}})
	if lines, all := l.UntoldOf(jobID(1), 1000); len(lines) != 0 || !all {
		t.Errorf("after all was told: %q, %t", lines, all)
	}
	stamp.Index++
	guard := &job.Guards{Unique: job.Guard{Key: job.GuardKey{1}, For: time.Hour}}
	r := l.Apply(stamp, []Command{&Fold{Identity: "L0", From: 8, To: 10, Jobs: []job.Job{
		{ID: jobID(20), Queue: "mail", Position: job.Position{Seq: 9}, Accepted: scriptStart, Guards: guard},
		{ID: jobID(21), Queue: "mail", Position: job.Position{Seq: 10}, Accepted: scriptStart, Guards: guard},
	}}})
	if r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	if ruling, at, ok := l.RulingOf(jobID(21)); !ok || ruling.Folded != FoldedDuplicate || ruling.Job != jobID(20) || !at.Equal(l.Now()) {
		t.Errorf("ruling: %+v, %s, %t", ruling, at, ok)
	}
	if _, _, ok := l.RulingOf(jobID(1)); ok {
		t.Error("a job without keys has a ruling")
	}
}

// BenchmarkPlight asks for the last of the jobs that wait, with and without
// 100,000 that run, and for the one job of a queue that runs behind them all.
func BenchmarkPlight(b *testing.B) {
	for _, waiting := range []int{1000, 1_000_000} {
		l, stamp := filled(b, waiting)
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
				l.Apply(stamp, []Command{p, &Told{Events: l.LastEvent()}})
			}
			b.Run(fmt.Sprintf("waiting=%d/active=%d", waiting, active), func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					p, ok := l.Plight(benchID(waiting - 1))
					if !ok || p.Ahead < waiting-1-active-1000 {
						b.Fatalf("%+v", p)
					}
					l.Holders("mail", 20)
					l.Heads("mail", 5)
					l.Oldest("mail")
					l.NextOf("mail")
				}
			})
		}
		if waiting < 1_000_000 {
			continue
		}
		stamp.Index++
		late := job.Job{ID: jobID(1), Queue: "late", Position: job.Position{Seq: uint64(waiting + 1)}, Accepted: scriptStart}
		l.Apply(stamp, []Command{
			&Fold{Identity: "L0", From: uint64(waiting), To: uint64(waiting + 1), Jobs: []job.Job{late}, CreateQueues: true},
			&Place{Placements: []Placement{{Job: late.ID, N: 1, Node: "n1", Incarnation: 1, Channel: "overhop/w1"}}},
		})
		b.Run(fmt.Sprintf("waiting=%d/behind", waiting), func(b *testing.B) {
			for range b.N {
				if h := l.Holders("late", 20); len(h) != 1 {
					b.Fatalf("%+v", h)
				}
			}
		})
	}
}
