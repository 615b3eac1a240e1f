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

	"yardmaster/job"
)

// memoryHands keeps what the edge says. Outcomes are settled at once unless
// keep is set.
type memoryHands struct {
	mu      sync.Mutex
	offers  map[string]int // "queue worker" → room
	reports []job.Outcome
	thens   []func(job.Settled)
	keep    bool
	settled job.Settled
	starts  func(job.Offer) // called outside the lock
	adopted []job.Assignment
	rests   bool // adopts nothing
	notes   []string
	lines   []job.LogLine
}

func newMemoryHands() *memoryHands {
	return &memoryHands{offers: make(map[string]int), settled: job.Settled{State: job.Completed}}
}

func (h *memoryHands) Offer(o job.Offer) {
	h.mu.Lock()
	h.offers[o.Key+" "+o.Worker] = o.Free
	starts := h.starts
	h.mu.Unlock()
	if starts != nil {
		starts(o)
	}
}

func (h *memoryHands) Report(o job.Outcome, then func(job.Settled)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reports = append(h.reports, o)
	if h.keep {
		h.thens = append(h.thens, then)
		return
	}
	if settled := h.settled; then != nil {
		go then(settled)
	}
}

func (h *memoryHands) Adopt(a job.Assignment) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.rests {
		h.adopted = append(h.adopted, a)
	}
	return !h.rests
}

func (h *memoryHands) Stalled(worker, reason string)     { h.note("stalled", worker, reason) }
func (h *memoryHands) Recovered(worker, recovery string) { h.note("recovered", worker, recovery) }

func (h *memoryHands) Log(l job.LogLine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, l)
}

func (h *memoryHands) note(what, worker, detail string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notes = append(h.notes, what+" "+worker+" "+detail)
}

// noted is what was said of workers since the last call.
func (h *memoryHands) noted() []string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.notes
	h.notes = nil
	return got
}

func (h *memoryHands) room(queue, worker string) int {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.offers[queue+" "+worker]
}

// outcomes are the reports since the last call.
func (h *memoryHands) outcomes() []job.Outcome {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.reports
	h.reports = nil
	return got
}

// one is the only report since the last call.
func (h *memoryHands) one(t *testing.T) job.Outcome {
	t.Helper()
	got := h.outcomes()
	if len(got) != 1 {
		t.Fatalf("%d outcomes, want 1: %+v", len(got), got)
	}
	return got[0]
}

// settle commits the i-th outcome that was kept.
func (h *memoryHands) settle(i int, settled job.Settled) {
	h.mu.Lock()
	then := h.thens[i]
	h.mu.Unlock()
	then(settled)
}

// memoryYard keeps queues and jobs.
type memoryYard struct {
	mu      sync.Mutex
	secret  []byte
	edges   []string
	queues  map[string]job.Queue
	jobs    map[job.ID]job.View
	specs   []job.Spec
	guards  map[string]job.ID // keys of guards, and the last job that was made with each
	hold    []func()          // answers to ENQUEUEs, while holding
	holding bool
	fails   error // given by every read
	most    int   // queues there may be; 0: any number
	bodies  int   // jobs shown with their bodies
	ended   map[job.ID]chan struct{}
	resume  func(id job.ID, n uint32, worker string) (job.Assignment, error)
}

func newMemoryYard() *memoryYard {
	y := &memoryYard{
		secret: []byte("secret"), queues: make(map[string]job.Queue), jobs: make(map[job.ID]job.View),
		ended: make(map[job.ID]chan struct{}), guards: make(map[string]job.ID),
		resume: func(job.ID, uint32, string) (job.Assignment, error) {
			return job.Assignment{}, fmt.Errorf("resume: %w", job.ErrLeaseLost)
		},
	}
	for _, name := range []string{job.SystemQueue, "jobs"} {
		y.queues[name] = job.Queue{ID: job.ID(uuid.New()), Name: name, Config: job.DefaultQueueConfig}
	}
	return y
}

func (y *memoryYard) Session() Session { return y }
func (y *memoryYard) Saw(uint64)       {}
func (y *memoryYard) Secret() []byte {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.secret
}
func (y *memoryYard) Resume(_ context.Context, id job.ID, n uint32, worker string) (job.Assignment, error) {
	return y.resume(id, n, worker)
}
func (y *memoryYard) Edges() []string { return y.edges }
func (y *memoryYard) Status(context.Context) (Status, error) {
	return Status{DataPath: "data", PathExists: true, Queues: 2, Cluster: map[string]string{"authority": "n1"}}, y.fails
}

func (y *memoryYard) Queue(_ context.Context, name string) (job.Queue, bool, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	q, ok := y.queues[name]
	return q, ok, y.fails
}

func (y *memoryYard) Queues(context.Context) (all []job.Queue, err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, q := range y.queues {
		all = append(all, q)
	}
	return all, y.fails
}

func (y *memoryYard) AddQueue(_ context.Context, name string, cfg job.QueueConfig) (job.ID, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if _, ok := y.queues[name]; ok {
		return job.ID{}, job.ErrQueueExists
	}
	if y.most > 0 && len(y.queues) >= y.most {
		return job.ID{}, job.ErrTooManyQueues
	}
	id := job.ID(uuid.New())
	y.queues[name] = job.Queue{ID: id, Name: name, Config: cfg}
	return id, nil
}

func (y *memoryYard) RemoveQueue(_ context.Context, name string) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, v := range y.jobs {
		if v.Queue == name && !v.State.Ended() {
			return job.ErrQueueNotEmpty
		}
	}
	maps.DeleteFunc(y.jobs, func(_ job.ID, v job.View) bool { return v.Queue == name })
	delete(y.queues, name)
	return nil
}

func (y *memoryYard) PauseQueue(_ context.Context, name string, paused bool) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	q := y.queues[name]
	switch {
	case paused && q.Paused:
		return job.ErrQueuePaused
	case !paused && !q.Paused:
		return job.ErrQueueRunning
	}
	q.Paused = paused
	y.queues[name] = q
	return nil
}

func (y *memoryYard) Enqueue(_ context.Context, queue string, spec job.Spec, key string, then func(job.ID, error)) {
	y.mu.Lock()
	id := job.ID(uuid.New())
	if key != "" {
		id, _ = job.KeyID(queue, key)
	}
	var err error
	if _, ok := y.queues[queue]; !ok {
		err = job.ErrQueueNotFound
	} else if queue == job.SystemQueue {
		err = job.ErrSystemQueue
	} else if id, err = y.guard(id, &spec); err == nil {
		facts := spec.Job(id, queue, job.Position{}, time.Now())
		y.jobs[id] = job.View{
			ID: id, Queue: queue, Spec: &spec, State: job.Waiting, Created: time.Now(), RunAt: facts.RunAt,
			Position: job.Position{Seq: uint64(len(y.specs) + 1)},
			Function: spec.Function, Priority: facts.Priority, MaxAttempts: facts.MaxAttempts, RetryInterval: facts.RetryInterval,
		}
		y.ended[id] = make(chan struct{})
		y.specs = append(y.specs, spec)
	}
	answer := func() { then(id, err) }
	if y.holding {
		y.hold = append(y.hold, answer)
		answer = func() {}
	}
	y.mu.Unlock()
	answer()
}

func (y *memoryYard) Job(_ context.Context, id job.ID) (job.View, bool, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.bodies++
	v, ok := y.jobs[id]
	return v, ok, y.fails
}

func (y *memoryYard) Look(_ context.Context, id job.ID) (job.View, bool, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	v, ok := y.jobs[id]
	v.Spec, v.Result = nil, job.Value{}
	return v, ok, y.fails
}

func (y *memoryYard) Await(ctx context.Context, id job.ID) (job.View, error) {
	y.mu.Lock()
	ended := y.ended[id]
	y.mu.Unlock()
	select {
	case <-ended:
		y.mu.Lock()
		defer y.mu.Unlock()
		v, ok := y.jobs[id]
		if !ok {
			return v, job.ErrJobNotFound
		}
		v.Spec = nil
		return v, y.fails
	case <-ctx.Done():
		return job.View{}, ctx.Err()
	}
}

// finish ends a job for whoever awaits it.
func (y *memoryYard) finish(id job.ID, result string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	v := y.jobs[id]
	v.State, v.Result, v.Attempts, v.Ended = job.Completed, job.Value{Data: []byte(result)}, 1, time.Now()
	y.jobs[id] = v
	close(y.ended[id])
}

func (y *memoryYard) List(_ context.Context, queue string, state job.State, page, size int) (all []job.View, err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, v := range y.jobs {
		if v.Queue == queue && v.State == state {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b job.View) int { return a.Created.Compare(b.Created) })
	all = all[min((page-1)*size, len(all)):]
	return all[:min(size, len(all))], y.fails
}

func (y *memoryYard) Stats(_ context.Context, queue string) (counts [job.Failed + 1]uint64, err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, v := range y.jobs {
		if v.Queue == queue {
			counts[v.State]++
		}
	}
	return counts, y.fails
}

func (y *memoryYard) RemoveJob(_ context.Context, id job.ID) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.jobs[id].State == job.Active {
		return job.ErrNotRemovable
	}
	if v, ok := y.jobs[id]; ok && !v.State.Ended() {
		close(y.ended[id])
	}
	delete(y.jobs, id)
	return nil
}

func (y *memoryYard) Cancel(_ context.Context, id job.ID, reason string) (job.State, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.jobs[id].State.Ended() {
		return 0, job.ErrJobEnded
	}
	return job.Failed, nil
}

func (y *memoryYard) Retry(_ context.Context, id job.ID) (job.State, error) {
	return 0, job.ErrNotFailed
}

// only is the one job there is.
func (y *memoryYard) only() (id job.ID) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for id = range y.jobs {
	}
	return id
}
func (y *memoryYard) Clear(_ context.Context, queue string, states []job.State) (int, error) {
	return len(states), nil
}
func (y *memoryYard) Obliterate(_ context.Context, queue string, force bool) (int, error) {
	if !force {
		return 0, job.ErrQueueNotEmpty
	}
	return 3, nil
}

var errBroken = errors.New("disk is on fire")
