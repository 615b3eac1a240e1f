package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// accepted is the result of a job that was accepted.
type accepted struct {
	id        job.ID
	position  job.Position // zero if the ledger had the job already
	duplicate bool
	debounced bool // id is an earlier job that now has the new specification
}

// intake accepts jobs from all sources: requests, cron.run and Overhop workers. Each is
// one publish to a lane; a job is accepted when the lane acknowledges it.
type intake struct {
	cluster      *cluster.Cluster
	view         func(func(*ledger.Ledger))
	readBarrier  func(context.Context) error // see proposer.readBarrier
	createQueues bool
	notify       func(job.Record) // called for each acknowledged record
	decisions    *decisions
	onReject     func(error) // called for each job that is not accepted; may be nil

	ctx      context.Context // of work that continues after enqueue has returned
	cancel   context.CancelFunc
	barriers errgroup.Group // waits for readBarrier
	blobs    errgroup.Group // stores of large bodies
}

// Limits of concurrent work: jobs that wait for the confirmation that their queue does
// not exist, and large bodies that are being stored.
const (
	maxBarriers = 256
	maxBlobs    = 16
)

// newIntake returns an intake. notify is called for each acknowledged record.
func newIntake(c *cluster.Cluster, view func(func(*ledger.Ledger)), readBarrier func(context.Context) error, createQueues bool, notify func(job.Record), r *decisions) *intake {
	in := &intake{cluster: c, view: view, readBarrier: readBarrier, createQueues: createQueues, notify: notify, decisions: r}
	in.ctx, in.cancel = context.WithCancel(context.Background())
	in.barriers.SetLimit(maxBarriers)
	in.blobs.SetLimit(maxBlobs)
	return in
}

// close cancels the work under way and waits for it. enqueue must not be called after.
func (in *intake) close() error {
	in.cancel()
	return errors.Join(in.barriers.Wait(), in.blobs.Wait())
}

// blobTimeout bounds the storing of a large body.
const blobTimeout = 30 * time.Second

// enqueueOptions are options of a call of enqueue.
type enqueueOptions struct {
	mustExist bool // reject an unknown queue even where jobs may create queues
	block     bool // enqueue may block while maxBarriers or maxBlobs is reached
}

// enqueue accepts a job and calls then once: when the job is durable or rejected, or for
// a job with guards when the ledger has decided. Then the error may be a
// [*job.DuplicateError] or a [*job.RateLimitedError].
//
// key is the producer's key, or "". body is spec as JSON if the caller has it, else nil.
func (in *intake) enqueue(queue string, spec job.Spec, body []byte, key string, opts enqueueOptions, then func(accepted, error)) {
	then = in.countRejected(then)
	callerKey := key
	if key == "" {
		key = uuid.Must(uuid.NewV7()).String()
	}
	id, err := in.validate(queue, &spec, key, opts.mustExist)
	if errors.Is(err, job.ErrQueueNotFound) {
		started := startIn(&in.barriers, opts.block, func() {
			if err = in.readBarrier(in.ctx); err == nil {
				id, err = in.validate(queue, &spec, key, opts.mustExist)
			}
			in.accept(id, err, queue, spec, body, callerKey, opts, then)
		})
		if !started {
			then(accepted{}, &job.UnavailableError{Reason: "too many jobs for queues that are unknown to this node", RetryAfter: time.Second})
		}
		return
	}
	in.accept(id, err, queue, spec, body, callerKey, opts, then)
}

// countRejected returns then with a call of in.onReject for errors. A duplicate of a
// unique key is not an error in this sense.
func (in *intake) countRejected(then func(accepted, error)) func(accepted, error) {
	return func(a accepted, err error) {
		var duplicate *job.DuplicateError
		if err != nil && in.onReject != nil && !errors.As(err, &duplicate) {
			in.onReject(err)
		}
		then(a, err)
	}
}

// enqueueWait is enqueue with a wait for its result. If ctx ends first the error is
// [cluster.ErrUnknown]: the job may have been accepted.
func (in *intake) enqueueWait(ctx context.Context, queue string, spec job.Spec, key string, mustExist bool) (accepted, error) {
	type result struct {
		accepted
		err error
	}
	done := make(chan result, 1)
	in.enqueue(queue, spec, nil, key, enqueueOptions{mustExist: mustExist}, func(a accepted, err error) { done <- result{a, err} })
	select {
	case a := <-done:
		return a.accepted, a.err
	case <-ctx.Done():
		return accepted{}, fmt.Errorf("job for queue %s: %w: %w", queue, cluster.ErrUnknown, ctx.Err())
	}
}

// startIn runs fn in a group with a limit. At the limit it blocks if block is set, else
// it reports false.
func startIn(group *errgroup.Group, block bool, fn func()) bool {
	run := func() error { fn(); return nil }
	if block {
		group.Go(run)
		return true
	}
	return group.TryGo(run)
}

// accept publishes a job that was validated, or reports err. key is the caller's own, or
// "".
func (in *intake) accept(id job.ID, err error, queue string, spec job.Spec, body []byte, key string, opts enqueueOptions, then func(accepted, error)) {
	if err != nil {
		then(accepted{}, err)
		return
	}
	if key != "" { // a generated id cannot be known
		if known, err := in.isKnown(id, queue); known || err != nil {
			then(accepted{id: id, duplicate: true}, err)
			return
		}
	}
	publish := in.publish
	_, notID := job.ParseID(key)
	if guarded := spec.HasGuards(); guarded || notID == nil {
		if err := in.decisions.admit(guarded); err != nil {
			then(accepted{}, err)
			return
		}
		publish = func(id job.ID, queue string, body []byte, then func(accepted, error)) {
			if guarded {
				then = in.whenDecided(id, key != "", then)
			} else {
				then = in.whenOwned(id, queue, then)
			}
			in.publish(id, queue, body, then)
		}
	}
	if body == nil {
		if body, err = json.Marshal(spec); err != nil {
			then(accepted{}, &job.InvalidError{Reason: err.Error()})
			return
		}
	}
	if len(body) > job.MaxInlineBody {
		started := startIn(&in.blobs, opts.block, func() { // storing takes several round trips
			body, err := in.storeBlob(id, &spec, body)
			if err != nil {
				then(accepted{}, err)
				return
			}
			publish(id, queue, body, then)
		})
		if !started {
			then(accepted{}, &job.UnavailableError{Reason: "too many large jobs at once", RetryAfter: time.Second})
		}
		return
	}
	publish(id, queue, body, then)
}

// whenDecided returns a callback that calls then when the ledger has decided about an
// accepted job. named reports whether the caller chose the id.
func (in *intake) whenDecided(id job.ID, named bool, then func(accepted, error)) func(accepted, error) {
	return func(a accepted, err error) {
		if err != nil {
			then(a, err)
			return
		}
		in.decisions.await(a.position, func(d ledger.Decision, err error) {
			stored := a
			if err == nil {
				a, err = acceptedFrom(d, id, a.position, named)
				if err != nil && stored.duplicate {
					err = staleDecisionError()
				}
			}
			then(a, err)
		})
	}
}

// whenOwned returns a callback that calls then when the ledger shows whether an accepted
// job, which came with its own id, belongs to queue.
func (in *intake) whenOwned(id job.ID, queue string, then func(accepted, error)) func(accepted, error) {
	return func(a accepted, err error) {
		if err != nil {
			then(a, err)
			return
		}
		in.decisions.awaitOwner(a.position, id, queue, func(err error) { then(a, err) })
	}
}

// staleDecisionError is the answer to a job with a key that the lane has dropped as a
// repetition of a job rejected a moment ago. The reason for that rejection may no longer
// hold, and the ledger never saw the second job.
func staleDecisionError() error {
	return &job.UnavailableError{Reason: "a job under this key was rejected a moment ago: ask again", RetryAfter: staleDecisionDelay}
}

// staleDecisionDelay is well above the time for which a lane remembers a key.
const staleDecisionDelay = 500 * time.Millisecond

// validate checks a job and returns its id.
func (in *intake) validate(queue string, spec *job.Spec, key string, mustExist bool) (job.ID, error) {
	if err := job.ValidQueue(queue); err != nil {
		return job.ID{}, err
	}
	if spec.Blob != nil {
		return job.ID{}, &job.InvalidError{Reason: "blob is written by nodes; send the body itself"}
	}
	if err := spec.Validate(); err != nil {
		return job.ID{}, err
	}
	// Read the ledger only where necessary: a read waits while an entry is being
	// applied, and delays all requests behind this one.
	if mustExist || !in.createQueues {
		exists := false
		in.view(func(l *ledger.Ledger) { _, exists = l.Queue(queue) })
		if !exists {
			return job.ID{}, fmt.Errorf("queue %q: %w", queue, job.ErrQueueNotFound)
		}
	}
	return job.KeyID(queue, key)
}

// isKnown reports whether the local ledger has the job, so that a producer's late retry
// costs no publish.
func (in *intake) isKnown(id job.ID, queue string) (known bool, err error) {
	in.view(func(l *ledger.Ledger) { known, err = checkOwner(l, id, queue) })
	return known, err
}

// checkOwner reports whether the ledger has a job. It returns an error if the job belongs
// to another queue.
func checkOwner(l *ledger.Ledger, id job.ID, queue string) (known bool, err error) {
	owner, known := l.Known(id)
	if known && owner != "" && owner != queue {
		err = &cluster.APIError{Code: "409", Text: fmt.Sprintf("id_conflict: %s is a job of queue %s", id, owner)}
	}
	return known, err
}

// storeBlob stores a body that is too large for a lane and returns the record that refers
// to it.
func (in *intake) storeBlob(id job.ID, spec *job.Spec, body []byte) ([]byte, error) {
	if len(body) > job.MaxBody {
		return nil, fmt.Errorf("job of %d bytes, at most %d: %w", len(body), job.MaxBody, job.ErrTooLarge)
	}
	ctx, cancel := context.WithTimeout(in.ctx, blobTimeout)
	defer cancel()
	blob, err := in.cluster.StoreBlob(ctx, id.String(), body)
	if err != nil {
		return nil, fmt.Errorf("store the body: %w", err)
	}
	record := *spec
	record.Params, record.Payload, record.Blob = nil, nil, &blob
	return json.Marshal(record)
}

// publish publishes a record under its job id. The producer's key would do for the ledger
// but not for JetStream, where the same key in two queues is one message.
func (in *intake) publish(id job.ID, queue string, body []byte, then func(accepted, error)) {
	key := id.String()
	at := time.Now()
	in.cluster.Publish(queue, key, at, body, func(ack cluster.Ack, err error) {
		if err != nil {
			then(accepted{}, err)
			return
		}
		if !ack.Duplicate {
			in.notify(job.Record{Position: ack.Position, Queue: queue, Key: key, Stored: at, Body: body})
		}
		then(accepted{id: id, position: ack.Position, duplicate: ack.Duplicate}, nil)
	})
}

// recordNotifier sends the authority the records that this node has just had acknowledged.
// Records that arrive while a message is being sent go with the next one.
type recordNotifier struct {
	mu      sync.Mutex
	pending []job.Record
	bytes   int // of their bodies
	wake    chan struct{}
	send    func([]job.Record)
}

const (
	maxPendingBytes   = 32 << 20
	maxPendingRecords = 8192 // further ones are left to the authority's reads of the lanes
	maxNoticeRecords  = 256  // records in a message
	noticeMaxBytes    = 512 << 10
)

func newRecordNotifier(send func([]job.Record)) *recordNotifier {
	return &recordNotifier{wake: make(chan struct{}, 1), send: send}
}

// add queues a record for the next message.
func (rn *recordNotifier) add(r job.Record) {
	rn.mu.Lock()
	if len(rn.pending) < maxPendingRecords && rn.bytes < maxPendingBytes {
		rn.pending = append(rn.pending, r)
		rn.bytes += len(r.Body)
	}
	rn.mu.Unlock()
	select {
	case rn.wake <- struct{}{}:
	default:
	}
}

// run sends queued records until ctx ends.
func (rn *recordNotifier) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-rn.wake:
		}
		rn.mu.Lock()
		batch := rn.pending
		rn.pending, rn.bytes = nil, 0
		rn.mu.Unlock()
		for len(batch) > 0 {
			k, bytes := 0, 0
			for k < len(batch) && k < maxNoticeRecords && (k == 0 || bytes+len(batch[k].Body) < noticeMaxBytes) {
				bytes += len(batch[k].Body)
				k++
			}
			rn.send(batch[:k])
			batch = batch[k:]
		}
	}
}
