package clustertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// operatorDrain drains a node, whose work must move to other nodes, and resumes it.
func operatorDrain(t *testing.T, cl *clustertest.Cluster) {
	away := cl.WaitAuthority()
	var others []*clustertest.Member
	for _, m := range cl.Members {
		if m != away {
			others = append(others, m)
		}
	}
	// One job is running at a runner on the node to be drained, the only one with
	// capacity.
	away.AddQueue(t, "resting", 0)
	began, release := make(chan struct{}), make(chan struct{})
	worker := &overhop.Worker{Nodes: []string{away.Node().Addresses().Overhop}}
	worker.Handle("resting", 4, func(ctx context.Context, _ *overhop.Quest) (overhop.Raw, error) {
		began <- struct{}{}
		select {
		case <-release:
			return overhop.Raw{0xc0}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	away.RunWorker(t, worker)
	held := others[0].Enqueue(t, "resting", `{"params":{}}`).String()
	<-began

	var left api.DrainStatus
	if err := others[1].Request("yard.node."+away.Name+".drain", "", &left); err != nil || left.Since.IsZero() {
		t.Fatalf("%+v, %v", left, err)
	}
	elsewhere := func() error {
		s, err := away.Status()
		switch {
		case err != nil:
			return err
		case s.Drain == nil:
			t.Fatal("the node is no longer drained")
		case s.Drain.Authority || len(s.Drain.Leads) > 0:
			return fmt.Errorf("the drain is not complete: %+v", s.Drain)
		}
		return nil
	}
	cl.Eventually("the authority and all streams are led elsewhere", elsewhere)
	cl.Eventually("the other members show it with a warning", func() error {
		s, err := others[0].Status()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(s.Members, func(m api.MemberStatus) bool { return m.Name == away.Name && m.State == "draining" }) {
			return fmt.Errorf("members are %+v", s.Members)
		}
		if !slices.ContainsFunc(s.Readiness.Warnings, func(w string) bool { return strings.Contains(w, away.Name+" is drained") }) {
			return fmt.Errorf("warnings are %q", s.Readiness.Warnings)
		}
		return nil
	})
	// It still answers requests, and jobs accepted there run elsewhere.
	routed := away.Enqueue(t, "routed", `{"function":"echo","params":{}}`).String()
	if j := away.WaitOutcome(t, routed); j.State != "completed" {
		t.Errorf("%+v", j)
	}
	waits := away.Enqueue(t, "resting", `{"params":{}}`).String()
	close(release) // the worker has resumed its job elsewhere, or completes it here
	if j := away.WaitOutcome(t, held); j.State != "completed" || j.Attempts != 1 {
		t.Errorf("the job that ran: %+v", j)
	}
	cl.Eventually("the node is drained", func() error {
		s, err := away.Status()
		if err == nil && !s.Drain.Done {
			err = fmt.Errorf("%+v", s.Drain)
		}
		return err
	})
	wantCode(t, others[0].Request("yard.node."+others[0].Name+".resume", "", nil), "409")

	if err := others[0].Request("yard.node."+others[0].Name+".drain", "", nil); err != nil {
		t.Errorf("a second drain: %v", err)
	}
	wantCode(t, others[0].Request("yard.node."+others[1].Name+".drain", "", nil), "409") // no node would be left to run jobs
	for _, m := range []*clustertest.Member{others[0], away} {
		if err := others[1].Request("yard.node."+m.Name+".resume", "", nil); err != nil {
			t.Errorf("resume %s: %v", m.Name, err)
		}
	}
	go func() { // the worker's second job
		select {
		case <-began:
		case <-t.Context().Done():
		}
	}()
	if j := away.WaitOutcome(t, waits); j.State != "completed" {
		t.Errorf("the job that waited: %+v", j)
	}
	cl.Eventually("the node leads a lane again and no warning is left", func() error {
		s, err := away.Status()
		switch {
		case err != nil:
			return err
		case s.Drain != nil || len(s.Readiness.Warnings) > 0:
			return fmt.Errorf("%+v, %q", s.Drain, s.Readiness.Warnings)
		case !slices.ContainsFunc(s.Lanes, func(l api.LaneStatus) bool { return l.Leader == away.Name }):
			return errors.New("the node leads no lane yet")
		}
		return nil
	})
	cl.WaitReady()
}
