package edge

import (
	"context"

	"yardmaster/job"
)

// Yard is what the edge needs of the node behind it.
type Yard interface {
	// Session begins the memory of one connection: what its calls read covers
	// what its calls wrote.
	Session() Session
	// Secret is the yard's key for lease tokens, the same on every node. It is
	// empty until it is known, then constant; no jobs are given out before.
	Secret() []byte
	// Resume moves the job's dispatch n to a worker of this node. It gives
	// [job.ErrLeaseLost] if n is not the job's current dispatch.
	Resume(ctx context.Context, id job.ID, n uint32, worker string) (job.Assignment, error)
	// Status is what STATUS tells beside the edge's own numbers.
	Status(ctx context.Context) (Status, error)
}

// Session is what one connection may ask of the yard. Errors are those of
// package job, wrapped or not; any other is shown as a failure of the yard.
// Calls are made one after another.
type Session interface {
	Queues
	Jobs
	Interventions
}

// Queues reads and changes queues.
type Queues interface {
	Queue(ctx context.Context, name string) (job.Queue, bool, error)
	Queues(ctx context.Context) ([]job.Queue, error) // in any order
	AddQueue(ctx context.Context, name string, cfg job.QueueConfig) (job.ID, error)
	RemoveQueue(ctx context.Context, name string) error
	// PauseQueue pauses or resumes; it gives job.ErrQueuePaused or
	// job.ErrQueueRunning if there is nothing to change.
	PauseQueue(ctx context.Context, name string, paused bool) error
}

// Jobs takes jobs in and looks at them.
type Jobs interface {
	// Enqueue accepts a job and calls then once, from any goroutine, when it
	// is accepted or refused; jobs are accepted in the order of the calls. It
	// refuses a queue that does not exist and then one of the yard's own. An
	// empty key means that the yard mints one.
	Enqueue(ctx context.Context, queue string, spec job.Spec, key string, then func(job.ID, error))
	Job(ctx context.Context, id job.ID) (job.View, bool, error)
	// Await waits until the job has ended, or ctx has.
	Await(ctx context.Context, id job.ID) (job.View, error)
	// List gives page (from 1) of a queue's jobs in a state, oldest first.
	List(ctx context.Context, queue string, state job.State, page, size int) ([]job.View, error)
	// Stats counts a queue's jobs by state.
	Stats(ctx context.Context, queue string) (counts [job.Failed + 1]uint64, err error)
}

// Interventions change what has been accepted.
type Interventions interface {
	RemoveJob(ctx context.Context, id job.ID) error
	Cancel(ctx context.Context, id job.ID, reason string) (job.State, error)
	Retry(ctx context.Context, id job.ID) (job.State, error)
	// Clear removes a queue's jobs in the given states.
	Clear(ctx context.Context, queue string, states []job.State) (removed int, err error)
	// Obliterate removes a queue and all its jobs; active ones only by force.
	Obliterate(ctx context.Context, queue string, force bool) (removed int, err error)
}

// Hands takes what the edge has to say about its workers. Both calls return at
// once and never call back into the edge before they return.
type Hands interface {
	// Offer announces the absolute room of one worker for one queue; Free 0
	// withdraws it.
	Offer(o job.Offer)
	// Report hands over how a dispatch ended: once for every dispatch that
	// Start has taken, and also for one that this node never started, when its
	// worker tells the end here. then, if not nil, is called once from another
	// goroutine, when the outcome is committed or known to be stale.
	Report(o job.Outcome, then func(job.Settled))
}

// Status is the node's part of STATUS.
type Status struct {
	DataPath     string
	PathExists   bool
	DataSize     int64 // bytes
	Bootstrapped bool  // the yard's queues are known here
	Queues       int
	PausedQueues int
	Cluster      map[string]string // shown as "cluster"
}
