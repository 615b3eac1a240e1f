package agent

import (
	"context"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// instantTransport settles everything at once.
type instantTransport struct{ never chan struct{} }

func (i instantTransport) Authority() (string, uint64, bool) { return "n1", 1, true }
func (i instantTransport) AuthorityChanged() <-chan struct{} { return i.never }
func (i instantTransport) LoadBody(context.Context, job.Position, job.ID) ([]byte, error) {
	return nil, ErrBodyLost
}
func (i instantTransport) StoreResult(context.Context, string, []byte) (b job.Blob, e error) { return }
func (i instantTransport) StoreError(context.Context, job.ID, *job.AttemptError) error       { return nil }
func (i instantTransport) Report(_ context.Context, _ string, r job.Report) (job.ReportAck, error) {
	return job.ReportAck{Epoch: 1, Settled: make([]job.Settled, len(r.Outcomes))}, nil
}
func (i instantTransport) Heartbeat(context.Context, string, job.Heartbeat) (job.HeartbeatAck, error) {
	return job.HeartbeatAck{Epoch: 1, Lease: time.Hour}, nil
}

// instantTarget ends each dispatch as soon as it starts.
type instantTarget struct{ agent *Agent }

func (e instantTarget) Kind() job.Kind  { return job.Overhop }
func (e instantTarget) Stop(job.Recall) {}
func (e instantTarget) Start(a job.Assignment, _ job.Spec) bool {
	e.agent.Report(job.Outcome{Job: a.Job, N: a.N, Status: job.Success, Started: true}, nil)
	return true
}

// BenchmarkJob measures the agent's cost of one job, from the assignment to
// the settled outcome.
func BenchmarkJob(b *testing.B) {
	a := New(Config{}, instantTransport{make(chan struct{})}, slog.New(slog.DiscardHandler))
	a.AddTarget(instantTarget{a})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	assignments := make([]job.Assignment, 64)
	for i := range assignments {
		assignments[i] = job.Assignment{N: 1, Kind: job.Overhop, Key: "mail", Worker: "w", Body: []byte(`{"function":"send","params":{"to":"somebody"}}`)}
	}
	b.ReportAllocs()
	n, batch := uint64(0), job.AssignmentBatch{Epoch: 1, Assignments: assignments}
	for b.Loop() {
		for i := range assignments {
			n++
			binary.BigEndian.PutUint64(assignments[i].Job[:], n)
		}
		batch.Number++
		a.Assign(batch)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/job")
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
