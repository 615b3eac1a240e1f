package intake

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
	"github.com/yardmaster-dev/yardmaster/server/schemas"
	"github.com/yardmaster-dev/yardmaster/test/fakeledger"
)

// BenchmarkPublishAsync measures the intake's cost of one job, without and with the
// producer's JSON, and in a queue with a schema.
func BenchmarkPublishAsync(b *testing.B) {
	f := fakeledger.New()
	f.Apply(&ledger.SetSchema{Queue: "checked", Function: "send", Text: []byte(`{"type":"object","properties":{"to":{"type":"string","minLength":3},"n":{"type":"integer"}},"required":["to"]}`)})
	var set *ledger.Schemas
	f.View(func(l *ledger.Ledger) { set = l.Schemas() })
	in := New(Config{
		Schemas: schemas.New(schemas.Config{Schemas: func() *ledger.Schemas { return set }}),
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
	for _, bb := range []struct {
		name, queue string
		body        []byte
	}{{"spec", "mail", nil}, {"body", "mail", body}, {"schema", "checked", body}} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				in.PublishAsync(Job{Queue: bb.queue, Spec: spec, Body: bb.body}, func(Ack, error) {})
			}
		})
	}
}
