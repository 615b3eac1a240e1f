package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// instantRaft applies at once: what is measured is the mind and the ledger.
type instantRaft struct {
	mu      sync.RWMutex
	ledger  *ledger.Ledger
	index   uint64
	entries int
}

func (r *instantRaft) Submit(p Proposal) (func(context.Context) (Commit, error), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.index++
	r.entries++
	c := Commit{Index: r.index, Results: r.ledger.Apply(ledger.Stamp{Index: r.index, Term: 1, At: p.At, Epoch: p.Epoch}, p.Commands)}
	return func(context.Context) (Commit, error) { return c, nil }, nil
}

func (r *instantRaft) View(fn func(*ledger.Ledger)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	fn(r.ledger)
}

func (r *instantRaft) Copy() *ledger.Ledger {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ledger.Copy()
}

// instantFleet is nodes that finish everything at once.
type instantFleet struct {
	sched *Scheduler
	rev   map[string]uint64
	work  chan func()
	open  chan struct{} // jobs that have not ended
}

func (f *instantFleet) release(n int) {
	for range n {
		<-f.open
	}
}

func (f *instantFleet) Assign(node string, b job.Batch, done func([]job.Answer, error)) {
	f.work <- func() {
		answers := make([]job.Answer, len(b.Assignments))
		f.rev[node]++
		r := job.Report{Node: node, Incarnation: 1, Rev: f.rev[node], Seen: b.Number, Outcomes: make([]job.Outcome, len(answers))}
		for i, a := range b.Assignments {
			answers[i] = job.Taken
			r.Outcomes[i] = job.Outcome{Job: a.Job, N: a.N, Status: job.Success, Started: true}
		}
		done(answers, nil)
		if f.sched.Report(r, func(job.ReportAck) { f.release(len(r.Outcomes)) }) != nil {
			f.release(len(r.Outcomes)) // the tenure is over
		}
	}
}

func (f *instantFleet) Recall(string, job.Recall) {}

// instantTales acknowledge at once.
type instantTales struct{ last [3][2]uint64 }

func (t *instantTales) LastTold(_ context.Context, s Story) (seq, number uint64, err error) {
	return t.last[s][0], t.last[s][1], nil
}

func (t *instantTales) Append(s Story, tale Tale, expect uint64, done func(uint64, error)) {
	t.last[s] = [2]uint64{expect + 1, tale.First + tale.Count - 1}
	done(expect+1, nil)
}

func (t *instantTales) Watched(string, string) bool { return false }
func (t *instantTales) Live(string, string, []byte) {}

// BenchmarkMind is a job's whole way through the authority with everything
// around it taking no time: notice, fold, placement, assignment, outcome,
// history. An operation is a job.
func BenchmarkMind(b *testing.B) {
	for _, workers := range []int{3, 3000} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) { benchmarkMind(b, workers) })
	}
}

func benchmarkMind(b *testing.B, workers int) {
	raft := &instantRaft{ledger: ledger.New()}
	fleet := &instantFleet{rev: map[string]uint64{}, work: make(chan func(), 1<<16), open: make(chan struct{}, 4096)}
	cfg := Config{Node: "n1", Members: []string{"n1", "n2", "n3"}, Policy: job.DefaultPolicy, CreateQueues: true}
	lanes := &fakeLanes{tailed: make(chan struct{})}
	s := New(cfg, raft, lanes, fleet, &instantTales{}, slog.New(slog.DiscardHandler))
	fleet.sched = s
	ctx, cancel := context.WithCancel(b.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := s.Run(ctx, 1); err != nil {
			b.Error(err)
		}
	})
	group.Go(func() {
		for {
			select {
			case f := <-fleet.work:
				f()
			case <-ctx.Done():
				return
			}
		}
	})
	for ready := false; !ready; {
		if m := s.tenure(); m != nil {
			l, err := s.Look(ctx)
			ready = err == nil && !l.Deferred && len(l.Reasons) == 0
		}
	}
	for _, node := range cfg.Members {
		_ = s.Beat(job.Beat{Node: node, Incarnation: 1}, func(job.BeatAck) {})
		r := job.Report{Node: node, Incarnation: 1, Rev: 1, Full: true}
		for w := range workers / 3 {
			r.Offers = append(r.Offers, job.Offer{Kind: job.Overhop, Key: "mail", Worker: fmt.Sprint(node, "-", w), Free: 3000 / workers})
		}
		fleet.rev[node] = 1
		_ = s.Report(r, func(job.ReportAck) {})
	}
	beats := time.NewTicker(time.Second)
	defer beats.Stop()
	body := []byte(`{"function":"send","params":{"to":"somebody@example.org","n":12345}}`)
	b.ReportAllocs()
	b.ResetTimer()
	seq := [3]uint64{}
	for i := 0; i < b.N; {
		records := make([]job.Record, 0, 64)
		lane := uint8(i / 64 % 3)
		for ; i < b.N && len(records) < 64; i++ {
			fleet.open <- struct{}{} // no more at once than the lanes' windows hold
			seq[lane]++
			records = append(records, job.Record{Position: job.Position{Lane: lane, Seq: seq[lane]}, Queue: "mail", Stored: time.Now(), Body: body})
		}
		s.Notice(records)
		select {
		case <-beats.C:
			for _, node := range cfg.Members {
				_ = s.Beat(job.Beat{Node: node, Incarnation: 1, Rev: 1}, func(job.BeatAck) {})
			}
		default:
		}
	}
	for range cap(fleet.open) { // all have ended when all is free
		fleet.open <- struct{}{}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
	b.ReportMetric(float64(b.N)/float64(raft.entries), "jobs/entry")
	cancel()
	group.Wait()
}
