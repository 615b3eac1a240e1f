package edge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// memExecutor records the edge's calls. Outcomes are settled at once unless
// holdSettled is set.
type memExecutor struct {
	mu          sync.Mutex
	offers      map[string]int // "queue worker" -> number of jobs it would take
	reports     []job.Outcome
	held        []func(job.Settled)
	holdSettled bool
	settled     job.Settled
	onOffer     func(job.Offer) // called outside the lock
	adopted     []job.Assignment
	refuseAdopt bool      // adopts nothing
	lease       time.Time // the node's; zero: unlimited
	notes       []string
	lines       []job.LogLine
}

func newMemExecutor() *memExecutor {
	return &memExecutor{offers: make(map[string]int), settled: job.Settled{State: job.Completed}}
}

func (e *memExecutor) Offer(o job.Offer) {
	e.mu.Lock()
	e.offers[o.Key+" "+o.Worker] = o.Free
	starts := e.onOffer
	e.mu.Unlock()
	if starts != nil {
		starts(o)
	}
}

func (e *memExecutor) Report(o job.Outcome, done func(job.Settled)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reports = append(e.reports, o)
	if e.holdSettled {
		e.held = append(e.held, done)
		return
	}
	if settled := e.settled; done != nil {
		go done(settled)
	}
}

func (e *memExecutor) Adopt(a job.Assignment) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.refuseAdopt {
		e.adopted = append(e.adopted, a)
	}
	return !e.refuseAdopt
}

func (e *memExecutor) setLease(end time.Time) {
	e.mu.Lock()
	e.lease = end
	e.mu.Unlock()
}

func (e *memExecutor) WorkerLease(until time.Time) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.lease.IsZero() && e.lease.Before(until) {
		return e.lease
	}
	return until
}

func (e *memExecutor) Stalled(worker, reason string)     { e.addNote("stalled", worker, reason) }
func (e *memExecutor) Recovered(worker, recovery string) { e.addNote("recovered", worker, recovery) }

func (e *memExecutor) Log(l job.LogLine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, l)
}

func (e *memExecutor) addNote(what, worker, detail string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notes = append(e.notes, what+" "+worker+" "+detail)
}

// takeNotes returns the stalls and recoveries since the last call.
func (e *memExecutor) takeNotes() []string {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	got := e.notes
	e.notes = nil
	return got
}

func (e *memExecutor) offered(queue, worker string) int {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.offers[queue+" "+worker]
}

// takeOutcomes returns the reports since the last call.
func (e *memExecutor) takeOutcomes() []job.Outcome {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	got := e.reports
	e.reports = nil
	return got
}

// onlyOutcome returns the only report since the last call.
func (e *memExecutor) onlyOutcome(t *testing.T) job.Outcome {
	t.Helper()
	got := e.takeOutcomes()
	if len(got) != 1 {
		t.Fatalf("%d outcomes, want 1: %+v", len(got), got)
	}
	return got[0]
}

// settle commits the i-th outcome that was held.
func (e *memExecutor) settle(i int, settled job.Settled) {
	e.mu.Lock()
	done := e.held[i]
	e.mu.Unlock()
	done(settled)
}

// memCluster holds queues and jobs in memory. It never starts a job.
type memCluster struct {
	mu          sync.Mutex
	secret      []byte
	edges       []string
	queues      map[string]job.Queue
	jobs        map[job.ID]job.View
	specs       []job.Spec
	guards      map[string]job.ID // guard keys, and the last job created with each
	heldReplies []func()          // answers to ENQUEUEs, while holdReplies is set
	holdReplies bool
	readErr     error // returned by every read
	maxQueues   int   // limit of queues; 0: none
	bodyReads   int   // jobs returned with their bodies
	ended       map[job.ID]chan struct{}
	resume      func(id job.ID, n uint32, worker string) (job.Assignment, error)
}

func newMemCluster() *memCluster {
	c := &memCluster{
		secret: []byte("secret"), queues: make(map[string]job.Queue), jobs: make(map[job.ID]job.View),
		ended: make(map[job.ID]chan struct{}), guards: make(map[string]job.ID),
		resume: func(job.ID, uint32, string) (job.Assignment, error) {
			return job.Assignment{}, fmt.Errorf("resume: %w", job.ErrLeaseLost)
		},
	}
	for _, name := range []string{job.SystemQueue, "jobs"} {
		c.queues[name] = job.Queue{ID: job.ID(uuid.New()), Name: name, Config: job.DefaultQueueConfig}
	}
	return c
}

func (c *memCluster) Session(string) Session { return c }
func (c *memCluster) ObserveIndex(uint64)    {}
func (c *memCluster) Secret() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.secret
}
func (c *memCluster) Resume(_ context.Context, id job.ID, n uint32, worker string) (job.Assignment, error) {
	return c.resume(id, n, worker)
}
func (c *memCluster) Edges() []string { return c.edges }
func (c *memCluster) Status(context.Context) (Status, error) {
	return Status{DataPath: "data", PathExists: true, Queues: 2, Cluster: map[string]string{"authority": "n1"}}, c.readErr
}

func (c *memCluster) Queue(_ context.Context, name string) (job.Queue, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, ok := c.queues[name]
	return q, ok, c.readErr
}

func (c *memCluster) HasQueue(_ context.Context, name string) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.queues[name]; ok {
		return true, nil
	}
	return false, c.readErr
}

func (c *memCluster) Queues(context.Context) (all []job.Queue, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.queues {
		all = append(all, q)
	}
	return all, c.readErr
}

func (c *memCluster) AddQueue(_ context.Context, name string, cfg job.QueueConfig) (job.ID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.queues[name]; ok {
		return job.ID{}, job.ErrQueueExists
	}
	if c.maxQueues > 0 && len(c.queues) >= c.maxQueues {
		return job.ID{}, job.ErrTooManyQueues
	}
	id := job.ID(uuid.New())
	c.queues[name] = job.Queue{ID: id, Name: name, Config: cfg}
	return id, nil
}

func (c *memCluster) ChangeQueue(_ context.Context, name string, change job.QueueChange) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, ok := c.queues[name]
	if !ok {
		return job.ErrQueueNotFound
	}
	q.Config = q.Config.Changed(change)
	c.queues[name] = q
	return nil
}

func (c *memCluster) RemoveQueue(_ context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.jobs {
		if v.Queue == name && !v.State.Ended() {
			return job.ErrQueueNotEmpty
		}
	}
	maps.DeleteFunc(c.jobs, func(_ job.ID, v job.View) bool { return v.Queue == name })
	delete(c.queues, name)
	return nil
}

func (c *memCluster) PauseQueue(_ context.Context, name string, paused bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[name]
	switch {
	case paused && q.Paused:
		return job.ErrQueuePaused
	case !paused && !q.Paused:
		return job.ErrQueueNotPaused
	}
	q.Paused = paused
	c.queues[name] = q
	return nil
}

func (c *memCluster) Enqueue(_ context.Context, queue string, spec job.Spec, key string, done func(job.ID, error)) {
	c.mu.Lock()
	id := job.ID(uuid.New())
	if key != "" {
		id, _ = job.KeyID(queue, key)
	}
	var err error
	if _, ok := c.queues[queue]; !ok {
		err = job.ErrQueueNotFound
	} else if queue == job.SystemQueue {
		err = job.ErrSystemQueue
	} else if id, err = c.guard(id, &spec); err == nil {
		facts := spec.Job(id, queue, job.Position{}, time.Now())
		c.jobs[id] = job.View{
			ID: id, Queue: queue, Spec: &spec, State: job.Waiting, Created: time.Now(), RunAt: facts.RunAt,
			Position: job.Position{Seq: uint64(len(c.specs) + 1)},
			Function: spec.Function, Priority: facts.Priority, MaxAttempts: facts.MaxAttempts, RetryInterval: facts.RetryInterval,
		}
		c.ended[id] = make(chan struct{})
		c.specs = append(c.specs, spec)
	}
	answer := func() { done(id, err) }
	if c.holdReplies {
		c.heldReplies = append(c.heldReplies, answer)
		answer = func() {}
	}
	c.mu.Unlock()
	answer()
}

func (c *memCluster) Job(_ context.Context, id job.ID) (job.View, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bodyReads++
	v, ok := c.jobs[id]
	return v, ok, c.readErr
}

func (c *memCluster) Content(_ context.Context, id job.ID, result bool, offset, size int64) (part job.ValuePart, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.jobs[id]
	value := v.Result
	if !result {
		value = payloadOf(&v)
	}
	switch {
	case v.ResultGone != "" && result:
		return part, job.ErrContentGone
	case len(value.Data) == 0:
		return part, job.ErrNoContent
	}
	rest := value.Data[min(offset, int64(len(value.Data))):]
	part = job.ValuePart{Data: rest[:min(size, int64(len(rest)))], Size: int64(len(value.Data)), Msgpack: value.Msgpack, Version: "v"}
	return part, c.readErr
}

// Operate carries out "status", and "queue.show" as if there were no queues.
func (c *memCluster) Operate(_ context.Context, op string, request []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var named struct{ Name string }
	err := job.UnmarshalStrict("request", request, &named)
	switch {
	case c.readErr != nil:
		return nil, &api.Error{Code: api.CodeUnavailable, Text: c.readErr.Error(), RetryAfter: 2 * time.Second}
	case op == "status":
		return []byte("{}"), nil
	case op == "queue.show" && err != nil:
		return nil, &api.Error{Code: api.CodeInvalid, Text: err.Error()}
	}
	return nil, &api.Error{Code: api.CodeNotFound, Text: "unknown operation or queue"}
}

func (c *memCluster) Peek(_ context.Context, id job.ID) (job.View, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.jobs[id]
	v.Spec, v.Result = nil, job.Value{}
	return v, ok, c.readErr
}

func (c *memCluster) Await(ctx context.Context, id job.ID) (job.View, error) {
	c.mu.Lock()
	ended := c.ended[id]
	c.mu.Unlock()
	select {
	case <-ended:
		c.mu.Lock()
		defer c.mu.Unlock()
		v, ok := c.jobs[id]
		if !ok {
			return v, job.ErrJobNotFound
		}
		v.Spec = nil
		return v, c.readErr
	case <-ctx.Done():
		return job.View{}, ctx.Err()
	}
}

// complete ends a job for the clients that await it.
func (c *memCluster) complete(id job.ID, result string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.jobs[id]
	v.State, v.Result, v.Attempts, v.Ended = job.Completed, job.Value{Data: []byte(result)}, 1, time.Now()
	c.jobs[id] = v
	close(c.ended[id])
}

func (c *memCluster) List(_ context.Context, queue string, state job.State, page, size int) (all []job.View, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.jobs {
		if v.Queue == queue && v.State == state {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b job.View) int { return a.Created.Compare(b.Created) })
	all = all[min((page-1)*size, len(all)):]
	return all[:min(size, len(all))], c.readErr
}

func (c *memCluster) Stats(_ context.Context, queue string) (counts [job.Failed + 1]uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.jobs {
		if v.Queue == queue {
			counts[v.State]++
		}
	}
	return counts, c.readErr
}

func (c *memCluster) RemoveJob(_ context.Context, id job.ID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs[id].State == job.Active {
		return job.ErrNotRemovable
	}
	if v, ok := c.jobs[id]; ok && !v.State.Ended() {
		close(c.ended[id])
	}
	delete(c.jobs, id)
	return nil
}

func (c *memCluster) Cancel(_ context.Context, id job.ID, reason string) (job.State, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs[id].State.Ended() {
		return 0, job.ErrJobEnded
	}
	return job.Failed, nil
}

func (c *memCluster) ChangeJob(_ context.Context, id job.ID, priority *uint8, start Start) (job.State, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state := c.jobs[id].State; state != job.Waiting && state != job.Delayed {
		return 0, job.ErrNotChangeable
	}
	if start.Delay > 0 || start.At.After(time.Now()) {
		return job.Delayed, nil
	}
	return job.Waiting, nil
}

func (c *memCluster) Retry(_ context.Context, id job.ID) (job.State, error) {
	return 0, job.ErrNotFailed
}

// onlyJob returns the id of the only job.
func (c *memCluster) onlyJob() (id job.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id = range c.jobs {
	}
	return id
}
func (c *memCluster) Clear(_ context.Context, queue string, states []job.State) (int, error) {
	return len(states), nil
}
func (c *memCluster) Obliterate(_ context.Context, queue string, force bool) (int, error) {
	if !force {
		return 0, job.ErrQueueNotEmpty
	}
	return 3, nil
}

var errDisk = errors.New("disk is on fire")
