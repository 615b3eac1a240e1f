package nodetest_test

import (
	"fmt"
	"strings"
	"testing"

	"yardmaster/internal/nodetest"
	"yardmaster/node"
)

// TestRunnerOnOneNode: jobs for a runner that one member alone has are accepted
// by all and run there. While it is down they wait, and the yard says for what.
func TestRunnerOnOneNode(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	const only = "n3"
	y := nodetest.Start(t, 3, settings, func(c *node.Config) {
		if c.Node.Name != only {
			c.RRQ.Runners = nil
		}
	})
	there := y.Members[2]
	// enqueue hands one job to each member and gives their ids.
	enqueue := func(members ...*nodetest.Member) (ids []string) {
		for i, m := range members {
			ids = append(ids, m.Enqueue(t, "one-place", fmt.Sprintf(`{"function":"demo#echo","params":{"n":%d}}`, i)).String())
		}
		return ids
	}
	ranThere := func(ids []string) {
		t.Helper()
		for i, id := range ids {
			j := y.Members[0].WaitState(t, id, "completed")
			if j.Node != only || j.Attempts != 1 || string(j.Result) != fmt.Sprintf(`{"n":%d}`, i) {
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
				if strings.HasPrefix(reason, "jobs wait for runner demo, which ") && strings.HasSuffix(reason, ": "+only) {
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
