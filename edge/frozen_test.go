package edge

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// freezable is a connection that passes on what it reads only while running has a token, like
// the connection of a process that was stopped.
type freezable struct {
	netConn
	running chan struct{} // capacity 1
}

// Read reads from the connection and returns once the process runs.
func (f *freezable) Read(b []byte) (int, error) {
	n, err := f.netConn.Read(b)
	<-f.running
	f.running <- struct{}{}
	return n, err
}

// A worker of the library that reads its QUEST too late does not run the job, which the node
// has given up as never started, and gets others with all of its credits.
func TestClientWorker_Frozen(t *testing.T) {
	for name, c := range map[string]struct {
		after   time.Duration // until it reads
		started int
	}{
		"in time": {4900 * time.Millisecond, 1}, "late": {5100 * time.Millisecond, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(r *harness) {
				var nc *freezable
				w := &overhop.Worker{
					Nodes: []string{"n1"}, Log: r.server.log,
					Dial: func(context.Context, string) (netConn, error) {
						if nc != nil { // a probe
							return r.ln.dial(), nil
						}
						nc = &freezable{r.ln.dial(), make(chan struct{}, 1)}
						nc.running <- struct{}{}
						return nc, nil
					},
				}
				started := 0
				w.Handle("jobs", 3, func(context.Context, *overhop.Quest) (overhop.Raw, error) {
					started++
					return nil, nil
				})
				ctx, stop := context.WithCancel(r.t.Context())
				ended := make(chan error, 1)
				go func() { ended <- w.Run(ctx) }()
				worker := r.onlyWorker()
				<-nc.running
				a := job.Assignment{Job: job.ID{15: 1}, N: 1, Attempt: 1, Queue: "jobs", Key: "jobs", Worker: worker}
				if !r.server.Start(a, job.Spec{}) {
					t.Fatal("Start refused the job")
				}
				time.Sleep(c.after)
				if lost := r.executor.takeOutcomes(); len(lost) != 1-c.started || len(lost) > 0 && lost[0].Started {
					t.Errorf("before the worker reads, the outcomes are %+v", lost)
				}
				nc.running <- struct{}{}
				synctest.Wait()
				if outcomes := r.executor.takeOutcomes(); started != c.started || len(outcomes) != c.started {
					t.Errorf("the handler has run %d times, want %d; outcomes %+v", started, c.started, outcomes)
				}
				if got := r.executor.offered("jobs", worker); got != 3 {
					t.Errorf("the worker takes %d jobs, want 3", got)
				}
				stop()
				if err := <-ended; err != nil {
					t.Errorf("worker: %v", err)
				}
			})
		})
	}
}
