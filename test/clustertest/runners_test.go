package clustertest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// TestRunners runs cases on a cluster of three members with different runners: all have the
// echo runner, the last member has one more, and the first one that fails.
func TestRunners(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	t.Parallel()
	program := filepath.Join(t.TempDir(), "runner") // of the runner that fails
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, program)
	}
	if err != nil {
		t.Fatal(err)
	}
	cl := clustertest.Start(t, 3, func(c *config.Config) {
		testConfig(c)
		own := c.RRQ.Runners["demo"]
		withEchoRunner(1)(c)
		switch c.Node.Name {
		case "n1":
			own.Cmd = []string{program}
			c.RRQ.Runners["frail"] = own
		case "n3":
			c.RRQ.Runners["rare"] = own
		}
	})
	for _, c := range []testCase{
		{"OnOneNode", runnerOnOneMember},
		{"Goes", func(t *testing.T, cl *clustertest.Cluster) { runnerFails(t, cl, program) }}, // it stays down
		{"Logs", logs}, // last, because it stops a member
	} {
		if !t.Run(c.name, func(t *testing.T) { c.run(t, cl) }) {
			return
		}
	}
}

// runnerOnOneMember checks that jobs for a runner that only one member has are accepted by
// all and run there. While that member is down they wait, with a reason.
func runnerOnOneMember(t *testing.T, cl *clustertest.Cluster) {
	there := cl.Members[2]
	// enqueue enqueues one job at each member and returns their ids.
	enqueue := func(members ...*clustertest.Member) (ids []string) {
		for i, m := range members {
			ids = append(ids, m.Enqueue(t, "one-place", fmt.Sprintf(`{"function":"rare#echo","params":{"n":%d}}`, i)).String())
		}
		return ids
	}
	ranThere := func(ids []string) {
		t.Helper()
		for i, id := range ids {
			j := cl.Members[0].WaitState(t, id, "completed")
			if j.Node != there.Name || j.Attempts != 1 || string(j.Result) != fmt.Sprintf(`{"n":%d}`, i) {
				t.Errorf("job %d: %+v", i, j)
			}
		}
	}
	ranThere(enqueue(cl.Members...))

	there.Stop()
	waiting := enqueue(cl.Running()...)
	for _, m := range cl.Running() {
		cl.Eventually("a readiness reason names the runner that jobs wait for", func() error {
			s, err := m.Status()
			if err != nil {
				return err
			}
			for _, reason := range s.Readiness.Reasons {
				if strings.HasPrefix(reason, "jobs wait for runner rare, which ") && strings.HasSuffix(reason, ": "+there.Name) {
					return nil
				}
			}
			return fmt.Errorf("%s: %q", m.Name, s.Readiness.Reasons)
		})
		for _, id := range waiting {
			m.WaitState(t, id, "waiting")
		}
	}

	there.Restart()
	cl.WaitReady()
	ranThere(waiting)
}
