package drill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
)

// TestDrill_Operation retries 20,000 failed jobs by one operation, which is paused and resumed, and
// whose authority is killed twice. The queue is paused meanwhile, so that each job has exactly
// one more dispatch if it was retried exactly once.
func TestDrill_Operation(t *testing.T) {
	soakTime(t)
	const jobs = 20_000
	cl, ctx := newHarness(t, 5*time.Minute)
	failJobs(t, ctx, cl, jobs)
	insist(t, ctx, cl, "queue.pause", map[string]any{"name": "free"}, nil)

	var preview api.OperationPreview
	start := api.OperationStart{Action: "retry", Query: "queue:free state:failed", Rate: 2000, Key: "drill"}
	insist(t, ctx, cl, "operation.preview", start, &preview)
	if preview.Applicable != jobs || preview.AtLeast {
		t.Errorf("the operation applies to %d jobs, want %d", preview.Applicable, jobs)
	}
	var op api.Operation
	insist(t, ctx, cl, "operation.start", start, &op)
	reach := func(changed uint64) {
		t.Helper()
		err := until(ctx, fmt.Sprint(changed, " jobs are retried"), func() error {
			insist(t, ctx, cl, "operation.show", api.OperationRequest{ID: op.ID}, &op)
			if op.Changed < changed && op.Ended == nil {
				return errors.New(op.WaitingFor)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d changed, %s", op.Changed, op.State)
	}
	reach(jobs / 5)
	killed := killAuthority(t, ctx, cl)
	reach(2 * jobs / 5)
	insist(t, ctx, cl, "operation.pause", api.OperationRequest{ID: op.ID}, &op) // a restart may take longer than the rest
	restart(t, ctx, cl, killed)
	counts(t, ctx, cl, "free", map[string]int{"waiting": int(op.Changed), "failed": jobs - int(op.Changed)})
	restart(t, ctx, cl, killAuthority(t, ctx, cl))
	insist(t, ctx, cl, "operation.resume", api.OperationRequest{ID: op.ID}, &op)
	reach(jobs)
	if op.State != "done" || op.Changed != jobs || op.Matched != jobs || op.Expected != jobs {
		t.Errorf("the operation is %+v", op)
	}
	insist(t, ctx, cl, "operation.start", start, &op) // again: it is not started twice
	counts(t, ctx, cl, "free", map[string]int{"waiting": jobs})
	checkDispatches(t, ctx, cl, jobs)
}

// failJobs runs jobs that fail at their only attempt.
func failJobs(t *testing.T, ctx context.Context, cl *Cluster, jobs int) {
	t.Helper()
	publish(t, ctx, cl, &Load{Queue: "free", Jobs: jobs, Parallel: 64, Fields: `"max_attempts":1`})
	c, err := client.Open(ctx, client.Options{Nodes: cl.Edges(), Name: t.Name(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w := c.Worker()
	w.Concurrency = 256
	w.Handle("free", "", func(context.Context, *client.JobInfo) (any, error) { return nil, errors.New("it fails always") })
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(working) }()
	counts(t, ctx, cl, "free", map[string]int{"failed": jobs})
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// checkDispatches requires that each job of the queue waits for its second dispatch.
func checkDispatches(t *testing.T, ctx context.Context, cl *Cluster, jobs int) {
	t.Helper()
	request, seen := api.JobListRequest{Queues: []string{"free"}, Limit: 1000, Brief: true}, 0
	for {
		var page api.JobList
		insist(t, ctx, cl, "job.list", request, &page)
		for i := range page.Jobs {
			if j := &page.Jobs[i]; j.Dispatches != 2 || j.State != "waiting" || j.Attempts > 1 {
				t.Errorf("job %s is %s with dispatch %d", j.ID, j.State, j.Dispatches)
			}
			seen++
		}
		if request.After = page.Next; page.Next == "" {
			break
		}
	}
	if seen != jobs {
		t.Errorf("%d jobs are listed, want %d", seen, jobs)
	}
}
