package ledger_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// TestTransitions checks the transitions and events of each entry of some lives.
func TestTransitions(t *testing.T) {
	l, index, now := ledger.New(), uint64(0), time.Unix(1000, 0)
	l.RecordTransitions()
	var epoch uint64
	apply := func(commands ...ledger.Command) (texts []string) {
		t.Helper()
		index++
		for i, r := range l.Apply(ledger.Stamp{Index: index, Term: 1, At: now, Epoch: epoch}, commands) {
			if r.Err != nil {
				t.Fatalf("%T: %v", commands[i], r.Err)
			}
		}
		for _, tr := range l.Transitions() {
			texts = append(texts, fmt.Sprintf("%s %v>%v attempt=%d redelivered=%v back=%v due=%d started=%d error=%s",
				tr.Queue, tr.Before, tr.After, tr.Attempt, tr.Redelivered, tr.GivenBack, tr.Due/1e9, tr.Started/1e9, tr.Error))
		}
		now = now.Add(time.Second)
		return texts
	}
	apply(&ledger.Lead{Owner: "n1", Until: now.Add(time.Hour)})
	epoch = l.Authority().Epoch
	if events := l.LastEvents(); len(events) != 1 || events[0].Kind != ledger.AuthorityAcquired {
		t.Errorf("events %v", events)
	}
	apply(&ledger.Bootstrap{Lanes: []string{"L0"}})
	if events := l.LastEvents(); len(events) != 0 {
		t.Errorf("events of the entry before: %v", events)
	}
	id := job.ID{1}
	place := func(n uint32) *ledger.Place {
		return &ledger.Place{Placements: []ledger.Placement{{Job: id, N: n, Node: "n1", Channel: "w1"}}}
	}
	settle := func(s ledger.Settlement) *ledger.Settle {
		s.Job = id
		return &ledger.Settle{Settlements: []ledger.Settlement{s}}
	}
	for i, step := range []struct {
		command ledger.Command
		want    []string
	}{
		{&ledger.Ingest{Identity: "L0", To: 1, CreateQueues: true, Jobs: []job.Job{{ID: id, Queue: "mail", Accepted: now, Position: job.Position{Seq: 1}}}},
			[]string{"mail new>waiting attempt=0 redelivered=false back=false due=0 started=0 error="}},
		{place(1), []string{"mail waiting>active attempt=1 redelivered=false back=false due=1002 started=0 error="}},
		{settle(ledger.Settlement{N: 1, Next: job.NextGiveBack, Reason: "lost"}), []string{"mail active>waiting attempt=0 redelivered=false back=true due=0 started=1003 error="}},
		{place(2), []string{"mail waiting>active attempt=1 redelivered=true back=false due=1004 started=0 error="}},
		{settle(ledger.Settlement{N: 2, Next: job.NextRetry, Reason: "no", Fault: &job.Fault{Message: "no", Type: "smtp"}, At: now.Add(5 * time.Second)}),
			[]string{"mail active>delayed attempt=1 redelivered=false back=false due=0 started=1005 error=smtp"}},
		{&ledger.ChangeQueue{Name: "mail"}, nil}, // 1007
		{&ledger.ChangeQueue{Name: "mail"}, nil},
		{&ledger.ChangeQueue{Name: "mail"}, nil},
		{&ledger.ChangeQueue{Name: "mail"}, nil},
		{&ledger.ChangeQueue{Name: "mail"}, nil}, // due
		{place(3), []string{"mail waiting>active attempt=2 redelivered=false back=false due=1007 started=0 error="}},
		{settle(ledger.Settlement{N: 3, Next: job.NextDead, Reason: "no", Fault: &job.Fault{Message: "no", Type: "smtp"}}),
			[]string{"mail active>failed attempt=2 redelivered=false back=false due=0 started=1012 error=smtp"}},
		{&ledger.RetryJob{Job: id}, nil},
		{&ledger.CancelJob{Job: id}, []string{"mail waiting>cancelled attempt=0 redelivered=false back=false due=0 started=0 error=cancelled"}},
		{&ledger.Ingest{Identity: "L0", From: 1, To: 2, Rejected: []ledger.Rejection{{ID: job.ID{2}, Queue: "mail", Seq: 2, Accepted: now, Reason: "bad"}}},
			[]string{"mail new>failed attempt=0 redelivered=false back=false due=0 started=0 error=rejected"}},
	} {
		if got := apply(step.command); !slices.Equal(got, step.want) {
			t.Errorf("step %d, %T:\n got %q\nwant %q", i, step.command, got, step.want)
		}
	}
	if copied := l.Copy(); copied.Transitions() != nil {
		t.Error("a copy has transitions")
	}
}
