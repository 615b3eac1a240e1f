package scheduler

import (
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// TestExplainPlacement checks the explanation of why a job waits: which
// workers may run it, their capacity, and the state of its dispatch.
func TestExplainPlacement(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		ask := func(q PlacementQuery) PlacementExplanation {
			t.Helper()
			w, err := h.sched.ExplainPlacement(h.ctx, q)
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		says := func(queue, function, workers, runner string, available int) {
			t.Helper()
			w := ask(PlacementQuery{Queue: queue, Function: function})
			if w.WorkerQueue != workers || w.Runner != runner || w.Available != available || w.Blocked != "" || w.LeaseUncertain || w.Epoch == 0 {
				t.Errorf("%s, %q: %+v", queue, function, w)
			}
		}
		h.propose(&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{Limit: 1}})
		id := h.enqueue("mail", "", anyJob)
		h.advance(time.Second)
		says("mail", "", "mail", "", 0)
		says("mail", "py#f", "", "py", 0)
		says("mail", "f", "mail", "def", 0)
		says("routed", "f", "", "go", 0)
		n := h.node("n1")
		n.do(func() { n.work = neverEnds })
		n.offer(job.RRQ, "def", "def/9000", 1)
		h.advance(time.Second)
		says("mail", "f", "mail", "def", 1)
		if w := ask(PlacementQuery{Queue: "mail", Job: id, Dispatch: 1}); w.Dispatch != nil || w.Placing {
			t.Errorf("explanation of a job that does not run: %+v", w)
		}
		n.offer(job.Overhop, "mail", "w1", 3)
		h.advance(time.Second)
		if w := ask(PlacementQuery{Queue: "mail", Job: id, Dispatch: 1}); w.Dispatch == nil || !w.Dispatch.Confirmed || w.Dispatch.Silent || w.Dispatch.SentMS == 0 {
			t.Errorf("explanation of a running job: %+v, %+v", w, w.Dispatch)
		}
	}, func(c *Config) { c.Routes = map[string]string{"routed": "go"}; c.DefaultRunner = "def" })
}
