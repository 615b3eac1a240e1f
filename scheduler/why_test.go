package scheduler

import (
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// What the authority knows of why a job waits: who may run it, whether they
// have room, and how it stands with what was sent.
func TestWhy(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		ask := func(q WhyQuestion) Why {
			t.Helper()
			w, err := y.sched.Why(y.ctx, q)
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		says := func(queue, function, workers, runner string, room int) {
			t.Helper()
			w := ask(WhyQuestion{Queue: queue, Function: function})
			if w.Workers != workers || w.Runner != runner || w.Room != room || w.Blocked != "" || w.Unsure || w.Epoch == 0 {
				t.Errorf("%s, %q: %+v", queue, function, w)
			}
		}
		y.do(&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{Limit: 1}})
		id := y.enqueue("mail", "", anyJob)
		y.pass(time.Second)
		says("mail", "", "mail", "", 0)
		says("mail", "py#f", "", "py", 0)
		says("mail", "f", "mail", "def", 0)
		says("routed", "f", "", "go", 0)
		n := y.node("n1")
		n.look(func() { n.work = forever })
		n.offer(job.RRQ, "def", "def/9000", 1)
		y.pass(time.Second)
		says("mail", "f", "mail", "def", 1)
		if w := ask(WhyQuestion{Queue: "mail", Job: id, Dispatch: 1}); w.Sent != nil || w.Placing {
			t.Errorf("a job nobody runs: %+v", w)
		}
		n.offer(job.Overhop, "mail", "w1", 3)
		y.pass(time.Second)
		if w := ask(WhyQuestion{Queue: "mail", Job: id, Dispatch: 1}); w.Sent == nil || !w.Sent.Taken || w.Sent.Silent || w.Sent.SentMS == 0 {
			t.Errorf("a job in a worker's hands: %+v, %+v", w, w.Sent)
		}
	}, func(c *Config) { c.Routes = map[string]string{"routed": "go"}; c.DefaultRunner = "def" })
}
