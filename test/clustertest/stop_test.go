package clustertest_test

import (
	"slices"
	"testing"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// stopHandsWorkersOver checks that a node that stops redirects its workers to the other
// nodes, and that jobs run there.
func stopHandsWorkersOver(t *testing.T, cl *clustertest.Cluster) {
	leaving, others := cl.Members[2], cl.Members[:2]
	told := make(chan []string, 1)
	worker := leaving.Overhop(t, overhop.Options{OnPush: func(kind int64, p overhop.Raw) {
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
	if _, err := worker.Subscribe(shortContext(t), "drained", 1); err != nil {
		t.Fatal(err)
	}
	leaving.Stop()
	want := []string{others[0].Node().Addresses().Overhop, others[1].Node().Addresses().Overhop}
	slices.Sort(want)
	select {
	case nodes := <-told:
		if slices.Sort(nodes); !slices.Equal(nodes, want) {
			t.Errorf("redirected to %v, want %v", nodes, want)
		}
		var done callCounter
		worker := &overhop.Worker{Nodes: nodes}
		worker.Handle("drained", 1, done.handle)
		others[0].RunWorker(t, worker)
		id := others[1].Enqueue(t, "drained", `{"params":{}}`).String()
		if j := others[1].WaitOutcome(t, id); j.State != "completed" {
			t.Errorf("%+v", j)
		}
	case <-shortContext(t).Done():
		t.Error("the worker was not redirected")
	}
	authorityStays(t, cl, leaving)
	leaving.Restart()
	cl.WaitReady()
}
