package clustertest_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// waitReason waits until a member reports why a job does not run.
func waitReason(cl *clustertest.Cluster, m *clustertest.Member, id, want string) {
	cl.Eventually(id+" waits because "+want, func() error {
		var j struct {
			State   string `json:"state"`
			Because string `json:"waiting_because"`
		}
		if err := m.API("job.show", map[string]any{"id": id}, &j); err != nil {
			return err
		}
		if !strings.Contains(j.Because, want) {
			return fmt.Errorf("the job is %s: %q", j.State, j.Because)
		}
		return nil
	})
}

// waitReasons checks that every member reports why a job does not run.
func waitReasons(t *testing.T, cl *clustertest.Cluster) {
	a := cl.Members[0]
	a.AddQueue(t, "because", 1)
	a.Enqueue(t, "because", `{"id":"because-later","params":{},"delay_ms":3600000}`)
	a.Enqueue(t, "because", `{"id":"because-1","params":{}}`)
	for _, m := range cl.Members {
		waitReason(cl, m, "because-later", "it is due at 20")
		waitReason(cl, m, "because-1", "no worker has credit for queue because")
	}
	if err := a.API("queue.pause", map[string]any{"name": "because"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, m := range cl.Members {
		waitReason(cl, m, "because-1", "queue because is paused")
	}
}

// runnerFails checks that every member reports the fault of another member's runner, whose
// program and then process disappear.
func runnerFails(t *testing.T, cl *clustertest.Cluster, program string) {
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	s, err := cl.Members[0].Status()
	if err != nil || len(s.Pools) != 2 || s.Pools[1].Runner != "frail" {
		t.Fatalf("%+v, %v", s.Pools, err)
	}
	if err := syscall.Kill(s.Pools[1].Members[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitNotReady(cl, cl.Members[0], "runner frail: start runner: program "+program+" not found")
	cl.Members[0].Enqueue(t, "runs", `{"id":"frail-1","function":"frail#f"}`)
	for _, m := range cl.Members {
		waitReason(cl, m, "frail-1", "no process of runner frail is up: "+cl.Members[0].Name+": start runner: program "+program+" not found")
	}
}
