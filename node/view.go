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

	"yardmaster/cluster"
	"yardmaster/consensus"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
)

// viewer shows jobs: the ledger's facts, joined with the body from its lane
// and the result from its stream.
type viewer struct {
	raft     *consensus.Node
	messages *cluster.Cluster
	load     func(context.Context, job.Position, job.ID) ([]byte, error) // a job's body
	current  func(context.Context) error                                 // see commander.current
	running  func(context.Context, *job.View)
}

// locate is find for a job that may have been accepted a moment ago.
func (v *viewer) locate(ctx context.Context, text, queue string) (job.ID, error) {
	id, err := v.find(text, queue)
	if err == nil && v.known(id) || err != nil && !errors.Is(err, job.ErrJobNotFound) {
		return id, err
	}
	if err := v.catchUp(ctx); err != nil {
		return id, err
	}
	if id, err = v.find(text, queue); err == nil && !v.known(id) {
		err = fmt.Errorf("%s: %w", id, job.ErrJobNotFound)
	}
	return id, err
}

func (v *viewer) known(id job.ID) (known bool) {
	v.raft.View(func(l *ledger.Ledger) { _, known = l.Known(id) })
	return known
}

// catchUp waits until the local ledger knows every job that had been accepted
// when it was called; whoever does not find a job asks it before he says that
// there is none. A [*job.UnavailableError] means that nobody can tell yet: a
// lane whose leader does not answer may hold a job that is not folded.
func (v *viewer) catchUp(ctx context.Context) error {
	if err := v.current(ctx); err != nil {
		return err
	}
	lanes := v.messages.Lanes()
	failed := make([]error, lanes)
	var asking sync.WaitGroup
	for lane := range lanes {
		asking.Go(func() { failed[lane] = v.catchUpWith(ctx, uint8(lane)) })
	}
	asking.Wait()
	for lane, err := range failed {
		if err != nil {
			return &job.UnavailableError{
				Reason: fmt.Sprintf("lane %d may hold jobs that are not folded yet: %s", lane, plainly(err)), RetryAfter: time.Second,
			}
		}
	}
	return nil
}

func (v *viewer) catchUpWith(ctx context.Context, lane uint8) error {
	asking, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	last, err := v.messages.Last(asking, lane)
	if err != nil {
		return err
	}
	return waitFor(ctx, v.raft, func() (ok bool) {
		v.raft.View(func(l *ledger.Ledger) { ok = l.Folded(job.Position{Lane: lane, Seq: last}) })
		return ok
	})
}

// find gives the id that a text names: a UUID, "<queue>:<UUID>",
// "<queue>:<key>", or a bare key, of the given queue or else of the first
// queue that has such a job.
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
			if in, _ := l.Known(id); in == q.Name {
				found, err = id, nil
				return
			}
		}
	})
	return found, err
}

// resultAt is where a job's result lies.
type resultAt struct {
	number, seq uint64 // 0: there is none; of its message, if that is known
	item        *ledger.ResultItem
}

// look gives what the ledger knows of a job: neither its body nor its result.
func (v *viewer) look(_ context.Context, id job.ID) (job.View, error) {
	view, _, err := v.facts(id)
	return view, err
}

func (v *viewer) facts(id job.ID) (view job.View, at resultAt, err error) {
	ok := false
	v.raft.View(func(l *ledger.Ledger) {
		if view, at.number, ok = l.Find(id); ok && at.number > 0 {
			at.item, at.seq = l.FindResult(at.number)
		}
	})
	if !ok {
		return view, at, fmt.Errorf("%s: %w", id, job.ErrJobNotFound)
	}
	if view.State != job.Failed {
		view.Fault = nil // an error that did not end the job is only its reason
	}
	return view, at, nil
}

// show gives all there is of a job.
func (v *viewer) show(ctx context.Context, id job.ID) (job.View, error) {
	view, at, err := v.facts(id)
	if err != nil {
		return view, err
	}
	if err := v.addBody(ctx, &view); err != nil {
		return view, err
	}
	v.running(ctx, &view)
	return view, v.addResult(ctx, &view, at)
}

// end gives how a job has ended, without its body.
func (v *viewer) end(ctx context.Context, id job.ID) (job.View, error) {
	view, at, err := v.facts(id)
	if err != nil {
		return view, err
	}
	return view, v.addResult(ctx, &view, at)
}

// addBody reads the job's body. One that has been reclaimed is no error, nor that
// its lane is gone, which readiness tells; one
// that is not a job, of a rejected record, is shown as none.
func (v *viewer) addBody(ctx context.Context, view *job.View) error {
	body, err := v.load(ctx, view.Position, view.ID)
	switch {
	case errors.Is(err, cluster.ErrNotStored), errors.Is(err, cluster.ErrStreamMissing), errors.Is(err, cluster.ErrForeign):
		view.PayloadGone = true
		return nil
	case err != nil:
		return unread("body", view.ID, err)
	}
	if spec, err := job.ParseSpec(body); err == nil {
		view.Spec = &spec
	}
	return nil
}

// unread tells why a part of a job cannot be shown. A stream without a leader
// gets one within seconds, and one that was too slow to read may be faster next
// time: those are reasons to ask again.
func unread(what string, id job.ID, err error) error {
	err = fmt.Errorf("%s of job %s: %w", what, id, err)
	if errors.Is(err, cluster.ErrNoLeader) || errors.Is(err, context.DeadlineExceeded) {
		return &job.UnavailableError{Reason: err.Error(), RetryAfter: time.Second}
	}
	return err
}

// addResult adds what the job gave, unless its producer wants it shown no more.
// It stays in its stream until the stream lets it go: a message there holds the
// results of many jobs.
func (v *viewer) addResult(ctx context.Context, view *job.View, at resultAt) error {
	if ttl := view.ResultTTL; ttl > 0 && at.number > 0 && !time.Now().Before(view.Ended.Add(ttl)) {
		view.ResultGone = true
		return nil
	}
	switch {
	case at.item != nil:
		return v.addValue(ctx, view, at.item.Value, at.item.Blob)
	case at.number > 0:
		return v.readResult(ctx, view, at.number, at.seq)
	}
	return nil
}

func (v *viewer) addValue(ctx context.Context, view *job.View, value job.Value, blob *job.Blob) error {
	view.Result = value
	if blob == nil {
		return nil
	}
	raw, err := v.messages.LoadBlob(ctx, *blob)
	if err != nil {
		return unread("result", view.ID, err)
	}
	view.Result.Data = raw
	return nil
}

// readResult finds the job's line in a message of results. After a failover
// the ledger may know only a message before it, or none: then the stream is
// searched.
// That a result has grown too old is no error.
func (v *viewer) readResult(ctx context.Context, view *job.View, number, seq uint64) error {
	var t cluster.Tale
	var err error
	if seq > 0 {
		t, err = v.messages.ReadTale(ctx, cluster.StreamResults, seq)
	}
	if err == nil && (number < t.First || number > t.Last()) {
		t, err = v.messages.FindTale(ctx, cluster.StreamResults, number)
	}
	if errors.Is(err, cluster.ErrNotStored) {
		view.ResultGone = true
		return nil
	}
	if err != nil {
		return unread("result", view.ID, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(t.Body))
	lines.Buffer(nil, len(t.Body)+1)
	for lines.Scan() {
		var line scheduler.ResultLine
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Number == number {
			return v.addValue(ctx, view, line.Value(), line.Blob)
		}
	}
	return nil
}

// page gives a page, from 1, of a queue's jobs in a state, oldest first and
// without their bodies, from a copy that holds nobody up.
func (v *viewer) page(ctx context.Context, queue string, state job.State, page, size int) ([]job.View, error) {
	c := v.raft.Copy()
	if _, ok := c.Queue(queue); !ok {
		if err := v.current(ctx); err != nil {
			return nil, err
		}
		c = v.raft.Copy()
	}
	if _, ok := c.Queue(queue); !ok {
		return nil, fmt.Errorf("queue %q: %w", queue, job.ErrQueueNotFound)
	}
	return c.List(queue, state, (page-1)*size, size), nil
}

// list is page with the bodies.
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

// maxPageBytes bounds the bodies of one page, which all are in memory at once:
// as many as an Overhop frame holds.
const maxPageBytes = 8 << 20

// jobJSON is a job as people and programs see it.
type jobJSON struct {
	ID            job.ID            `json:"id"`
	JID           string            `json:"jid"`
	Queue         string            `json:"queue"`
	State         string            `json:"state"`
	Function      string            `json:"function,omitempty"`
	Params        json.RawMessage   `json:"params,omitempty"`
	Payload       []byte            `json:"payload_msgpack,omitempty"`
	PayloadGone   bool              `json:"payload_gone,omitempty"`
	PayloadBytes  int               `json:"payload_bytes,omitempty"` // of one that is too large to show
	Created       time.Time         `json:"created_at"`
	RunAt         time.Time         `json:"run_at"`
	Started       *time.Time        `json:"started_at,omitempty"`
	Ended         *time.Time        `json:"ended_at,omitempty"`
	Priority      uint8             `json:"priority"`
	Attempts      uint32            `json:"attempts"`
	MaxAttempts   uint32            `json:"max_attempts,omitempty"`
	Dispatches    uint32            `json:"dispatches"`
	Losses        uint32            `json:"losses,omitempty"`
	TimeoutMS     int64             `json:"timeout_ms,omitempty"`
	RetryInterval int64             `json:"retry_interval_ms,omitempty"`
	Node          string            `json:"node,omitempty"`
	Worker        string            `json:"worker,omitempty"`
	Reason        string            `json:"reason,omitempty"`          // why it failed, or its last attempt did
	Because       string            `json:"waiting_because,omitempty"` // of 'job show' alone: why it does not run
	Error         *job.Fault        `json:"error,omitempty"`
	Result        json.RawMessage   `json:"result,omitempty"`
	ResultMsgpack []byte            `json:"result_msgpack,omitempty"`
	ResultBytes   int               `json:"result_bytes,omitempty"` // of one that is too large to show
	ResultGone    bool              `json:"result_gone,omitempty"`
	ResultTTL     int64             `json:"result_ttl_ms,omitempty"`
	Trace         map[string]string `json:"trace_context,omitempty"`
	Lease         *time.Time        `json:"lease_until,omitempty"` // of an Overhop worker that runs it now
	Progress      *progressJSON     `json:"progress,omitempty"`    // its last word
	Lane          uint8             `json:"lane"`
	Seq           uint64            `json:"seq"`
}

// progressJSON is what a worker said of a job it runs.
type progressJSON struct {
	Percent     *int64          `json:"percent,omitempty"`
	Data        json.RawMessage `json:"data,omitempty"`
	DataMsgpack []byte          `json:"data_msgpack,omitempty"`
}

func progressToJSON(r *job.Running) *progressJSON {
	switch {
	case r.Percent == nil && len(r.Data.Data) == 0:
		return nil
	case r.Data.Msgpack:
		return &progressJSON{Percent: r.Percent, DataMsgpack: r.Data.Data}
	}
	return &progressJSON{Percent: r.Percent, Data: r.Data.Data}
}

func jobToJSON(v *job.View) jobJSON {
	j := jobJSON{
		ID: v.ID, JID: v.Queue + ":" + v.ID.String(), Queue: v.Queue, State: v.State.String(),
		Function: v.Function, PayloadGone: v.PayloadGone, Created: v.Created, RunAt: v.RunAt,
		Started: given(v.Started), Ended: given(v.Ended), Priority: v.Priority, Attempts: v.Attempts,
		MaxAttempts: v.MaxAttempts, Dispatches: v.Dispatches, Losses: v.Losses,
		TimeoutMS: v.Timeout.Milliseconds(), RetryInterval: v.RetryInterval.Milliseconds(),
		Node: v.Node, Worker: v.Worker,
		ResultGone: v.ResultGone, ResultTTL: v.ResultTTL.Milliseconds(),
		Lane: v.Position.Lane, Seq: v.Position.Seq,
	}
	if v.State != job.Active && v.State != job.Completed { // what failed before explains neither
		j.Reason, j.Error = v.Reason, v.Fault
	}
	if v.Spec != nil {
		j.Trace = v.Spec.Trace
		if j.PayloadBytes = len(v.Spec.Params) + len(v.Spec.Payload); j.PayloadBytes <= maxShown {
			j.Params, j.Payload, j.PayloadBytes = v.Spec.Params, v.Spec.Payload, 0
		}
	}
	switch {
	case len(v.Result.Data) > maxShown:
		j.ResultBytes = len(v.Result.Data)
	case v.Result.Msgpack:
		j.ResultMsgpack = v.Result.Data
	default:
		j.Result = v.Result.Data
	}
	if r := v.Running; r != nil {
		j.Lease, j.Progress = given(r.Lease), progressToJSON(r)
	}
	return j
}

// maxShown is the largest body and the largest result that an answer over NATS
// shows, in bytes: both, one of them in base64, fit a message. Larger ones are
// shown over Overhop.
const maxShown = 600 << 10

func given(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
