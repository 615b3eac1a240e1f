package nodetest_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"yardmaster/consensus"
	"yardmaster/internal/nodetest"
	"yardmaster/membership"
)

// settled waits until no change is under way, and gives the members' states.
func settled(y *nodetest.Yard, m *nodetest.Member) (v membership.View) {
	y.Eventually("the change of members comes to its end", func() error {
		v = membership.View{}
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

// begins asks for a change, again while the yard says that it is not ready for it.
func begins(t *testing.T, y *nodetest.Yard, m *nodetest.Member, verb string, question map[string]string) {
	t.Helper()
	y.Eventually("cluster "+verb+" begins", func() error {
		return m.API("cluster."+verb, question, nil)
	})
}

// TestMembers_ComeAndGo: a fourth member is let in, the authority moves to it, a
// founder is taken out, then another loses its directory and is replaced; jobs
// go on all the while, and none is lost.
func TestMembers_ComeAndGo(t *testing.T) {
	if os.Getenv("YARD_SOAK") == "" {
		t.Skip("long: set YARD_SOAK=1, or run make drill-tests")
	}
	if testing.Short() {
		t.Skip("starts four nodes")
	}
	y := nodetest.Start(t, 3, settings)
	n1, n2, n3 := y.Members[0], y.Members[1], y.Members[2]
	var ids []string
	work := func(members ...*nodetest.Member) {
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
	settled(y, n1)
	refused("rm", map[string]string{"name": "n3"}, "3 are the fewest")
	refused("add", map[string]string{"name": "n3", "route": "h:1", "raft": "h:2"}, "is a member already")
	refused("add", map[string]string{"name": "n4", "route": "127.0.0.1:1", "raft": "127.0.0.1:1"}, "nobody answers as a member")
	refused("replace", map[string]string{"name": "n3"}, "needs no replacement")
	refused("cancel", nil, "no change of members is under way")

	n4 := y.Newcomer("n4", settings)
	begins(t, y, n2, "add", map[string]string{"name": "n4", "route": n4.Config.NATS.RouteListen, "raft": n4.Config.Raft.Listen})
	refused("add", map[string]string{"name": "n5", "route": "h:1", "raft": "h:2"}, "")
	n4.Await()
	v := settled(y, n4)
	if len(v.Members) != 4 || v.Members[3].State != "present" || !v.Members[3].Voter {
		t.Fatalf("after the addition: %+v", v)
	}
	work(n4)
	if err := n3.API("cluster.transfer", map[string]string{"to": "n4"}, nil); err != nil {
		t.Fatal(err)
	}
	if a := y.WaitAuthority(); a != n4 {
		t.Errorf("%s has the authority", a.Name)
	}

	begins(t, y, n2, "rm", map[string]string{"name": "n1"})
	var gone *consensus.GoneError
	if err := n1.Ended(); !errors.As(err, &gone) {
		t.Errorf("n1 ended with %v", err)
	}
	y.Forget("n1")
	if v = settled(y, n4); len(v.Members) != 3 || len(v.Skew) > 0 {
		t.Errorf("after the removal: %+v", v)
	}
	work(n2, n3, n4)

	n3.Stop()
	n3 = y.Newcomer("n3", settings)
	begins(t, y, n4, "replace", map[string]string{"name": "n3", "route": n3.Config.NATS.RouteListen, "raft": n3.Config.Raft.Listen})
	n3.Await()
	if v = settled(y, n4); len(v.Members) != 3 || v.Members[1].Directory == "" || v.Members[1].State != "present" {
		t.Errorf("after the replacement: %+v", v)
	}
	work(n3)
	for _, id := range ids {
		n3.WaitState(t, id, "completed")
	}
	// Who was there all the while starts again with a configuration that knows
	// neither who came nor who went.
	n2.Restart()
	y.WaitReady()
	if v = settled(y, n2); len(v.Members) != 3 || v.Members[0].Declares == "" {
		t.Errorf("after a start with an old configuration: %+v", v)
	}
}
