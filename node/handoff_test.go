package node

import (
	"context"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// acceptsWork reports whether a node would accept an assignment, whatever its free slots.
func acceptsWork(n *Node) bool {
	_, epoch, _ := n.authority.Current()
	return n.agent.Assign(job.AssignmentBatch{Epoch: epoch, Assignments: []job.Assignment{{Job: job.ID{1}, N: 1}}})[0] != job.Draining
}

// When the whole cluster stops, nothing is handed over, and drains can no longer be started
// or taken back.
func TestHandOff_AllNodesStop(t *testing.T) {
	n := startSingleNode(t, nil)
	if !acceptsWork(n) {
		t.Fatal("the node takes no work at the start")
	}
	if n.drainer.HandOff(t.Context()) {
		t.Error("HandOff reports another member")
	}
	if owner, _, _ := n.authority.Current(); owner != n.cfg.Node.Name {
		t.Errorf("%q holds the authority", owner)
	}
	if acceptsWork(n) {
		t.Error("it still takes work")
	}
	if !n.transfer.Leaving.Load() {
		t.Error("it does not announce that it is leaving")
	}
	_, err := n.drainer.HandleDrain(t.Context())
	wantConflict(t, err)
	_, err = n.drainer.HandleResume(t.Context())
	wantConflict(t, err)
}

// Without another member, the authority and the streams stay where they are.
func TestHandOff_SingleNode(t *testing.T) {
	n := startSingleNode(t, nil)
	_, err := n.transfer.HandleStepdown(t.Context())
	wantConflict(t, err)
	ended, end := context.WithCancel(t.Context())
	end()
	n.drainer.LeaveStreams(ended)
	if _, err := enqueue(n, "mail", `{"function":"f","params":{}}`, "k", false); err != nil {
		t.Errorf("it no longer accepts jobs: %v", err)
	}
}

// A member whose replacement is cancelled takes work again.
func TestApplyMembership_RemovalCancelled(t *testing.T) {
	n := startSingleNode(t, nil)
	do := func(c ledger.Command) {
		t.Helper()
		if r, _, err := n.scheduler.Propose(t.Context(), c); err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	waits := func(want bool) {
		t.Helper()
		for acceptsWork(n) != want {
			_, changed := n.raft.Applied()
			select {
			case <-changed:
			case <-time.After(20 * time.Millisecond): // the membership is applied after the ledger changes
			case <-soon.Done():
				t.Fatalf("takes work: %v", !want)
			}
		}
	}
	do(&ledger.SetMembers{Members: []ledger.Member{{Node: n.id.Node, Dir: n.id.Dir, State: ledger.MemberPresent}}})
	do(&ledger.ChangeMembers{Leave: n.id.ServerID(), Join: &ledger.Member{Node: "n2", Dir: "0000000b", Route: "127.0.0.1:1", Raft: "127.0.0.1:2"}})
	waits(false)
	do(&ledger.ChangeMembers{Cancel: true})
	waits(true)
}
