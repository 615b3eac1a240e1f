// Package intake accepts jobs from all sources: requests, cron entries and Overhop
// workers. Each is one publish to a lane; a job is accepted when the lane acknowledges
// it, and one with guards when the ledger has decided about it.
package intake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
	"github.com/yardmaster-dev/yardmaster/server/limitkeys"
	"github.com/yardmaster-dev/yardmaster/server/schemas"
)

// Job is a job to accept.
type Job struct {
	Queue     string
	Spec      job.Spec
	Body      []byte        // Spec as JSON if the caller has it, else nil
	Key       string        // the producer's key, or ""
	MustExist bool          // reject an unknown queue even where jobs may create queues
	Quota     func() string // returns the name under which new queues of the caller are counted, see [NewQueues.Check]; nil: they are not
	Block     bool          // PublishAsync may block while MaxBarriers or MaxBlobs is reached
}

// Ack is the acknowledgement of a job that was accepted.
type Ack struct {
	ID        job.ID
	Position  job.Position // zero if the ledger had the job already
	Duplicate bool         // the same enqueue was accepted before
	Debounced bool         // ID is an earlier job, which has the new specification or, with Duplicate, had it since the first call
}

// Config is what an [Intake] uses. All fields but Schemas, Keys and NewQueues are required.
type Config struct {
	Publish      func(queue, key string, at time.Time, body []byte, done func(lanes.Ack, error))
	CheckLoad    func() error                                                        // returns an error if no job may be published at present
	DelayAck     func(large bool, answer func())                                     // calls answer as soon as a job may be acknowledged
	StoreBody    func(ctx context.Context, id string, body []byte) (job.Blob, error) // stores a large body
	RemoveBody   func(ctx context.Context, name string) error                        // removes a large body
	Waiters      *ledgerwait.Waiters
	ReadBarrier  func(context.Context) error // waits until the local ledger is current
	CreateQueues bool                        // jobs may create their queues
	QueuesFull   func() bool                 // reports, perhaps late, [ledger.Ledger.QueuesFull]
	NewQueues    *NewQueues                  // bounds the queues that users make
	Schemas      *schemas.Checker            // checks the payloads of jobs; nil: there are no schemas
	Keys         *limitkeys.Finder           // finds limit keys in the params of jobs; nil: they are not there
	OnAccept     func()                      // called for each record that a lane has stored
	OnReject     func(error)                 // called for each job that is not accepted
}

// Intake accepts jobs.
type Intake struct {
	cfg Config

	ctx      context.Context // of work that continues after PublishAsync has returned
	cancel   context.CancelFunc
	barriers errgroup.Group // waits for ReadBarrier
	blobs    errgroup.Group // stores of large bodies
	removals errgroup.Group // removals of large bodies
}

// Limits of concurrent work: jobs that wait for the confirmation that their queue does
// not exist, and large bodies that are being stored.
const (
	MaxBarriers = 256
	MaxBlobs    = 16
)

// maxRemovals is the limit of concurrent removals of large bodies. Beyond it, bodies are left
// to the authority, which removes those without an owner after some minutes.
const maxRemovals = 16

// blobTimeout bounds the storing of a large body, and its removal.
const blobTimeout = 30 * time.Second

// New returns an intake.
func New(cfg Config) *Intake {
	in := &Intake{cfg: cfg}
	in.ctx, in.cancel = context.WithCancel(context.Background())
	in.barriers.SetLimit(MaxBarriers)
	in.blobs.SetLimit(MaxBlobs)
	in.removals.SetLimit(maxRemovals)
	return in
}

// Close cancels the work under way and waits for it. No job may be published after.
func (in *Intake) Close() error {
	in.cancel()
	return errors.Join(in.barriers.Wait(), in.blobs.Wait(), in.removals.Wait())
}

// Publish accepts a job and returns when it is durable or rejected, or for a job with
// guards when the ledger has decided. Then the error may be a [*job.DuplicateError] or a
// [*job.RateLimitedError]. It is a [*job.RemovedError] if the key is that of a job that was
// removed, as far as the local ledger shows that: a job whose key is no UUID, and which is
// enqueued at the moment of the removal, may be acknowledged as a duplicate of it. If ctx ends first the error is [streams.ErrUnknown]: the job
// may have been accepted.
func (in *Intake) Publish(ctx context.Context, j Job) (Ack, error) {
	type result struct {
		ack Ack
		err error
	}
	done := make(chan result, 1)
	in.PublishAsync(j, func(a Ack, err error) { done <- result{a, err} })
	select {
	case r := <-done:
		return r.ack, r.err
	case <-ctx.Done():
		return Ack{}, fmt.Errorf("job for queue %s: %w: %w", j.Queue, streams.ErrUnknown, ctx.Err())
	}
}

// PublishAsync is [Intake.Publish] for callers that do not wait: it calls done once,
// with the result, perhaps before it returns. done must not block.
func (in *Intake) PublishAsync(j Job, done func(Ack, error)) {
	p := &pending{in: in, Job: j, named: j.Key != "", done: done}
	if !p.named {
		p.Key = uuid.Must(uuid.NewV7()).String()
	}
	if p.Spec.Key != nil {
		p.Body = nil // the record has it as limit_key
	}
	id, err := in.Validate(j.Queue, &p.Spec, p.Key, j.MustExist)
	p.id = id
	if err == nil {
		err = in.cfg.NewQueues.Check(j.Quota, j.Queue)
	}
	switch {
	case mayBeStale(err):
		p.background(&in.barriers, "too many jobs for queues or limits that are unknown to this node", p.retryValidate)
	case err != nil:
		p.finish(Ack{}, err)
	default:
		p.accept()
	}
}

// mayBeStale reports whether the local ledger, which may lag, is why a job is not valid.
func mayBeStale(err error) bool {
	_, isLimit := errors.AsType[*job.MissingLimitError](err)
	return isLimit || errors.Is(err, job.ErrQueueNotFound) || errors.Is(err, job.ErrTooManyQueues)
}

// CheckLimits returns a [*job.MissingLimitError] if the local ledger does not have a limit that
// the job names.
func (in *Intake) CheckLimits(spec *job.Spec) error {
	if len(spec.Limits) == 0 {
		return nil
	}
	missing := ""
	in.cfg.Waiters.View(func(l *ledger.Ledger) { missing = l.MissingLimit(spec.Limits) })
	if missing != "" {
		return &job.MissingLimitError{Limit: missing}
	}
	return nil
}

// Validate checks a job for a queue and returns its id, which follows from the queue and
// the key. It replaces the short form of the limit key in spec. The error is a [*job.InvalidError], or wraps job.ErrQueueNotFound if the local
// ledger does not have the queue and mustExist or the configuration requires it, or
// job.ErrTooManyQueues if it has no space for the queue, or is a [*job.MissingLimitError].
func (in *Intake) Validate(queue string, spec *job.Spec, key string, mustExist bool) (job.ID, error) {
	if err := job.ValidQueue(queue); err != nil {
		return job.ID{}, err
	}
	if err := spec.CheckProducer(); err != nil {
		return job.ID{}, err
	}
	if err := spec.UseKey(); err != nil {
		return job.ID{}, err
	}
	if err := spec.Validate(); err != nil {
		return job.ID{}, err
	}
	// Read the ledger only where necessary: a read waits while an entry is being
	// applied, and delays all requests behind this one.
	if mustExist || !in.cfg.CreateQueues {
		exists := false
		in.cfg.Waiters.View(func(l *ledger.Ledger) { _, exists = l.Queue(queue) })
		if !exists {
			return job.ID{}, fmt.Errorf("queue %q: %w", queue, job.ErrQueueNotFound)
		}
	} else if in.cfg.QueuesFull() {
		var err error
		in.cfg.Waiters.View(func(l *ledger.Ledger) { err = l.CheckQueue(queue) })
		if err != nil {
			return job.ID{}, fmt.Errorf("queue %q: %w", queue, err)
		}
	}
	if err := in.CheckLimits(spec); err != nil {
		return job.ID{}, err
	}
	return job.KeyID(queue, key)
}

// CheckPayload returns a [*job.PayloadError] if the payload of a job for a queue does not match
// a schema that is enforced, and a [*job.InvalidError] if it lacks the job's limit key.
func (in *Intake) CheckPayload(queue string, spec *job.Spec) error {
	if _, err := in.cfg.Keys.Find(queue, spec); err != nil {
		return err
	}
	_, err := in.cfg.Schemas.Check(queue, spec)
	return err
}

// findKnown calls findKnown with the local ledger. A job that it finds is not published again, so
// that a producer's late retry is cheap.
func (in *Intake) findKnown(id job.ID, queue string) (a Ack, ok bool, err error) {
	in.cfg.Waiters.View(func(l *ledger.Ledger) { a, ok, err = findKnown(l, id, queue) })
	return a, ok, err
}

// findKnown returns the answer to a repeated enqueue under the given id. It names
// the job with this id, or the one into which a record with this id was merged. ok is false if the ledger
// knows neither. The error is a [*job.DuplicateError] if the first enqueue got one, and a
// [*job.RemovedError] if the job was removed. It is a conflict if the job belongs to another queue.
func findKnown(l *ledger.Ledger, id job.ID, queue string) (a Ack, ok bool, err error) {
	owner, ok := l.Known(id)
	alias, isAlias := l.Alias(id)
	if isAlias && !alias.Holder {
		owner = alias.Queue
	}
	if ok && owner != "" && owner != queue {
		return a, true, idConflict(fmt.Sprintf("id_conflict: %s is a job of queue %s", id, owner))
	}
	if isAlias {
		id, queue = alias.Job, alias.Queue
	}
	switch {
	case ok && l.Removed(id):
		err = &job.RemovedError{Queue: queue, ID: id, Kept: ledger.DedupeAge}
	case alias.Holder:
		err = &job.DuplicateError{Queue: alias.Queue, ID: id}
	}
	return Ack{ID: id, Duplicate: true, Debounced: isAlias}, ok, err
}
