package node

import (
	"errors"
	"testing"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// TestReplay_BodyReclaimed: a job whose record is gone is found in its dead
// letter, and without one it cannot be done once more.
func TestReplay_BodyReclaimed(t *testing.T) {
	n := alone(t, nil)
	l := died(t, n, "mail", `{"function":"send","params":{"n":1},"unique_key":"u"}`)
	for range 2 { // the last record is never purged
		if _, err := enqueue(n, "mail", `{"params":{}}`, "", false); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.messages.Purge(t.Context(), l.Lane, l.Seq+1); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		old, err := n.dlq.ended(t.Context(), l.ID, "")
		if err != nil || old.queue != "mail" || old.spec.Function != "send" || string(old.spec.Params) != `{"n":1}` {
			t.Errorf("%+v, %v", old, err)
		}
	}
	check()
	if _, err := n.commander.do(t.Context(), &ledger.RemoveJob{Job: l.job}); err != nil {
		t.Fatal(err)
	}
	check() // the yard has forgotten the job; its letter has not
	if err := n.messages.RemoveLetter(t.Context(), l.number); err != nil {
		t.Fatal(err)
	}
	if _, err := n.dlq.ended(t.Context(), l.ID, ""); !errors.Is(err, job.ErrJobNotFound) {
		t.Errorf("nothing is left of it: %v", err)
	}

	l = died(t, n, "mail", `{"function":"send"}`)
	if _, err := enqueue(n, "mail", `{"params":{}}`, "", false); err != nil {
		t.Fatal(err)
	}
	if err := n.messages.Purge(t.Context(), l.Lane, l.Seq+1); err != nil {
		t.Fatal(err)
	}
	if err := n.messages.RemoveLetter(t.Context(), l.number); err != nil {
		t.Fatal(err)
	}
	var refused *cluster.APIError
	if _, err := n.dlq.ended(t.Context(), l.ID, ""); !errors.As(err, &refused) || refused.Code != "410" {
		t.Errorf("neither record nor letter: %v", err)
	}
}
