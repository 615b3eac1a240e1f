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
