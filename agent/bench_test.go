package agent

import (
	"context"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"yardmaster/job"
)

// instant settles everything at once.
type instant struct{ never chan struct{} }

func (i instant) Authority() (string, uint64, bool)                               { return "n1", 1, true }
func (i instant) AuthorityChanged() <-chan struct{}                               { return i.never }
func (i instant) Load(context.Context, job.Position, job.ID) ([]byte, error)      { return nil, ErrBodyLost }
func (i instant) StoreBlob(context.Context, string, []byte) (b job.Blob, e error) { return }
func (i instant) Report(_ context.Context, _ string, r job.Report) (job.ReportAck, error) {
	return job.ReportAck{Epoch: 1, Settled: make([]job.Settled, len(r.Outcomes))}, nil
}
func (i instant) Beat(context.Context, string, job.Beat) (job.BeatAck, error) {
	return job.BeatAck{Epoch: 1, Lease: time.Hour}, nil
}

// eager ends each dispatch when it starts.
type eager struct{ agent *Agent }

func (e eager) Kind() job.Kind                        { return job.Overhop }
func (e eager) Stop(job.ID, uint32, job.RecallReason) {}
func (e eager) Start(a job.Assignment, _ job.Spec) bool {
	e.agent.Report(job.Outcome{Job: a.Job, N: a.N, Status: job.Success, Started: true}, nil)
	return true
}

// BenchmarkJob is what one job costs here, from order to settled outcome.
func BenchmarkJob(b *testing.B) {
	a := New(Config{}, instant{make(chan struct{})}, slog.New(slog.DiscardHandler))
	a.Add(eager{a})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	orders := make([]job.Assignment, 64)
	for i := range orders {
		orders[i] = job.Assignment{N: 1, Kind: job.Overhop, Key: "mail", Worker: "w", Body: []byte(`{"function":"send","params":{"to":"somebody"}}`)}
	}
	b.ReportAllocs()
	n, batch := uint64(0), job.Batch{Epoch: 1, Assignments: orders}
	for b.Loop() {
		for i := range orders {
			n++
			binary.BigEndian.PutUint64(orders[i].Job[:], n)
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
