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

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// accepted says where a job went.
type accepted struct {
	id        job.ID
	position  job.Position // zero if the ledger knew the job already
	duplicate bool
	debounced bool // id is a job that was there before, and is now what was asked for
}

// door is where jobs come in, whichever way they took: a request, the command
// line or an Overhop worker. All end in one publish to a lane; its
// acknowledgement is the acceptance.
type door struct {
	messages     *cluster.Cluster
	view         func(func(*ledger.Ledger))
	current      func(context.Context) error // see commander.current
	createQueues bool
	notify       func(job.Record)
	rulings      *rulings
	refused      func(error) // hears why jobs were not accepted; nil: nobody asks

	ctx    context.Context // of what goes on after enqueue has returned
	stop   context.CancelFunc
	doubts errgroup.Group // who ask current
	large  errgroup.Group // who store a body
}

// How many jobs may wait at once to hear whether their queue really does not
// exist, and how many large bodies may be on their way to the disk.
const (
	maxDoubts = 256
	maxLarge  = 16
)

func newDoor(m *cluster.Cluster, view func(func(*ledger.Ledger)), current func(context.Context) error, createQueues bool, notify func(job.Record), r *rulings) *door {
	d := &door{messages: m, view: view, current: current, createQueues: createQueues, notify: notify, rulings: r}
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.doubts.SetLimit(maxDoubts)
	d.large.SetLimit(maxLarge)
	return d
}

// close ends what goes on and waits for it; nobody may enqueue any more.
func (d *door) close() error {
	d.stop()
	return errors.Join(d.doubts.Wait(), d.large.Wait())
}

// blobTime bounds how long a large body may take to be stored.
const blobTime = 30 * time.Second

// terms are what a caller asks beside its job.
type terms struct {
	mustExist bool // an unknown queue is refused even where jobs create queues
	patient   bool // enqueue may block until there is a place, for doubts and large bodies
}

// enqueue accepts a job and calls then once, when it is durable or refused; a
// job with guards, when it is decided on. Then the error may be a
// [*job.DuplicateError] or a [*job.LimitedError].
//
// body is spec's JSON where the caller has it, else nil.
func (d *door) enqueue(queue string, spec job.Spec, body []byte, key string, t terms, then func(accepted, error)) {
	then = d.countRefused(then)
	given := key
	if key == "" {
		key = uuid.Must(uuid.NewV7()).String()
	}
	id, err := d.check(queue, &spec, key, t.mustExist)
	if errors.Is(err, job.ErrQueueNotFound) {
		sure := begin(&d.doubts, t.patient, func() {
			if err = d.current(d.ctx); err == nil {
				id, err = d.check(queue, &spec, key, t.mustExist)
			}
			d.accept(id, err, queue, spec, body, given, t, then)
		})
		if !sure {
			then(accepted{}, &job.UnavailableError{Reason: "too many jobs for queues that this node does not know", RetryAfter: time.Second})
		}
		return
	}
	d.accept(id, err, queue, spec, body, given, t, then)
}

// countRefused tells of jobs that were not accepted. That another one has its
// unique key is an answer, not a refusal.
func (d *door) countRefused(then func(accepted, error)) func(accepted, error) {
	return func(a accepted, err error) {
		var duplicate *job.DuplicateError
		if err != nil && d.refused != nil && !errors.As(err, &duplicate) {
			d.refused(err)
		}
		then(a, err)
	}
}

// take is enqueue for who waits. If ctx ends first the error is
// [cluster.ErrUnknown]: the job may have been accepted.
func (d *door) take(ctx context.Context, queue string, spec job.Spec, key string, mustExist bool) (accepted, error) {
	type answer struct {
		accepted
		err error
	}
	answered := make(chan answer, 1)
	d.enqueue(queue, spec, nil, key, terms{mustExist: mustExist}, func(a accepted, err error) { answered <- answer{a, err} })
	select {
	case a := <-answered:
		return a.accepted, a.err
	case <-ctx.Done():
		return accepted{}, fmt.Errorf("job for queue %s: %w: %w", queue, cluster.ErrUnknown, ctx.Err())
	}
}

// begin starts work in a group that takes so much at once; false tells that
// there is no place, for which the patient wait.
func begin(group *errgroup.Group, patient bool, work func()) bool {
	run := func() error { work(); return nil }
	if patient {
		group.Go(run)
		return true
	}
	return group.TryGo(run)
}

// accept goes on with a job that was checked. key is the caller's own, if it
// gave one.
func (d *door) accept(id job.ID, err error, queue string, spec job.Spec, body []byte, key string, t terms, then func(accepted, error)) {
	if err != nil {
		then(accepted{}, err)
		return
	}
	if key != "" { // what was minted just now is known to nobody
		if known, err := d.known(id, queue); known || err != nil {
			then(accepted{id: id, duplicate: true}, err)
			return
		}
	}
	publish := d.publish
	_, notID := job.ParseID(key)
	if guarded := spec.Guarded(); guarded || notID == nil {
		if err := d.rulings.admit(guarded); err != nil {
			then(accepted{}, err)
			return
		}
		publish = func(id job.ID, queue string, body []byte, then func(accepted, error)) {
			if guarded {
				then = d.onceDecided(id, key != "", then)
			} else {
				then = d.onceOwned(id, queue, then)
			}
			d.publish(id, queue, body, then)
		}
	}
	if body == nil {
		if body, err = json.Marshal(spec); err != nil {
			then(accepted{}, &job.InvalidError{Reason: err.Error()})
			return
		}
	}
	if len(body) > job.MaxInlineBody {
		storing := begin(&d.large, t.patient, func() { // it takes several quorums
			body, err := d.outsource(id, &spec, body)
			if err != nil {
				then(accepted{}, err)
				return
			}
			publish(id, queue, body, then)
		})
		if !storing {
			then(accepted{}, &job.UnavailableError{Reason: "too many large jobs at once", RetryAfter: time.Second})
		}
		return
	}
	publish(id, queue, body, then)
}

// onceDecided calls then when the ledger has decided about an accepted job.
func (d *door) onceDecided(id job.ID, again bool, then func(accepted, error)) func(accepted, error) {
	return func(a accepted, err error) {
		if err != nil {
			then(a, err)
			return
		}
		d.rulings.await(a.position, func(r ledger.Ruling, err error) {
			stored := a
			if err == nil {
				a, err = answerOf(r, id, a.position, again)
				if err != nil && stored.duplicate {
					err = staleRuling()
				}
			}
			then(a, err)
		})
	}
}

// onceOwned calls then when the ledger shows that an accepted job, which came
// with its id, is no other queue's.
func (d *door) onceOwned(id job.ID, queue string, then func(accepted, error)) func(accepted, error) {
	return func(a accepted, err error) {
		if err != nil {
			then(a, err)
			return
		}
		d.rulings.awaitOwner(a.position, id, queue, func(err error) { then(a, err) })
	}
}

// staleRuling answers a second try under one key that came so soon that its
// lane took it for the first: the first one was refused, perhaps by what is no
// longer in the way, and the second was not judged at all.
func staleRuling() error {
	return &job.UnavailableError{Reason: "a job under this key was refused a moment ago: ask again", RetryAfter: staleDelay}
}

// staleDelay is well above the time for which a lane knows a key.
const staleDelay = 500 * time.Millisecond

func (d *door) check(queue string, spec *job.Spec, key string, mustExist bool) (job.ID, error) {
	if err := job.ValidQueue(queue); err != nil {
		return job.ID{}, err
	}
	if spec.Blob != nil {
		return job.ID{}, &job.InvalidError{Reason: "blob is written by nodes; send the body itself"}
	}
	if err := spec.Validate(); err != nil {
		return job.ID{}, err
	}
	// The ledger is asked only where its answer matters: while an entry is
	// being applied, whoever asks waits, and with him all who are behind him.
	if mustExist || !d.createQueues {
		exists := false
		d.view(func(l *ledger.Ledger) { _, exists = l.Queue(queue) })
		if !exists {
			return job.ID{}, fmt.Errorf("queue %q: %w", queue, job.ErrQueueNotFound)
		}
	}
	return job.KeyID(queue, key)
}

// known asks the local ledger, so that a producer's late retry costs no
// publish.
func (d *door) known(id job.ID, queue string) (known bool, err error) {
	d.view(func(l *ledger.Ledger) { known, err = ownedBy(l, id, queue) })
	return known, err
}

// ownedBy tells whether a job is known; the error says that another queue has
// it.
func ownedBy(l *ledger.Ledger, id job.ID, queue string) (known bool, err error) {
	in, known := l.Known(id)
	if known && in != "" && in != queue {
		err = &cluster.APIError{Code: "409", Text: fmt.Sprintf("id_conflict: %s is a job of queue %s", id, in)}
	}
	return known, err
}

// outsource stores a body that is too large for a lane and gives the record
// that points to it.
func (d *door) outsource(id job.ID, spec *job.Spec, body []byte) ([]byte, error) {
	if len(body) > job.MaxBody {
		return nil, fmt.Errorf("job of %d bytes, at most %d: %w", len(body), job.MaxBody, job.ErrTooLarge)
	}
	ctx, cancel := context.WithTimeout(d.ctx, blobTime)
	defer cancel()
	blob, err := d.messages.StoreBlob(ctx, id.String(), body)
	if err != nil {
		return nil, fmt.Errorf("store the body: %w", err)
	}
	record := *spec
	record.Params, record.Payload, record.Blob = nil, nil, &blob
	return json.Marshal(record)
}

// publish names the record by its id. Its key would do for the ledger, but not
// for JetStream: there, the same key in two queues is one message.
func (d *door) publish(id job.ID, queue string, body []byte, then func(accepted, error)) {
	key := id.String()
	at := time.Now()
	d.messages.Publish(queue, key, at, body, func(ack cluster.Ack, err error) {
		if err != nil {
			then(accepted{}, err)
			return
		}
		if !ack.Duplicate {
			d.notify(job.Record{Position: ack.Position, Queue: queue, Key: key, Stored: at, Body: body})
		}
		then(accepted{id: id, position: ack.Position, duplicate: ack.Duplicate}, nil)
	})
}

// notices tells the authority of records this node has just had acknowledged:
// what gathers while one message is being sent goes with the next.
type notices struct {
	mu      sync.Mutex
	waiting []job.Record
	bytes   int // of their bodies
	wake    chan struct{}
	send    func([]job.Record)
}

const (
	maxNoticeBytes = 32 << 20
	maxNotices     = 8192 // waiting; more are left to the authority's own reading
	noticeAtOnce   = 256  // records in a message
	noticeMaxBytes = 512 << 10
)

func newNotices(send func([]job.Record)) *notices {
	return &notices{wake: make(chan struct{}, 1), send: send}
}

func (n *notices) add(r job.Record) {
	n.mu.Lock()
	if len(n.waiting) < maxNotices && n.bytes < maxNoticeBytes {
		n.waiting = append(n.waiting, r)
		n.bytes += len(r.Body)
	}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *notices) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		}
		n.mu.Lock()
		batch := n.waiting
		n.waiting, n.bytes = nil, 0
		n.mu.Unlock()
		for len(batch) > 0 {
			k, bytes := 0, 0
			for k < len(batch) && k < noticeAtOnce && (k == 0 || bytes+len(batch[k].Body) < noticeMaxBytes) {
				bytes += len(batch[k].Body)
				k++
			}
			n.send(batch[:k])
			batch = batch[k:]
		}
	}
}
