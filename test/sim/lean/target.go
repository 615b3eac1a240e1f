package lean

import (
	"context"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Runner is the name of the RRQ runner of all members.
const Runner = "rr"

// target runs the jobs of one kind at a member, each for a millisecond. It implements
// agent.Target.
type target struct {
	yard  *Yard
	agent *agent.Agent
	kind  job.Kind
	wake  chan struct{} // buffer of one: started is not empty

	mu      sync.Mutex
	free    map[[2]string]int // by key and worker
	started []finished
}

// finished is an attempt that has run.
type finished struct {
	key, worker string
	outcome     job.Outcome
}

// Kind implements agent.Target.
func (t *target) Kind() job.Kind { return t.kind }

// Start implements agent.Target.
func (t *target) Start(a job.Assignment, spec job.Spec) bool {
	if !t.take(a.Key, a.Worker) {
		return false
	}
	o := t.yard.Work(&a, &spec)
	o.Job, o.N, o.Started = a.Job, a.N, true
	t.mu.Lock()
	t.started = append(t.started, finished{a.Key, a.Worker, o})
	t.mu.Unlock()
	wakeup.Send(t.wake)
	return true
}

// Stop implements agent.Target. The work ends by itself.
func (t *target) Stop(job.Recall) {}

// run reports the attempts that have run until ctx ends.
func (t *target) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
			time.Sleep(time.Millisecond)
			t.mu.Lock()
			started := t.started
			t.started = nil
			t.mu.Unlock()
			for i := range started {
				f := &started[i]
				t.agent.Report(f.outcome, nil)
				t.release(f.key, f.worker, 1)
			}
		}
	}
}

func (t *target) take(key, worker string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := [2]string{key, worker}
	if t.free[slot] == 0 {
		return false
	}
	t.free[slot]--
	t.agent.Offer(job.Offer{Kind: t.kind, Key: key, Worker: worker, Free: t.free[slot]})
	return true
}

func (t *target) release(key, worker string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := [2]string{key, worker}
	t.free[slot] += n
	t.agent.Offer(job.Offer{Kind: t.kind, Key: key, Worker: worker, Free: t.free[slot]})
}
