package intake

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
	"github.com/yardmaster-dev/yardmaster/test/fakeledger"
)

// BenchmarkPublishAsync measures the intake's cost of one job, without and with the
// producer's JSON.
func BenchmarkPublishAsync(b *testing.B) {
	in := New(Config{
		Waiters: ledgerwait.New(fakeledger.New(), time.Second), CreateQueues: true, QueuesFull: func() bool { return false },
		CheckLoad: func() error { return nil },
		DelayAck:  func(_ bool, answer func()) { answer() },
		Publish: func(_, _ string, _ time.Time, _ []byte, done func(lanes.Ack, error)) {
			done(lanes.Ack{Position: job.Position{Seq: 1}}, nil)
		},
		OnAccept: func() {}, OnReject: func(err error) { b.Error(err) },
	})
	spec := job.Spec{Function: "send", Params: json.RawMessage(`{"to":"someone@example.org","n":1234567}`)}
	body, err := spec.Encode()
	if err != nil {
		b.Fatal(err)
	}
	for name, body := range map[string][]byte{"spec": nil, "body": body} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				in.PublishAsync(Job{Queue: "mail", Spec: spec, Body: body}, func(Ack, error) {})
			}
		})
	}
}
