package nodetest_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"yardmaster/internal/nodetest"
)

// waitsBecause waits until a member says why a job does not run.
func waitsBecause(y *nodetest.Yard, m *nodetest.Member, id, want string) {
	y.Eventually(id+" waits because "+want, func() error {
		var j struct {
			State   string `json:"state"`
			Because string `json:"waiting_because"`
		}
		if err := m.API("job.show", map[string]any{"id": id}, &j); err != nil {
			return err
		}
		if !strings.Contains(j.Because, want) {
			return fmt.Errorf("it is %s: %q", j.State, j.Because)
		}
		return nil
	})
}

// because: every member tells why a job does not run.
func because(t *testing.T, y *nodetest.Yard) {
	a := y.Members[0]
	a.AddQueue(t, "because", 1)
	a.Enqueue(t, "because", `{"id":"because-later","params":{},"delay_ms":3600000}`)
	a.Enqueue(t, "because", `{"id":"because-1","params":{}}`)
	for _, m := range y.Members {
		waitsBecause(y, m, "because-later", "it is due at 20")
		waitsBecause(y, m, "because-1", "no worker has credit for queue because")
	}
	if err := a.API("queue.pause", map[string]any{"name": "because"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, m := range y.Members {
		waitsBecause(y, m, "because-1", "queue because is paused")
	}
}

// runnerGoes: every member tells what is wrong with the runner of another one,
// too. Its program goes, and then its process.
func runnerGoes(t *testing.T, y *nodetest.Yard, program string) {
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	s, err := y.Members[0].Status()
	if err != nil || len(s.Pools) != 2 || s.Pools[1].Runner != "frail" {
		t.Fatalf("%+v, %v", s.Pools, err)
	}
	if err := syscall.Kill(s.Pools[1].Members[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	notReady(y, y.Members[0], "runner frail: start runner: program "+program+" not found")
	y.Members[0].Enqueue(t, "runs", `{"id":"frail-1","function":"frail#f"}`)
	for _, m := range y.Members {
		waitsBecause(y, m, "frail-1", "no process of runner frail is up: "+y.Members[0].Name+": start runner: program "+program+" not found")
	}
}
