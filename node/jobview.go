package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
)

// viewer returns jobs: what the ledger has, joined with the body from its lane and the
// result from its stream.
type viewer struct {
	raft        *consensus.Node
	waiters     *ledgerwait.Waiters
	reader      *cluster.Reader
	lanes       func() int                                                  // returns the number of lanes
	load        func(context.Context, job.Position, job.ID) ([]byte, error) // a job's body
	readBarrier func(context.Context) error                                 // see proposer.ReadBarrier
	addProgress func(context.Context, *job.View)                            // adds what the worker last reported
}

// locate is find for a job that may have been accepted a moment ago. It returns an error
// if the ledger does not have the job.
func (v *viewer) locate(ctx context.Context, text, queue string) (job.ID, error) {
	id, err := v.find(text, queue)
	if err == nil && v.isKnown(id) || err != nil && !errors.Is(err, job.ErrJobNotFound) {
		return id, err
	}
	if err := v.catchUp(ctx); err != nil {
		return id, err
	}
	if id, err = v.find(text, queue); err == nil && !v.isKnown(id) {
		err = fmt.Errorf("%s: %w", id, job.ErrJobNotFound)
	}
	return id, err
}

func (v *viewer) isKnown(id job.ID) (known bool) {
	v.raft.View(func(l *ledger.Ledger) { _, known = l.Known(id) })
	return known
}

// catchUp waits until the local ledger has every job that had been accepted when it was
// called. Call it before answering that a job does not exist. A [*job.UnavailableError]
// means that this is not certain: a lane whose leader does not answer may hold records
// that are not ingested.
func (v *viewer) catchUp(ctx context.Context) error {
	if err := v.readBarrier(ctx); err != nil {
		return err
	}
	lanes := v.lanes()
	errs := make([]error, lanes)
	var queries sync.WaitGroup
	for lane := range lanes {
		queries.Go(func() { errs[lane] = v.catchUpWith(ctx, uint8(lane)) })
	}
	queries.Wait()
	for lane, err := range errs {
		if err != nil {
			return &job.UnavailableError{
				Reason: fmt.Sprintf("lane %d may hold jobs that are not ingested yet: %s", lane, cluster.ErrorText(err)), RetryAfter: time.Second,
			}
		}
	}
	return nil
}

// catchUpWith is catchUp for one lane.
func (v *viewer) catchUpWith(ctx context.Context, lane uint8) error {
	reqCtx, cancel := context.WithTimeout(ctx, ledgerwait.ReadTimeout)
	defer cancel()
	last, err := v.reader.LastSeq(reqCtx, lane)
	if err != nil {
		return err
	}
	return v.waiters.WaitRead(ctx, func(l *ledger.Ledger) bool { return l.Ingested(job.Position{Lane: lane, Seq: last}) })
}

// find returns the id that a text names: a UUID, "<queue>:<UUID>", "<queue>:<key>", or a
// key, of the given queue or else of the first queue with such a job.
func (v *viewer) find(text, queue string) (job.ID, error) {
	if id, err := job.ParseID(text); err == nil {
		return id, nil
	}
	if i := bytes.IndexByte([]byte(text), ':'); i > 0 && queue == "" && job.ValidQueue(text[:i]) == nil {
		if id, err := v.find(text[i+1:], text[:i]); err == nil {
			return id, nil
		}
	}
	var found job.ID
	err := fmt.Errorf("%q: %w", text, job.ErrJobNotFound)
	v.raft.View(func(l *ledger.Ledger) {
		for _, q := range l.Queues() {
			if queue != "" && q.Name != queue {
				continue
			}
			id, badKey := job.KeyID(q.Name, text)
			if badKey != nil {
				err = badKey
				return
			}
			if owner, _ := l.Known(id); owner == q.Name {
				found, err = id, nil
				return
			}
		}
	})
	return found, err
}

// resultRef is where a job's result is.
type resultRef struct {
	number uint64             // of the result; 0: there is none
	seq    uint64             // of its message; 0: unknown
	item   *ledger.ResultItem // the result itself while it is not published; else nil
}

// summary returns a job from the ledger, without its body and its result.
func (v *viewer) summary(_ context.Context, id job.ID) (job.View, error) {
	view, _, err := v.ledgerView(id)
	return view, err
}

// ledgerView returns a job from the ledger, and where its result is.
func (v *viewer) ledgerView(id job.ID) (view job.View, ref resultRef, err error) {
	ok := false
	v.raft.View(func(l *ledger.Ledger) {
		if view, ref.number, ok = l.Find(id); ok && ref.number > 0 {
			ref.item, ref.seq = l.FindResult(ref.number)
		}
	})
	if !ok {
		return view, ref, fmt.Errorf("%s: %w", id, job.ErrJobNotFound)
	}
	if view.State != job.Failed {
		view.Fault = nil // the error of an earlier attempt is in Reason only
	}
	return view, ref, nil
}

// full returns a job with its body, progress and result.
func (v *viewer) full(ctx context.Context, id job.ID) (job.View, error) {
	view, ref, err := v.ledgerView(id)
	if err != nil {
		return view, err
	}
	if err := v.addBody(ctx, &view); err != nil {
		return view, err
	}
	v.addProgress(ctx, &view)
	return view, v.addResult(ctx, &view, ref)
}

// finished returns how a job has ended, without its body.
func (v *viewer) finished(ctx context.Context, id job.ID) (job.View, error) {
	view, ref, err := v.ledgerView(id)
	if err != nil {
		return view, err
	}
	return view, v.addResult(ctx, &view, ref)
}

// addBody adds the job's body. It is no error if the body has been deleted or its lane no
// longer exists, which readiness reports. The body of a rejected record, which is not a
// job, is left out.
func (v *viewer) addBody(ctx context.Context, view *job.View) error {
	body, err := v.load(ctx, view.Position, view.ID)
	switch {
	case errors.Is(err, cluster.ErrNotStored), errors.Is(err, cluster.ErrStreamMissing), errors.Is(err, cluster.ErrStreamMismatch):
		view.PayloadGone = true
		return nil
	case err != nil:
		return readError("body", view.ID, err)
	}
	if spec, err := job.ParseSpec(body); err == nil {
		view.Spec = &spec
	}
	return nil
}

// readError returns the error for a part of a job that cannot be read. It is a
// [*job.UnavailableError] if a retry may succeed: after a new election or a slow read.
func readError(part string, id job.ID, err error) error {
	err = fmt.Errorf("%s of job %s: %w", part, id, err)
	if errors.Is(err, cluster.ErrNoLeader) || errors.Is(err, context.DeadlineExceeded) {
		return &job.UnavailableError{Reason: err.Error(), RetryAfter: time.Second}
	}
	return err
}

// addResult adds the job's result, unless its result TTL has passed. After that the result
// is only hidden: a message of the stream holds the results of many jobs and stays until
// the stream expires it.
func (v *viewer) addResult(ctx context.Context, view *job.View, ref resultRef) error {
	if ttl := view.ResultTTL; ttl > 0 && ref.number > 0 && !time.Now().Before(view.Ended.Add(ttl)) {
		view.ResultGone = true
		return nil
	}
	switch {
	case ref.item != nil:
		return v.addValue(ctx, view, ref.item.Value, ref.item.Blob)
	case ref.number > 0:
		return v.readResult(ctx, view, ref.number, ref.seq)
	}
	return nil
}

// addValue adds a result, loading it from its blob if it has one.
func (v *viewer) addValue(ctx context.Context, view *job.View, value job.Value, blob *job.Blob) error {
	view.Result = value
	if blob == nil {
		return nil
	}
	raw, err := v.reader.LoadBlob(ctx, *blob)
	if err != nil {
		return readError("result", view.ID, err)
	}
	view.Result.Data = raw
	return nil
}

// readResult finds the job's line in a message of results. After a failover the ledger
// may only know an earlier message, or none: then the stream is searched. It is no error
// if the result has expired.
func (v *viewer) readResult(ctx context.Context, view *job.View, number, seq uint64) error {
	var b cluster.Batch
	var err error
	if seq > 0 {
		b, err = v.reader.ReadBatch(ctx, cluster.StreamResults, seq)
	}
	if err == nil && (number < b.First || number > b.Last()) {
		b, err = v.reader.FindBatch(ctx, cluster.StreamResults, number)
	}
	if errors.Is(err, cluster.ErrNotStored) {
		view.ResultGone = true
		return nil
	}
	if err != nil {
		return readError("result", view.ID, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(b.Body))
	lines.Buffer(nil, len(b.Body)+1)
	for lines.Scan() {
		var line outbox.ResultLine
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Number == number {
			return v.addValue(ctx, view, line.Value(), line.Blob)
		}
	}
	return nil
}

// page returns a page, from 1, of a queue's jobs in a state, oldest first and without
// bodies. It reads from a copy of the ledger, so that it does not block the applying of
// entries.
func (v *viewer) page(ctx context.Context, queue string, state job.State, page, size int) ([]job.View, error) {
	c := v.raft.Copy()
	if _, ok := c.Queue(queue); !ok {
		if err := v.readBarrier(ctx); err != nil {
			return nil, err
		}
		c = v.raft.Copy()
	}
	if _, ok := c.Queue(queue); !ok {
		return nil, fmt.Errorf("queue %q: %w", queue, job.ErrQueueNotFound)
	}
	return c.List(queue, state, (page-1)*size, size), nil
}

// list is page with bodies.
func (v *viewer) list(ctx context.Context, queue string, state job.State, page, size int) ([]job.View, error) {
	views, err := v.page(ctx, queue, state, page, size)
	if err != nil {
		return nil, err
	}
	bytes := 0
	for i := range views {
		if err := v.addBody(ctx, &views[i]); err != nil {
			return nil, err
		}
		if spec := views[i].Spec; spec != nil {
			bytes += len(spec.Params) + len(spec.Payload)
		}
		if bytes > maxPageBytes {
			return nil, fmt.Errorf("page of jobs with bodies of more than %d bytes; ask for fewer jobs a page: %w", maxPageBytes, job.ErrTooLarge)
		}
	}
	return views, nil
}

// maxPageBytes bounds the bodies of one page, which are all in memory at once. It is the
// size of an Overhop frame.
const maxPageBytes = 8 << 20

func progressToJSON(r *job.Progress) *api.Progress {
	switch {
	case r.Percent == nil && len(r.Data.Data) == 0:
		return nil
	case r.Data.Msgpack:
		return &api.Progress{Percent: r.Percent, DataMsgpack: r.Data.Data}
	}
	return &api.Progress{Percent: r.Percent, Data: r.Data.Data}
}

func jobToJSON(v *job.View) api.Job {
	j := api.Job{
		ID: v.ID, JID: v.Queue + ":" + v.ID.String(), Queue: v.Queue, State: v.State.String(),
		Function: v.Function, PayloadGone: v.PayloadGone, Created: v.Created, RunAt: v.RunAt,
		Started: timePtr(v.Started), Ended: timePtr(v.Ended), Priority: v.Priority, Attempts: v.Attempts,
		MaxAttempts: v.MaxAttempts, Dispatches: v.Dispatches, Losses: v.Losses,
		TimeoutMS: v.Timeout.Milliseconds(), RetryInterval: v.RetryInterval.Milliseconds(),
		Node: v.Node, Worker: v.Worker,
		ResultGone: v.ResultGone, ResultTTL: v.ResultTTL.Milliseconds(),
		Lane: v.Position.Lane, Seq: v.Position.Seq,
	}
	if v.State != job.Active && v.State != job.Completed { // there an earlier failure explains nothing
		j.Reason, j.Error = v.Reason, v.Fault
	}
	if v.Spec != nil {
		j.Trace = v.Spec.Trace
		if j.PayloadBytes = len(v.Spec.Params) + len(v.Spec.Payload); j.PayloadBytes <= maxShownBytes {
			j.Params, j.Payload, j.PayloadBytes = v.Spec.Params, v.Spec.Payload, 0
		}
	}
	switch {
	case len(v.Result.Data) > maxShownBytes:
		j.ResultBytes = len(v.Result.Data)
	case v.Result.Msgpack:
		j.ResultMsgpack = v.Result.Data
	default:
		j.Result = v.Result.Data
	}
	if r := v.Progress; r != nil {
		j.Lease, j.Progress = timePtr(r.Lease), progressToJSON(r)
	}
	return j
}

// maxShownBytes is the largest body and the largest result in a reply over NATS, in bytes:
// both, one of them in base64, fit a message. Overhop shows larger ones.
const maxShownBytes = 600 << 10

// timePtr returns a pointer to t, or nil for the zero time.
func timePtr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
