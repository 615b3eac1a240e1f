package edge

import (
	"context"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Cluster is what the edge needs of its node.
type Cluster interface {
	// Session returns a session for one connection. Its reads reflect its
	// earlier writes.
	Session(client string) Session
	// Secret returns the cluster's key for lease tokens, the same on every node.
	// It is empty until the node has it, then constant; no jobs are delivered
	// before. It does not block.
	Secret() []byte
	// Resume moves dispatch n of the job to a worker of this node. It returns
	// [job.ErrLeaseLost] if n is not the job's current dispatch.
	Resume(ctx context.Context, id job.ID, n uint32, worker string) (job.Assignment, error)
	// Edges returns the addresses, host:port, to which clients of this node may
	// reconnect when it stops. It does not block.
	Edges() []string
	// Status returns what STATUS shows in addition to the edge's own figures.
	Status(ctx context.Context) (Status, error)
}

// Session is the set of operations on the cluster that one connection uses.
// Errors are those of package job, possibly wrapped; any other error is reported
// to the client as an internal failure. A session is not used concurrently, except
// for ObserveIndex.
type Session interface {
	// ObserveIndex makes later reads reflect the log up to index. It does not
	// block and may be called concurrently.
	ObserveIndex(index uint64)

	Queue(ctx context.Context, name string) (job.Queue, bool, error)
	// HasQueue reports whether a queue exists, or existed a moment ago: if this node
	// knows it, no other is asked.
	HasQueue(ctx context.Context, name string) (bool, error)
	Queues(ctx context.Context) ([]job.Queue, error) // in any order
	AddQueue(ctx context.Context, name string, cfg job.QueueConfig) (job.ID, error)
	ChangeQueue(ctx context.Context, name string, change job.QueueChange) error
	RemoveQueue(ctx context.Context, name string) error
	// PauseQueue pauses or resumes a queue. It returns job.ErrQueuePaused or
	// job.ErrQueueNotPaused if there is nothing to change.
	PauseQueue(ctx context.Context, name string, paused bool) error
	// Stats returns the number of a queue's jobs by state.
	Stats(ctx context.Context, queue string) (counts [job.Failed + 1]uint64, err error)
	// Clear removes a queue's jobs in the given states.
	Clear(ctx context.Context, queue string, states []job.State) (removed int, err error)
	// Obliterate removes a queue and all its jobs. It refuses if jobs are
	// active, unless force is set.
	Obliterate(ctx context.Context, queue string, force bool) (removed int, err error)

	// Enqueue accepts a job and calls done once, from any goroutine, when the
	// job is accepted or refused. Jobs are accepted in the order of the calls.
	// It refuses a queue that does not exist, then a system queue. With an
	// empty key the cluster generates the id.
	Enqueue(ctx context.Context, queue string, spec job.Spec, key string, done func(job.ID, error))
	// Job returns a job with its body and its result, which may have to be read
	// from disk. Peek returns it without them, from memory.
	Job(ctx context.Context, id job.ID) (job.View, bool, error)
	Peek(ctx context.Context, id job.ID) (job.View, bool, error)
	// Await blocks until the job has ended or ctx is done. The view has a
	// result and no body.
	Await(ctx context.Context, id job.ID) (job.View, error)
	// List returns a page (from 1) of a queue's jobs in a state, oldest first.
	List(ctx context.Context, queue string, state job.State, page, size int) ([]job.View, error)
	RemoveJob(ctx context.Context, id job.ID) error
	Cancel(ctx context.Context, id job.ID, reason string) (job.State, error)
	Retry(ctx context.Context, id job.ID) (job.State, error)
	// ChangeJob changes the priority of a waiting or delayed job, its start, or both.
	// A nil priority and the zero start change nothing.
	ChangeJob(ctx context.Context, id job.ID, priority *uint8, start Start) (job.State, error)
	// Content returns at most size bytes, from offset on, of a job's result or, if
	// result is false, of its body's params or payload. It returns job.ErrNoContent or
	// job.ErrContentGone if there is none.
	Content(ctx context.Context, id job.ID, result bool, offset, size int64) (job.ValuePart, error)
	// Operate carries out an operation of the API, with a request and a reply in JSON. The
	// error is an *api.Error.
	Operate(ctx context.Context, op string, request []byte) (reply []byte, err error)
}

// Executor is the node's agent as the edge sees it: it receives offers,
// outcomes, log lines and the health of workers. Its methods do not block and
// do not call back into the edge before they return. Adopt, WorkerLease,
// Stalled and Recovered are called with the edge's locks held.
type Executor interface {
	// Adopt takes over a running dispatch whose worker came from another node;
	// from then on it is stopped and reported as if Start had accepted it. It
	// returns false if the node may not run it.
	Adopt(a job.Assignment) bool
	// WorkerLease returns the end of a lease that a worker asks for until the
	// given time: that time, or the end of the node's own lease if that is
	// earlier.
	WorkerLease(until time.Time) time.Time
	// Offer announces how many jobs one worker takes from one queue, as an
	// absolute number. Free 0 withdraws the offer.
	Offer(o job.Offer)
	// Report reports how a dispatch ended: once for every dispatch that Start
	// or Adopt accepted, and also for a dispatch of another node whose worker
	// sends the end to this one. If done is not nil it is called once, from
	// another goroutine, when the outcome is committed or known to be stale.
	Report(o job.Outcome, done func(job.Settled))
	// Log records a line of a dispatch's log. It never blocks.
	Log(l job.LogLine)
	// Stalled reports that a worker, named by its channel, takes jobs and does
	// not work on them. Recovered reports that it works again or has come back
	// over another connection.
	Stalled(worker, reason string)
	Recovered(worker, recovery string)
}

// Status is the node's part of the answer to STATUS.
type Status struct {
	DataPath     string
	PathExists   bool
	DataSize     int64 // bytes
	Bootstrapped bool  // the cluster's queues are known on this node
	Queues       int
	PausedQueues int
	Cluster      map[string]string // shown as "cluster"
}

// Start is the earliest start of a job. At most one field is set.
type Start struct {
	At    time.Time     // a time that has passed means now
	Delay time.Duration // from now
}
