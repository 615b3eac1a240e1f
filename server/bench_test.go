package server

import (
	"log/slog"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/server/intake"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
	"github.com/yardmaster-dev/yardmaster/test/fakeledger"
)

// BenchmarkEnqueue measures a request that creates a job, without its way over NATS and
// through the lane.
func BenchmarkEnqueue(b *testing.B) {
	h := &Enqueue{Log: slog.New(slog.DiscardHandler), Intake: intake.New(intake.Config{
		Waiters: ledgerwait.New(fakeledger.New(), time.Second), CreateQueues: true, QueuesFull: func() bool { return false },
		CheckLoad: func() error { return nil },
		DelayAck:  func(_ bool, answer func()) { answer() },
		Publish: func(_, _ string, _ time.Time, _ []byte, done func(lanes.Ack, error)) {
			done(lanes.Ack{Position: job.Position{Seq: 1}}, nil)
		},
		OnAccept: func() {}, OnReject: func(err error) { b.Error(err) },
	})}
	text := []byte(`{"function":"send","params":{"to":"someone@example.org","n":1234567}}`)
	header := func(string) string { return "" }
	reply := func(_ []byte, err *api.Error) error {
		if err != nil {
			b.Error(err)
		}
		return nil
	}
	b.ReportAllocs()
	for b.Loop() {
		h.HandleAsync(cluster.NewRequest(text, "mail", header, reply))
	}
}
