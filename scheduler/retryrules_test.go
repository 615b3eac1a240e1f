package scheduler

import (
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// failsWith is work that fails at once with an error of a type.
func failsWith(kind string) func(*job.Assignment) (time.Duration, job.Outcome) {
	return endsWith(job.Outcome{Status: job.Error, Started: true, Fault: &job.Fault{Message: "boom", Type: kind}})
}

// The attempts of a job are its own, else those of the rule for its function, else those of its
// queue, else the cluster's.
func TestRetryRule_Attempts(t *testing.T) {
	config := job.QueueConfig{MaxAttempts: 3, Retries: []job.RetryRule{{Function: "send", MaxAttempts: 2}}}
	for _, test := range []struct {
		name, body string
		config     job.QueueConfig
		attempts   uint32
	}{
		{"of the job", `{"function":"send","params":{},"max_attempts":1}`, config, 1},
		{"of the rule", `{"function":"send","params":{}}`, config, 2},
		{"of the queue", `{"function":"other","params":{}}`, config, 3},
		{"of the cluster", `{"function":"send","params":{}}`, job.QueueConfig{}, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			runHarness(t, 1, func(h *harness) {
				n, given := h.node("n1"), uint32(0)
				n.do(func() {
					n.work = func(a *job.Assignment) (time.Duration, job.Outcome) {
						given = a.MaxAttempts
						return failsWith("")(a)
					}
				})
				h.propose(&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: test.config})
				n.offer(job.Overhop, "mail", "w1", 1)
				id := h.enqueue("mail", "", test.body)
				h.until("it has failed", func() bool { return h.state(id) == job.Failed })
				if view, _ := h.find(id); view.Attempts != test.attempts || given != test.attempts {
					t.Errorf("%d attempts, and the worker was told %d; want %d", view.Attempts, given, test.attempts)
				}
			}, func(c *Config) { c.Policy = job.Policy{MaxAttempts: 4, BaseDelay: time.Second, MaxDelay: time.Second} })
		})
	}
}

// A queue's attempts and timeout hold for jobs that wait when they are set.
func TestRetryRule_ChangesForWaitingJobs(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n, timeouts := h.node("n1"), []time.Duration(nil)
		n.do(func() {
			n.work = func(a *job.Assignment) (time.Duration, job.Outcome) {
				timeouts = append(timeouts, a.Timeout)
				return failsWith("")(a)
			}
		})
		id := h.enqueue("mail", "", anyJob)
		own := h.enqueue("mail", "", `{"params":{},"timeout_ms":7000}`)
		h.until("they wait", func() bool { return h.state(id) == job.Waiting && h.state(own) == job.Waiting })
		h.propose(&ledger.ChangeQueue{Name: "mail", Change: job.QueueChange{MaxAttempts: new(uint32(1)), Timeout: new(time.Minute)}})
		if view, _ := h.find(id); view.MaxAttempts != 1 || view.Timeout != time.Minute {
			t.Errorf("shown with %d attempts and the timeout %v", view.MaxAttempts, view.Timeout)
		}
		n.offer(job.Overhop, "mail", "w1", 1)
		h.until("they have failed", func() bool { return h.state(id) == job.Failed && h.state(own) == job.Failed })
		if len(timeouts) != 2 || timeouts[0] != time.Minute || timeouts[1] != 7*time.Second {
			t.Errorf("the timeouts of the attempts were %v", timeouts)
		}
	})
}

// Backoff, discard_on and retry_on of the rule that a queue has when an attempt fails.
func TestRetryRule_Decides(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() {
			n.work = func(a *job.Assignment) (time.Duration, job.Outcome) { return failsWith(a.Function)(a) }
		})
		h.propose(&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{Retries: []job.RetryRule{
			{Backoff: 20 * time.Second, Jitter: new(uint8(0)), DiscardOn: []string{"invalid_card"}},
			{Function: "http_404", RetryOn: []string{"http_503"}},
		}}})
		n.offer(job.Overhop, "mail", "w1", 1)
		retried := h.enqueue("mail", "", `{"function":"http_503","params":{}}`)
		h.until("it is delayed", func() bool { return h.state(retried) == job.Delayed })
		var at time.Time
		h.raft.View(func(l *ledger.Ledger) { at = l.Now() })
		if view, _ := h.find(retried); view.RunAt.Sub(at).Round(time.Second) != 20*time.Second {
			t.Errorf("it is retried after %v", view.RunAt.Sub(at))
		}
		for kind, why := range map[string]string{
			"invalid_card": "boom (not retried: invalid_card is in discard_on of the retry rule for all functions)",
			"http_404":     "boom (not retried: http_404 is not in retry_on of the retry rule for function http_404)",
		} {
			id := h.enqueue("mail", "", `{"function":"`+kind+`","params":{}}`)
			h.until("it has failed", func() bool { return h.state(id) == job.Failed })
			if view, _ := h.find(id); view.Attempts != 1 || view.Reason != why || view.Fault.Type != kind {
				t.Errorf("%s: %d attempts, %q, %+v", kind, view.Attempts, view.Reason, view.Fault)
			}
		}
		h.propose(&ledger.ChangeQueue{Name: "mail", Change: job.QueueChange{Retries: []job.RetryChange{{DiscardOn: &job.Names{Names: []string{"http_503"}}}}}})
		h.until("it has failed", func() bool { return h.state(retried) == job.Failed })
		if view, _ := h.find(retried); view.Attempts != 2 || !strings.Contains(view.Reason, "http_503 is in discard_on") {
			t.Errorf("%d attempts, %q", view.Attempts, view.Reason)
		}
	})
}

// A handler that snoozes keeps its attempt under every rule.
func TestRetryRule_Snooze(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n, snoozes := h.node("n1"), 3
		n.do(func() {
			n.work = func(a *job.Assignment) (time.Duration, job.Outcome) {
				if snoozes == 0 {
					return failsWith("http_503")(a)
				}
				snoozes--
				return time.Millisecond, job.Outcome{Status: job.Declined, Started: true, RetryAfter: new(10 * time.Second), Fault: &job.Fault{Message: "not yet", Type: "http_404"}}
			}
		})
		h.propose(&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{Retries: []job.RetryRule{
			{Function: "send", MaxAttempts: 1, MaxBackoff: time.Second, RetryOn: []string{"http_503"}, DiscardOn: []string{"http_404"}},
		}}})
		n.offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", `{"function":"send","params":{}}`)
		h.until("it has failed", func() bool { return h.state(id) == job.Failed })
		if view, _ := h.find(id); view.Attempts != 1 || view.Dispatches != 4 || view.Reason != "boom" {
			t.Errorf("%d attempts by %d dispatches: %s", view.Attempts, view.Dispatches, view.Reason)
		}
	})
}
