package nodetest_test

import (
	"slices"
	"testing"

	"yardmaster/edge/overhop"
	"yardmaster/internal/nodetest"
)

// drain: a node that stops tells its workers where the others are, and jobs go
// on there.
func drain(t *testing.T, y *nodetest.Yard) {
	leaving, others := y.Members[2], y.Members[:2]
	told := make(chan []string, 1)
	worker := leaving.Overhop(t, overhop.Options{Pushes: func(kind int64, p overhop.Raw) {
		if kind == overhop.TDrain {
			var nodes []string
			for item := range p.Get("reconnect").Items() {
				node, _ := item.Str()
				nodes = append(nodes, node)
			}
			told <- nodes
		}
	}})
	others[0].AddQueue(t, "drained", 0)
	if _, err := worker.Subscribe(soon(t), "drained", 1); err != nil {
		t.Fatal(err)
	}
	leaving.Stop()
	want := []string{others[0].Node().Addresses().Overhop, others[1].Node().Addresses().Overhop}
	slices.Sort(want)
	select {
	case nodes := <-told:
		if slices.Sort(nodes); !slices.Equal(nodes, want) {
			t.Errorf("sent to %v, want %v", nodes, want)
		}
		var done tally
		worker := &overhop.Worker{Nodes: nodes}
		worker.Handle("drained", 1, done.handle)
		others[0].RunWorker(t, worker)
		id := others[1].Enqueue(t, "drained", `{"params":{}}`).String()
		if j := others[1].WaitOutcome(t, id); j.State != "completed" {
			t.Errorf("%+v", j)
		}
	case <-soon(t).Done():
		t.Error("the worker was not sent anywhere")
	}
	staysWith(t, y, leaving)
	leaving.Restart()
	y.WaitReady()
}
