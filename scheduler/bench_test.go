package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// instantRaft applies entries at once, so that a benchmark measures the loop and the
// ledger.
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
	c := Commit{Index: r.index, Results: r.ledger.Apply(ledger.Stamp{Index: r.index, Term: 1, At: p.At, Offsets: p.Offsets, Epoch: p.Epoch}, p.Commands)}
	return func(context.Context) (Commit, error) { return c, nil }, nil
}

func (r *instantRaft) View(fn func(*ledger.Ledger)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	fn(r.ledger)
}

func (r *instantRaft) Passed(*ledger.Ledger) time.Duration { return 0 }

func (r *instantRaft) Copy() *ledger.Ledger {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ledger.Copy()
}

// instantFleet simulates nodes that finish every job at once.
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

func (f *instantFleet) Assign(node string, b job.AssignmentBatch, done func([]job.Answer, error)) {
	f.work <- func() {
		answers := make([]job.Answer, len(b.Assignments))
		f.rev[node]++
		r := job.Report{Node: node, Incarnation: 1, Rev: f.rev[node], SeenBatch: b.Number, Outcomes: make([]job.Outcome, len(answers))}
		for i, a := range b.Assignments {
			answers[i] = job.Taken
			r.Outcomes[i] = job.Outcome{Job: a.Job, N: a.N, Status: job.Success, Started: true}
		}
		done(answers, nil)
		if f.sched.Report(r, func(job.ReportAck) { f.release(len(r.Outcomes)) }) != nil {
			f.release(len(r.Outcomes)) // the tenure has ended
		}
	}
}

func (f *instantFleet) Recall(string, job.Recall) {}

// instantStreams acknowledges every batch at once.
type instantStreams struct{ last [3][2]uint64 }

func (t *instantStreams) LastPublished(_ context.Context, s outbox.Stream) (seq, number uint64, err error) {
	return t.last[s][0], t.last[s][1], nil
}

func (t *instantStreams) Append(s outbox.Stream, batch outbox.Batch, expect uint64, done func(uint64, error)) {
	t.last[s] = [2]uint64{expect + 1, batch.First + batch.Count - 1}
	done(expect+1, nil)
}

func (t *instantStreams) HasSubscribers(string, string) bool { return false }
func (t *instantStreams) PublishLive(string, string, []byte) {}

// BenchmarkTenure measures a job's whole way through the authority while
// everything else takes no time: receive, ingest, placement, assignment,
// outcome, history. An operation is one job.
func BenchmarkTenure(b *testing.B) {
	for _, workers := range []int{3, 3000} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) { benchmarkTenure(b, workers, 0) })
	}
	b.Run("workers=3 keys=10000", func(b *testing.B) { benchmarkTenure(b, 3, 10_000) })
}

// benchmarkTenure has jobs of a number of keys in turn, of each of which two may run; keys 0 is
// without keys and limits.
func benchmarkTenure(b *testing.B, workers, keys int) {
	raft := &instantRaft{ledger: ledger.New()}
	if keys > 0 {
		raft.index++
		raft.ledger.Apply(ledger.Stamp{Index: raft.index, Term: 1, At: time.Now()}, []ledger.Command{
			&ledger.SetLimit{Name: "stripe", Change: job.LimitChange{PerKey: new(job.Slots(2))}},
			&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{Limits: []string{"stripe"}}},
		})
	}
	fleet := &instantFleet{rev: map[string]uint64{}, work: make(chan func(), 1<<16), open: make(chan struct{}, 4096)}
	cfg := Config{Node: "n1", Members: []string{"n1", "n2", "n3"}, Policy: job.DefaultPolicy, CreateQueues: true}
	lanes := &fakeLanes{recordSize: 1 << 10, tailEnds: make(chan struct{})}
	s := New(cfg, raft, lanes, fleet, &instantStreams{}, slog.New(slog.DiscardHandler))
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
		if tenure := s.current(); tenure != nil {
			l, err := s.Status(ctx)
			ready = err == nil && !l.Deferred && len(l.Reasons) == 0
		}
	}
	for _, node := range cfg.Members {
		_ = s.Heartbeat(job.Heartbeat{Node: node, Incarnation: 1}, func(job.HeartbeatAck) {})
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
			fleet.open <- struct{}{} // at most as many jobs as the lanes keep beyond a gap
			seq[lane]++
			if keys > 0 {
				body = fmt.Appendf(nil, `{"function":"send","params":{"to":"somebody@example.org","n":12345},"limit_key":"k%d"}`, i%keys)
			}
			records = append(records, job.Record{Position: job.Position{Lane: lane, Seq: seq[lane]}, Queue: "mail", Stored: time.Now(), Body: body, Last: true})
		}
		s.ReceiveRecords(records)
		select {
		case <-beats.C:
			for _, node := range cfg.Members {
				_ = s.Heartbeat(job.Heartbeat{Node: node, Incarnation: 1, Rev: 1}, func(job.HeartbeatAck) {})
			}
		default:
		}
	}
	for range cap(fleet.open) { // all jobs have ended
		fleet.open <- struct{}{}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
	b.ReportMetric(float64(b.N)/float64(raft.entries), "jobs/entry")
	cancel()
	group.Wait()
}
