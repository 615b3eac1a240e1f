package node

import (
	"errors"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// A job whose record has been deleted is replayed from its dead letter; without one it
// cannot be replayed.
func TestReplay_BodyReclaimed(t *testing.T) {
	n := startSingleNode(t, nil)
	l := failedJob(t, n, "mail", `{"function":"send","params":{"n":1},"unique_key":"u"}`)
	for range 2 { // the last record of a lane is never purged
		if _, err := enqueue(n, "mail", `{"params":{}}`, "", false); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.cluster.Admin.Purge(t.Context(), l.Lane, l.Seq+1); err != nil {
		t.Fatal(err)
	}
	replay := func() (api.ReplayReply, error) {
		var reply api.ReplayReply
		err := request(t, n.apiHandlers(), "job-replay", map[string]string{"id": l.ID}, &reply)
		return reply, err
	}
	check := func() {
		t.Helper()
		reply, err := replay()
		if err != nil || reply.Queue != "mail" || reply.ReplayOf != l.job {
			t.Fatalf("%+v, %v", reply, err)
		}
		if err := n.viewer.CatchUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		if made, err := n.viewer.Full(t.Context(), reply.ID, api.MaxShownBytes); err != nil || made.Spec.Function != "send" || string(made.Spec.Params) != `{"n":1}` {
			t.Errorf("%+v, %v", made, err)
		}
	}
	check()
	if _, err := n.proposer.Propose(t.Context(), &ledger.RemoveJob{Job: l.job}); err != nil {
		t.Fatal(err)
	}
	check() // the ledger no longer has the job, but its dead letter still exists
	if err := n.cluster.Admin.RemoveDeadLetter(t.Context(), l.Number); err != nil {
		t.Fatal(err)
	}
	if _, err := replay(); !errors.Is(err, job.ErrJobNotFound) {
		t.Errorf("without the dead letter: %v", err)
	}

	l = failedJob(t, n, "mail", `{"function":"send"}`)
	if _, err := enqueue(n, "mail", `{"params":{}}`, "", false); err != nil {
		t.Fatal(err)
	}
	if err := n.cluster.Admin.Purge(t.Context(), l.Lane, l.Seq+1); err != nil {
		t.Fatal(err)
	}
	if err := n.cluster.Admin.RemoveDeadLetter(t.Context(), l.Number); err != nil {
		t.Fatal(err)
	}
	var refused *api.Error
	if _, err := replay(); !errors.As(err, &refused) || refused.Code != api.CodeGone {
		t.Errorf("with neither record nor dead letter: %v", err)
	}
}
