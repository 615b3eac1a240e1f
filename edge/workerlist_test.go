package edge

import (
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// The list of workers has the names from HELLO, the subscriptions and the number of jobs.
func TestServer_Workers(t *testing.T) {
	bubble(t, Config{}, func(h *harness) {
		hello := func(name string) *peer {
			return h.registerOver(h.ln.dial(), overhop.Fields{"ext": []string{overhop.Delivery}, "name": name, "client": "test/1"})
		}
		busy := hello("mailer-7")
		busy.ask(overhop.TSubscribe, fields{"q": "jobs", "credits": 3}, overhop.TOK)
		h.startJob(busy, 1, nil)
		idle := hello("a\x1b[31m" + strings.Repeat("x", 300))
		idle.ask(overhop.TSubscribe, fields{"q": "jobs"}, overhop.TOK)
		hello("producer")

		all, more := h.server.Workers(&api.WorkerRequest{}, 10)
		if len(all) != 2 || more != 0 || all[1].Name != "mailer-7" || len(all[0].Name) != 128 {
			t.Fatalf("workers are %+v, and %d more", all, more)
		}
		w := all[1]
		if w.Kind != "worker" || !strings.HasPrefix(w.Worker, "overhop/") || w.Client != "test/1" || w.Address == "" || w.Connected.IsZero() ||
			w.Running != 1 || w.Stalled || w.Leaving || len(w.Queues) != 1 || w.Queues[0] != (api.WorkerQueue{Queue: "jobs", Credits: 2}) {
			t.Errorf("the busy worker is %+v", w)
		}
		if first, more := h.server.Workers(&api.WorkerRequest{}, 1); len(first) != 1 || more != 1 {
			t.Errorf("%d workers and %d more, with a limit of one", len(first), more)
		}
		for _, c := range []struct {
			request api.WorkerRequest
			count   int
		}{
			{api.WorkerRequest{Queue: "jobs"}, 2}, {api.WorkerRequest{Queue: "other"}, 0},
			{api.WorkerRequest{Worker: "mailer-7"}, 1}, {api.WorkerRequest{Worker: w.Worker}, 1},
			{api.WorkerRequest{Worker: strings.TrimPrefix(w.Worker, job.Channel(job.Overhop, ""))}, 1}, {api.WorkerRequest{Worker: "nobody"}, 0},
		} {
			if matching, _ := h.server.Workers(&c.request, 10); len(matching) != c.count {
				t.Errorf("%+v matches %+v", c.request, matching)
			}
		}
		busy.ask(overhop.TGoodbye, fields{"drain": true}, overhop.TOK)
		if left, _ := h.server.Workers(&api.WorkerRequest{Worker: "mailer-7"}, 10); len(left) != 1 || !left[0].Leaving {
			t.Errorf("after GOODBYE the worker is %+v", left)
		}
	})
}

// A drained worker is sent no jobs, whatever credits it grants. It finishes those that it
// runs, stays connected, and is sent jobs again once it is resumed.
func TestServer_SetDrained(t *testing.T) {
	bubble(t, Config{}, func(h *harness) {
		p, sid := h.startWorker(3)
		q := h.startJob(p, 1, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		offered := func(when string, want int) {
			t.Helper()
			if got := h.executor.offered("jobs", p.wid); got != want {
				t.Errorf("%s the offer is %d, want %d", when, got, want)
			}
		}
		if running, ok := h.server.SetDrained(channel(p.wid), true); !ok || running != 1 {
			t.Fatalf("the worker runs %d jobs, found: %t", running, ok)
		}
		offered("drained,", 0)
		p.ask(overhop.TCredit, fields{"sid": sid, "credits": 2}, overhop.TOK)
		offered("after CREDIT", 0)
		if h.server.Start(assignment(p, 2), job.Spec{}) {
			t.Error("a job was started at a drained worker")
		}
		p.ask(overhop.TDone, leaseFields(q), overhop.TOK)
		offered("after DONE", 0)
		p.expectNothing()
		if all, _ := h.server.Workers(&api.WorkerRequest{}, 1); !all[0].Drained || h.server.Subscribers("jobs").Drained != 1 {
			t.Errorf("the list has %+v, the queue %+v", all[0], h.server.Subscribers("jobs"))
		}
		h.server.SetDrained(channel(p.wid), false)
		offered("resumed,", 4)
		h.startJob(p, 3, nil)
		if _, ok := h.server.SetDrained(job.Channel(job.RRQ, "r/7000"), true); ok {
			t.Error("a runner was drained")
		}
	})
}
