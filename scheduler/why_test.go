package scheduler

import (
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// A waiting job's reason goes by the state of the yard, and by whose turn it is.
func TestWhy(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		says := func(queue, function, text, runner string) {
			t.Helper()
			w, err := y.sched.Why(y.ctx, queue, function)
			if err != nil || w != (Why{text, runner}) {
				t.Errorf("%s, %q: %+v, %v", queue, function, w, err)
			}
		}
		y.do(&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{Limit: 1}})
		y.enqueue("mail", "", anyJob)
		y.pass(time.Second)
		says("mail", "", "no worker has credit for queue mail", "")
		says("mail", "py#f", "", "py")
		says("mail", "f", "no worker has credit for queue mail", "def")
		says("routed", "f", "", "go")
		n := y.node("n1")
		n.look(func() { n.work = forever })
		n.offer(job.RRQ, "def", "def/9000", 1)
		y.pass(time.Second)
		says("mail", "f", "", "")
		says("mail", "", "no worker has credit for queue mail", "")
		n.offer(job.Overhop, "mail", "w1", 2)
		y.pass(time.Second)
		says("mail", "", "queue mail runs as many jobs at once as its limit allows: 1", "")
		y.do(&ledger.PauseQueue{Name: "mail", Paused: true})
		says("mail", "py#f", "queue mail is paused", "")
		n.offer(job.Overhop, "other", "w1", 1)
		y.pass(time.Second)
		says("other", "", "", "")
	}, func(c *Config) { c.Routes = map[string]string{"routed": "go"}; c.DefaultRunner = "def" })
}
