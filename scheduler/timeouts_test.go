package scheduler

import (
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// A timeout is final unless the job, or else its queue, retries it.
func TestTimeout_RetriedByPolicy(t *testing.T) {
	for _, test := range []struct {
		name     string
		fields   string // of the job
		queue    bool   // the queue's setting
		attempts uint32 // of the job in the end
	}{
		{"by default", ``, false, 1},
		{"by the job", `,"retry_on_timeout":true`, false, 3},
		{"by the queue", ``, true, 3},
		{"not by the job", `,"retry_on_timeout":false`, true, 1},
		{"within the attempts of the job", `,"retry_on_timeout":true,"max_attempts":2`, true, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			runHarness(t, 1, func(h *harness) {
				n := h.node("n1")
				n.do(func() { n.work = endsWith(job.Outcome{Status: job.TimedOut, Started: true}) })
				h.propose(&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{RetryOnTimeout: test.queue}})
				n.offer(job.Overhop, "mail", "w1", 1)
				id := h.enqueue("mail", "", `{"params":{},"retry_interval_ms":100`+test.fields+`}`)
				h.until("it has failed", func() bool { return h.state(id) == job.Failed })
				if view, _ := h.find(id); view.Attempts != test.attempts {
					t.Errorf("%d attempts, want %d", view.Attempts, test.attempts)
				}
				h.checkNoOverlap()
			}, func(c *Config) { c.Policy.MaxAttempts = 3 })
		})
	}
}

// A queue's setting counts when the timeout is decided, also for jobs that run already.
func TestTimeout_SettingOfQueueChanges(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() {
			n.work = func(*job.Assignment) (time.Duration, job.Outcome) {
				return time.Second, job.Outcome{Status: job.TimedOut, Started: true}
			}
		})
		n.offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", `{"params":{},"retry_interval_ms":100}`)
		h.until("it runs", func() bool { return h.state(id) == job.Active })
		h.propose(&ledger.ChangeQueue{Name: "mail", Change: job.QueueChange{RetryOnTimeout: new(true)}})
		h.until("it is retried", func() bool { return h.state(id) == job.Delayed })
		h.until("it runs again", func() bool { return h.state(id) == job.Active })
		h.propose(&ledger.ChangeQueue{Name: "mail", Change: job.QueueChange{RetryOnTimeout: new(false)}})
		h.until("it has failed", func() bool { return h.state(id) == job.Failed })
	})
}
