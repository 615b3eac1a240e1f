package yardtest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/yardtest"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// world is a yard that runs a program.
type world struct {
	*client.Client
	work    func(*client.Worker)
	settled func(queue string) // waits until no job of the queue is active, or waits for less than an hour
}

// program is a sequence of steps that producers, operators and workers take, all in one queue
// and all determined by the seed. The queue is paused while jobs are enqueued and changed, so
// that the end does not depend on when they start.
type program struct {
	queue string
	jobs  []programJob
}

// programJob is a job of a program.
type programJob struct {
	Label    string
	spec     client.Spec
	Fails    int    // the first so many attempts fail
	How      string // how they fail
	cancel   bool
	priority int  // set before the queue is resumed; -1: not
	twice    bool // enqueued twice under one key
	again    bool // retried after it has failed
}

// failures are the ways in which an attempt fails.
var failures = []string{"error", "permanent", "coded", "later"}

// newProgram returns the program of a seed.
func newProgram(seed uint64) *program {
	r := rand.New(rand.NewPCG(seed, 7))
	p := &program{queue: fmt.Sprintf("program-%d", seed)}
	for i := range 3 + r.IntN(10) {
		j := programJob{
			Label: fmt.Sprintf("j%d", i), How: failures[r.IntN(len(failures))], priority: -1,
			cancel: r.IntN(8) == 0, twice: r.IntN(4) == 0, again: r.IntN(2) == 0,
		}
		if r.IntN(2) == 0 {
			j.Fails = 1 + r.IntN(4)
		}
		if r.IntN(4) == 0 {
			j.priority = r.IntN(10)
		}
		j.spec = client.Spec{
			Queue: p.queue, Function: "step", Key: j.Label, MaxAttempts: r.IntN(5), Priority: new(r.IntN(10)),
			RetryInterval: time.Duration(r.IntN(4)) * 10 * time.Millisecond,
		}
		switch r.IntN(5) {
		case 0:
			j.spec.RunAt = time.Now().Add(time.Duration(r.IntN(300)) * time.Millisecond)
		case 1:
			j.spec.RunAt = time.Now().Add(24 * time.Hour)
		case 2:
			j.spec.UniqueKey, j.spec.UniqueUntil = fmt.Sprintf("%s-u%d", p.queue, r.IntN(3)), "end"
		}
		p.jobs = append(p.jobs, j)
	}
	return p
}

// handle is the handler of all jobs of programs.
func handle(ctx context.Context, a *client.JobInfo) (any, error) {
	var j programJob
	if err := a.Decode(&j); err != nil {
		return nil, client.Permanent(err)
	}
	if a.Attempt > j.Fails {
		return map[string]any{"label": j.Label, "attempt": a.Attempt}, nil
	}
	err := fmt.Errorf("%s fails", j.Label)
	switch j.How {
	case "permanent":
		return nil, client.Permanent(err)
	case "coded":
		return nil, client.Coded(err, "CODE", map[string]int{"attempt": a.Attempt})
	case "later":
		return nil, fmt.Errorf("%w: %w", err, client.RetryAfter(20*time.Millisecond))
	}
	return nil, err
}

// end is how a job of a program has ended.
type end struct {
	State, Result, ErrorType, ErrorCode, ErrorMessage string
	Attempts                                          uint32
	Priority                                          uint8
}

// ends are the ends of a program: of each job, and the answers to the steps.
type ends struct {
	jobs    map[string]end
	answers []string
}

// run runs a program.
func (p *program) run(ctx context.Context, w *world) (*ends, error) {
	e := &ends{jobs: map[string]end{}}
	if err := w.Queues().Create(ctx, p.queue); err != nil {
		return nil, err
	}
	worker := w.Worker()
	worker.Concurrency = 3
	worker.Handle(p.queue, "step", handle)
	w.work(worker)
	if err := w.Queues().Pause(ctx, p.queue); err != nil {
		return nil, err
	}
	for i := range p.jobs {
		e.answers = append(e.answers, p.jobs[i].submit(ctx, w)...)
	}
	if err := w.Queues().Resume(ctx, p.queue); err != nil {
		return nil, err
	}
	w.settled(p.queue)
	for i := range p.jobs {
		if j := &p.jobs[i]; j.again {
			state, err := w.Jobs().Retry(ctx, p.queue+":"+j.Label)
			e.answers = append(e.answers, answer(j.Label+" again "+state, err))
		}
	}
	w.settled(p.queue)
	e.collect(ctx, p, w)
	return e, nil
}

// submit enqueues a job and changes it, and returns the answers.
func (j *programJob) submit(ctx context.Context, w *world) (answers []string) {
	j.spec.Params = j
	for range map[bool]int{false: 1, true: 2}[j.twice] {
		_, err := w.Enqueue(ctx, j.spec)
		answers = append(answers, answer("enqueue "+j.Label, err))
	}
	id := j.spec.Queue + ":" + j.Label
	if j.priority >= 0 {
		_, err := w.Jobs().Set(ctx, id, client.JobSettings{Priority: &j.priority}) // its delay may be over or not
		answers = append(answers, answer("set "+j.Label, err))
	}
	if j.cancel {
		state, err := w.Jobs().Cancel(ctx, id, "")
		answers = append(answers, answer("cancel "+j.Label+" "+state, err))
	}
	return answers
}

// answer returns the kind of an error.
func answer(step string, err error) string {
	var refused *client.Error
	switch {
	case err == nil:
		return step + ": ok"
	case errors.As(err, &refused):
		return step + ": " + refused.Code
	}
	return step + ": " + err.Error()
}

// collect reads how the jobs have ended.
func (e *ends) collect(ctx context.Context, p *program, w *world) {
	for i := range p.jobs {
		label := p.jobs[i].Label
		j, err := w.Jobs().Get(ctx, p.queue+":"+label)
		if err != nil {
			e.answers = append(e.answers, answer("show "+label, err))
			continue
		}
		ended := end{State: j.State, Result: string(j.Result), Attempts: j.Attempts, Priority: j.Priority}
		if j.Error != nil {
			ended.ErrorType, ended.ErrorCode, ended.ErrorMessage = j.Error.Type, j.Error.Code, j.Error.Message
		}
		if len(j.ResultMsgpack) > 0 {
			ended.Result = fmt.Sprintf("%x", j.ResultMsgpack)
		}
		e.jobs[label] = ended
	}
}

// programs is how many programs the property test runs.
const programs = 30

// retryBase is the delay after a first failed attempt, in both yards.
const retryBase = 10 * time.Millisecond

// TestSameAsNodes runs random programs at this kit and at real nodes, one and three, and
// compares how their jobs end.
func TestSameAsNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts nodes")
	}
	for _, size := range []int{1, 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			real := realWorld(t, size)
			virtual := make([]*ends, programs)
			for i := range virtual {
				synctest.Test(t, func(t *testing.T) { virtual[i] = runVirtual(t, size, uint64(i)) })
			}
			var group errgroup.Group
			group.SetLimit(6)
			for i, want := range virtual {
				group.Go(func() error {
					got, err := newProgram(uint64(i)).run(t.Context(), real)
					if err != nil {
						return fmt.Errorf("program %d: %w", i, err)
					}
					if difference := compare(want, got); difference != "" {
						t.Errorf("program %d ends differently: %s", i, difference)
					}
					return nil
				})
			}
			if err := group.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// runVirtual runs a program at this kit.
func runVirtual(t *testing.T, size int, seed uint64) *ends {
	policy := job.DefaultPolicy
	policy.BaseDelay = retryBase
	y := yardtest.New(t, yardtest.Members(size), yardtest.Retries(policy))
	got, err := newProgram(seed).run(t.Context(), &world{
		Client: y.Client(), work: y.Work, settled: func(string) { y.Advance(2 * time.Second) },
	})
	if err != nil {
		t.Fatalf("program %d: %v", seed, err)
	}
	return got
}

// realWorld starts nodes.
func realWorld(t *testing.T, size int) *world {
	cl := clustertest.Start(t, size, clustertest.RetryAfter(retryBase))
	var nodes []string
	for _, m := range cl.Members {
		nodes = append(nodes, m.Node().Addresses().Overhop)
	}
	c, err := client.Open(t.Context(), client.Options{Nodes: nodes, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	t.Cleanup(func() {
		stop()
		workers.Wait()
		c.Close()
	})
	return &world{
		Client: c,
		work: func(w *client.Worker) {
			workers.Go(func() {
				if err := w.Run(ctx); err != nil {
					t.Error(err)
				}
			})
		},
		settled: func(queue string) {
			cl.Eventually("end of the jobs of "+queue, func() error { return unsettled(c, queue) })
		},
	}
}

// unsettled returns an error if a job of a queue runs or is due within an hour.
func unsettled(c *client.Client, queue string) error {
	request := api.JobListRequest{Queues: []string{queue}, States: []string{"waiting", "active", "delayed"}}
	for j, err := range c.Jobs().List(context.Background(), request) {
		if err != nil {
			return err
		}
		if j.State != "delayed" || time.Until(j.RunAt) < time.Hour {
			return fmt.Errorf("job %s is %s", j.Key, j.State)
		}
	}
	return nil
}

// compare returns how two ends differ; "" if they do not.
func compare(want, got *ends) string {
	var b strings.Builder
	for _, label := range slices.Sorted(maps.Keys(want.jobs)) {
		if want.jobs[label] != got.jobs[label] {
			fmt.Fprintf(&b, "\n\tjob %s: here %s, at nodes %s", label, asJSON(want.jobs[label]), asJSON(got.jobs[label]))
		}
	}
	for i := range max(len(want.answers), len(got.answers)) {
		if i >= len(want.answers) || i >= len(got.answers) || want.answers[i] != got.answers[i] {
			fmt.Fprintf(&b, "\n\tanswers from %d on: here %q, at nodes %q", i, want.answers[i:], got.answers[i:])
			break
		}
	}
	return b.String()
}
