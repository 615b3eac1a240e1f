package clustertest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// TestRoutesCut cuts the NATS routes of the authority, but not its Raft connections: it
// must hand over to a member with routes, which runs the jobs accepted there; all must
// report the fault, until it is healed.
func TestRoutesCut(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	t.Parallel()
	cl := clustertest.Start(t, 3, testConfig)
	cl.Members[0].AddQueue(t, "work", 0)
	first := cl.WaitAuthority()
	first.CutRoutes()
	second := cl.WaitAuthority(first)
	var done callCounter
	w := &overhop.Worker{}
	w.Handle("work", 4, done.handle)
	second.RunWorker(t, w)
	const jobs = 20
	for i := range jobs {
		key := fmt.Sprintf("cut-%d", i)
		cl.Eventually(key+" is accepted", func() error {
			return second.Request("yard.enqueue.work", `{"id":"`+key+`","params":{}}`, nil)
		})
	}
	cl.Eventually("all have run", func() error {
		if n := done.jobs(); n != jobs {
			return fmt.Errorf("%d of %d jobs", n, jobs)
		}
		return nil
	})
	want := "node " + first.Name + ": it follows a Raft leader, but has no NATS route to "
	output := func() (bool, error) {
		s, err := second.Status()
		return strings.Contains(strings.Join(s.Readiness.Reasons, "\n"), want), err
	}
	cl.Eventually("another member reports it", func() error {
		if ok, err := output(); !ok {
			return errors.Join(errors.New("no such reason"), err)
		}
		return nil
	})
	cl.Heal()
	cl.WaitReady()
	if ok, err := output(); ok || err != nil {
		t.Errorf("the reason is still reported: %v, %v", ok, err)
	}
}
