package nodetest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yardmaster/internal/nodetest"
	"yardmaster/node"
)

// TestRunners is one yard of three that have not the same runners: beside that
// of all, which tells what it was told, the last member has one more, and the
// first a frail one.
func TestRunners(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	program := filepath.Join(t.TempDir(), "runner") // of the frail one
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, program)
	}
	if err != nil {
		t.Fatal(err)
	}
	y := nodetest.Start(t, 3, func(c *node.Config) {
		settings(c)
		own := c.RRQ.Runners["demo"]
		telling(1)(c)
		switch c.Node.Name {
		case "n1":
			own.Cmd = []string{program}
			c.RRQ.Runners["frail"] = own
		case "n3":
			c.RRQ.Runners["rare"] = own
		}
	})
	for _, c := range []episode{
		{"OnOneNode", runnerOnOneNode},
		{"Goes", func(t *testing.T, y *nodetest.Yard) { runnerGoes(t, y, program) }}, // and stays away
		{"Logs", logs}, // last: it stops a member
	} {
		if !t.Run(c.name, func(t *testing.T) { c.run(t, y) }) {
			return
		}
	}
}

// runnerOnOneNode: jobs for a runner that one member alone has are accepted by
// all and run there. While it is down they wait, and the yard says for what.
func runnerOnOneNode(t *testing.T, y *nodetest.Yard) {
	there := y.Members[2]
	// enqueue hands one job to each member and gives their ids.
	enqueue := func(members ...*nodetest.Member) (ids []string) {
		for i, m := range members {
			ids = append(ids, m.Enqueue(t, "one-place", fmt.Sprintf(`{"function":"rare#echo","params":{"n":%d}}`, i)).String())
		}
		return ids
	}
	ranThere := func(ids []string) {
		t.Helper()
		for i, id := range ids {
			j := y.Members[0].WaitState(t, id, "completed")
			if j.Node != there.Name || j.Attempts != 1 || string(j.Result) != fmt.Sprintf(`{"n":%d}`, i) {
				t.Errorf("job %d: %+v", i, j)
			}
		}
	}
	ranThere(enqueue(y.Members...))

	there.Stop()
	waiting := enqueue(y.Running()...)
	for _, m := range y.Running() {
		y.Eventually("readiness says whom the jobs wait for", func() error {
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
	y.WaitReady()
	ranThere(waiting)
}
