package nodetest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"yardmaster/edge/overhop"
	"yardmaster/internal/nodetest"
)

// TestRoutesCut leaves the authority's agreement alone and takes its NATS routes:
// it hands over to a member that has them, which runs what is accepted there; all
// say where the trouble is, and it goes away with it.
func TestRoutesCut(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	y := nodetest.Start(t, 3, settings)
	y.Members[0].AddQueue(t, "work", 0)
	first := y.WaitAuthority()
	first.CutRoutes()
	second := y.WaitAuthority(first)
	var done tally
	w := &overhop.Worker{}
	w.Handle("work", 4, done.handle)
	second.RunWorker(t, w)
	const jobs = 20
	for i := range jobs {
		key := fmt.Sprintf("cut-%d", i)
		y.Eventually(key+" is accepted", func() error {
			return second.Ask("yard.enqueue.work", `{"id":"`+key+`","params":{}}`, nil)
		})
	}
	y.Eventually("all ran", func() error {
		if n := done.jobs(); n != jobs {
			return fmt.Errorf("%d of %d", n, jobs)
		}
		return nil
	})
	want := "node " + first.Name + ": it hears the yard agree, and has no NATS route to "
	said := func() (bool, error) {
		s, err := second.Status()
		return strings.Contains(strings.Join(s.Readiness.Reasons, "\n"), want), err
	}
	y.Eventually("another member says so", func() error {
		if ok, err := said(); !ok {
			return errors.Join(errors.New("it does not"), err)
		}
		return nil
	})
	y.Heal()
	y.WaitReady()
	if ok, err := said(); ok || err != nil {
		t.Errorf("it is still said: %v, %v", ok, err)
	}
}
