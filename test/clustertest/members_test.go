package clustertest_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// waitSettled waits until no change of members is in progress, and returns the members.
func waitSettled(cl *clustertest.Cluster, m *clustertest.Member) (v api.Membership) {
	cl.Eventually("the change of members is complete", func() error {
		v = api.Membership{}
		if err := m.API("cluster.members", struct{}{}, &v); err != nil {
			return err
		}
		if v.Change != "" {
			return fmt.Errorf("%s: %s", v.Change, v.Step)
		}
		return nil
	})
	return v
}

// startChange requests a change of members, again while the cluster is not ready for it.
func startChange(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, verb string, question map[string]string) {
	t.Helper()
	cl.Eventually("cluster "+verb+" begins", func() error {
		return m.API("cluster."+verb, question, nil)
	})
}

// TestMembers_JoinAndLeave adds a fourth member, moves the authority to it, removes an
// initial member, and replaces another that has lost its directory. Jobs run all the
// time, and none may be lost.
func TestMembers_JoinAndLeave(t *testing.T) {
	if os.Getenv("YARD_SOAK") == "" {
		t.Skip("long: set YARD_SOAK=1, or run make drill-tests")
	}
	if testing.Short() {
		t.Skip("starts four nodes")
	}
	t.Parallel()
	cl := clustertest.Start(t, 3, testConfig)
	n1, n2, n3 := cl.Members[0], cl.Members[1], cl.Members[2]
	var ids []string
	work := func(members ...*clustertest.Member) {
		for _, m := range members {
			for range 5 {
				ids = append(ids, m.Enqueue(t, "one-place", `{"function":"demo#echo","params":{}}`).String())
			}
		}
	}
	work(n1, n2, n3)
	refused := func(verb string, question map[string]string, text string) {
		t.Helper()
		if err := n1.API("cluster."+verb, question, nil); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("cluster %s %v: %v, want %q", verb, question, err, text)
		}
	}
	waitSettled(cl, n1)
	refused("rm", map[string]string{"name": "n3"}, "the minimum is 3")
	refused("add", map[string]string{"name": "n3", "route": "h:1", "raft": "h:2"}, "is a member already")
	refused("add", map[string]string{"name": "n4", "route": "127.0.0.1:1", "raft": "127.0.0.1:1"}, "no node answers at")
	refused("replace", map[string]string{"name": "n3"}, "needs no replacement")
	refused("cancel", nil, "no change of members is under way")

	n4 := cl.StartWaitingNode("n4", testConfig)
	startChange(t, cl, n2, "add", map[string]string{"name": "n4", "route": n4.Config.NATS.RouteListen, "raft": n4.Config.Raft.Listen})
	refused("add", map[string]string{"name": "n5", "route": "h:1", "raft": "h:2"}, "")
	n4.WaitServing()
	v := waitSettled(cl, n4)
	if len(v.Members) != 4 || v.Members[3].State != "present" || !v.Members[3].Voter {
		t.Fatalf("after the addition: %+v", v)
	}
	work(n4)
	if err := n3.API("cluster.transfer", map[string]string{"to": "n4"}, nil); err != nil {
		t.Fatal(err)
	}
	if a := cl.WaitAuthority(); a != n4 {
		t.Errorf("%s has the authority", a.Name)
	}

	startChange(t, cl, n2, "rm", map[string]string{"name": "n1"})
	var gone *consensus.RemovedError
	if err := n1.WaitEnd(); !errors.As(err, &gone) {
		t.Errorf("n1 ended with %v", err)
	}
	cl.RemoveMember("n1")
	if v = waitSettled(cl, n4); len(v.Members) != 3 || len(v.Skew) > 0 {
		t.Errorf("after the removal: %+v", v)
	}
	work(n2, n3, n4)

	n3.Stop()
	n3 = cl.StartWaitingNode("n3", testConfig)
	startChange(t, cl, n4, "replace", map[string]string{"name": "n3", "route": n3.Config.NATS.RouteListen, "raft": n3.Config.Raft.Listen})
	n3.WaitServing()
	if v = waitSettled(cl, n4); len(v.Members) != 3 || v.Members[1].Directory == "" || v.Members[1].State != "present" {
		t.Errorf("after the replacement: %+v", v)
	}
	work(n3)
	for _, id := range ids {
		n3.WaitState(t, id, "completed")
	}
	// A member can restart with a configuration from before these changes.
	n2.Restart()
	cl.WaitReady()
	if v = waitSettled(cl, n2); len(v.Members) != 3 || v.Members[0].Declares == "" {
		t.Errorf("after a start with an old configuration: %+v", v)
	}
}
