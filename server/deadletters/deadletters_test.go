package deadletters

import (
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

func TestRequeue_AttemptsLeft(t *testing.T) {
	state := ledger.New()
	state.Apply(ledger.Stamp{Index: 1, Term: 1, At: time.Now()}, []ledger.Command{&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{
		MaxAttempts: 8, Retries: []job.RetryRule{{Function: "send", MaxAttempts: 7}},
	}}})
	m := &requeuer{Server: New(Config{MaxAttempts: 5, View: func(read func(*ledger.Ledger)) { read(state) }})}
	own := int64(3)
	for _, c := range []struct {
		own             *int64
		queue, function string
		had             uint32
		want            int64
	}{
		{nil, "gone", "", 0, 5}, {nil, "gone", "", 2, 3}, {nil, "gone", "", 5, 1}, {nil, "gone", "", 9, 1}, {&own, "mail", "", 1, 2}, {&own, "mail", "", 3, 1},
		{nil, "mail", "send", 5, 2}, {nil, "mail", "other", 5, 3},
	} {
		l := &letter{DeadLetterMessage: api.DeadLetterMessage{Queue: c.queue, Function: c.function, Attempts: c.had}}
		if got := *m.attemptsLeft(c.own, l); got != c.want {
			t.Errorf("%v in %s after %d: %d, want %d", c.own, c.queue, c.had, got, c.want)
		}
	}
}

func TestRequest_Matches(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	before, after := at.Add(-time.Second), at.Add(time.Second)
	id := job.ID{1}
	l := letter{number: 7, job: id, DeadLetterMessage: api.DeadLetterMessage{
		Queue: "mail", Function: "send", Reason: "no Route to host", Failed: at,
		Error: &job.Fault{Message: "dial: refused", Type: "smtp", Code: "E7"},
	}}
	for _, c := range []struct {
		name string
		q    api.DeadLetterRequest
		want bool
	}{
		{"nothing", api.DeadLetterRequest{}, true},
		{"all of it", api.DeadLetterRequest{Queue: "mail", Function: "send", Error: "SMTP", FailedBefore: &after, FailedAfter: &before, Jobs: []job.ID{{9}, id}}, true},
		{"another queue", api.DeadLetterRequest{Queue: "mai"}, false},
		{"another function", api.DeadLetterRequest{Function: "sen"}, false},
		{"a part of the reason", api.DeadLetterRequest{Error: "route TO"}, true},
		{"a part of the message", api.DeadLetterRequest{Error: "refused"}, true},
		{"the code", api.DeadLetterRequest{Error: "e7"}, true},
		{"a part of the type", api.DeadLetterRequest{Error: "smt"}, false},
		{"earlier", api.DeadLetterRequest{FailedBefore: &at}, false},
		{"later", api.DeadLetterRequest{FailedAfter: &at}, false},
		{"another job", api.DeadLetterRequest{Jobs: []job.ID{{2}}}, false},
	} {
		if got := (&request{DeadLetterRequest: c.q}).matches(&l); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if l.Error = nil; l.failedWith("smtp") || !l.failedWith("host") {
		t.Error("a dead letter without an error must be grouped by its reason")
	}
}

// A message that cannot be decoded is listed and can only be removed.
func TestParse_Unreadable(t *testing.T) {
	for name, m := range map[string]streams.Batch{
		"not JSON":  {ID: "dead/" + job.RequestID(job.ID{1}, 1), Body: []byte("{")},
		"no name":   {Body: []byte(`{"queue":"mail"}`)},
		"bad name":  {ID: "dead/7#1", Body: []byte(`{"queue":"mail"}`)},
		"bad field": {ID: "dead/" + job.RequestID(job.ID{1}, 1), Body: []byte(`{"queue":7}`)},
	} {
		m.Subject, m.Seq = "yard.dlq.post", 3
		l := parse(&m)
		if !l.unreadable || l.number != 3 || l.Queue != "post" || !strings.HasPrefix(l.Reason, "this letter cannot be read: ") {
			t.Errorf("%s: %+v", name, l)
		}
		requeuing := &requeuer{Server: New(Config{}), req: &request{}}
		if item, err := requeuing.requeueOne(t.Context(), &l); err == nil || !strings.Contains(err.Error(), "dlq rm") {
			t.Errorf("%s: %+v, %v", name, item, err)
		}
	}
}

// The size of a dead letter is that of its JSON, in which a character may have six bytes.
func TestLetter_Size(t *testing.T) {
	l := letter{DeadLetterMessage: api.DeadLetterMessage{
		Reason: strings.Repeat("\x1b", 200), Error: &job.Fault{Message: strings.Repeat("\x01", 4000)}, Record: make([]byte, 10_000),
	}}
	if size := l.size(); size < 6*4200 || size > 6*4200+1000 {
		t.Errorf("%d bytes", size)
	}
}
