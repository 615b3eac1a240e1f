package intake

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
	"github.com/yardmaster-dev/yardmaster/test/fakeledger"
)

// TestIntake_Load checks that a job is not published while the load forbids it, and that
// its acknowledgement is sent after the delay.
func TestIntake_Load(t *testing.T) {
	var order []string
	var loadErr error
	var delayed func()
	in := New(Config{
		Waiters: ledgerwait.New(fakeledger.New(), time.Second), CreateQueues: true, QueuesFull: func() bool { return false },
		CheckLoad: func() error { return loadErr },
		DelayAck:  func(_ bool, answer func()) { delayed = answer },
		Publish: func(_, _ string, _ time.Time, _ []byte, done func(lanes.Ack, error)) {
			order = append(order, "published")
			done(lanes.Ack{Position: job.Position{Seq: 1}}, nil)
		},
		OnAccept: func() { order = append(order, "accepted") },
		OnReject: func(error) { order = append(order, "rejected") },
	})
	var answer error
	publish := func() {
		in.PublishAsync(Job{Queue: "mail", Spec: job.Spec{Params: json.RawMessage(`{}`)}}, func(_ Ack, err error) {
			order, answer = append(order, "answered"), err
		})
	}
	check := func(name string, want ...string) {
		t.Helper()
		if got, _ := json.Marshal(order); string(got) != asJSON(want) {
			t.Errorf("%s: %s, want %q", name, got, want)
		}
		order = nil
	}
	publish()
	check("delayed", "published", "accepted")
	delayed()
	check("after the delay", "answered")
	if answer != nil {
		t.Error(answer)
	}
	loadErr = &job.UnavailableError{Reason: "too much", RetryAfter: time.Second}
	publish()
	check("refused", "rejected", "answered")
	if !errors.Is(answer, loadErr) {
		t.Errorf("answered with %v", answer)
	}
}

// asJSON returns the JSON of words.
func asJSON(words []string) string {
	text, err := json.Marshal(words)
	if err != nil {
		panic(err)
	}
	return string(text)
}
