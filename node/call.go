package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
)

// readJob decodes a request into dst, of which req is the part that holds the job.
// body is the request's text if it can be stored as the record without changes,
// else nil.
func readJob(r *cluster.Request, req *enqueueRequest, dst any) (body []byte, err error) {
	if spec, ok := job.ScanSpec(r.Data); ok && utf8.Valid(r.Data) {
		req.Spec, body = spec, r.Data
	} else if err := readSpec(r.Data, req, dst); err != nil {
		return nil, err
	}
	added, err := req.ApplyHeaders(r.ProducerHeaders())
	if added {
		body = nil
	}
	req.ID = cmp.Or(req.ID, r.Header(cluster.HeaderMsgID))
	return body, err
}

// readSpec decodes text into dst, of which req is the part that holds the job.
func readSpec(text []byte, req *enqueueRequest, dst any) error {
	if err := job.UnmarshalStrict("job", text, dst); err != nil {
		return err
	}
	if string(req.Params) == "null" { // means absent, as for every other key
		req.Params = nil
	}
	return nil
}

// enqueue passes a job to the intake and calls then exactly once. A job whose unique
// key another job holds is answered with the ID of the holder; its position is zero
// if the ledger knows that job already.
func (n *Node) enqueue(queue string, req *enqueueRequest, body []byte, opts enqueueOptions, then func(enqueueReply, job.Position, error)) {
	n.intake.enqueue(queue, req.Spec, body, req.ID, opts, func(a accepted, err error) {
		reply := enqueueReply{a.id, queue, a.duplicate, a.debounced}
		var other *job.DuplicateError
		if errors.As(err, &other) {
			reply, a.position, err = enqueueReply{ID: other.ID, Queue: other.Queue, Duplicate: true}, job.Position{}, nil
		}
		then(reply, a.position, err)
	})
}

// callRequest is a job, and how long to wait for its outcome.
type callRequest struct {
	enqueueRequest
	WaitMS *int64 `json:"wait_ms"` // 1 to 10 min; nil: the header Yard-Wait, else 30 s
}

// callReply reports how a job ended.
type callReply struct {
	enqueueReply
	State         string          `json:"state"` // completed or failed
	Attempts      uint32          `json:"attempts"`
	Result        json.RawMessage `json:"result,omitempty"`
	ResultMsgpack []byte          `json:"result_msgpack,omitempty"`
	ResultBytes   int             `json:"result_bytes,omitempty"` // size of a result that is too large to return
	ResultGone    bool            `json:"result_gone,omitempty"`  // the result has been removed from its stream
	Error         *job.Fault      `json:"error,omitempty"`
}

// handleCall accepts a job, waits for it and returns how it ended. A call may be
// repeated under the same key at any node, whatever happened to the first: it refers
// to the same job.
func (n *Node) handleCall(ctx context.Context, r *cluster.Request) (any, error) {
	var req callRequest
	body, err := readJob(r, &req.enqueueRequest, &req)
	if err != nil {
		return nil, err
	}
	wait, err := req.waitTime(r.Header(cluster.HeaderWait))
	if err != nil {
		return nil, err
	}
	reply, err := n.enqueueAndAwait(ctx, r, req.enqueueRequest, body, wait)
	if err != nil {
		return nil, err
	}
	view, err := n.viewer.finished(ctx, reply.ID)
	if err != nil {
		return nil, waitError(err, reply.ID, wait)
	}
	full := jobToJSON(&view)
	return callReply{
		enqueueReply: reply, State: full.State, Attempts: full.Attempts, Result: full.Result,
		ResultMsgpack: full.ResultMsgpack, ResultBytes: full.ResultBytes, ResultGone: full.ResultGone, Error: full.Error,
	}, nil
}

// enqueueAndAwait accepts a job and waits up to wait for it to end. Once the job is
// accepted, every error carries its ID.
func (n *Node) enqueueAndAwait(ctx context.Context, r *cluster.Request, req enqueueRequest, body []byte, wait time.Duration) (enqueueReply, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	type enqueued struct {
		reply enqueueReply
		at    job.Position
		err   error
	}
	done := make(chan enqueued, 1)
	n.enqueue(r.Token(), &req, body, enqueueOptions{}, func(reply enqueueReply, at job.Position, err error) {
		done <- enqueued{reply, at, err}
	})
	result := <-done // always arrives: publishing has its own timeout
	if result.err != nil {
		return result.reply, result.err
	}
	r.Release()
	err := n.completions.await(ctx, result.reply.ID, result.at)
	if errors.Is(err, job.ErrJobNotFound) && result.reply.Duplicate {
		err = &cluster.APIError{Code: "410", Text: fmt.Sprintf("job %s was accepted before and has ended; the yard no longer knows how", result.reply.ID)}
	}
	if err != nil {
		return result.reply, waitError(err, result.reply.ID, wait)
	}
	return result.reply, nil
}

func (c *callRequest) waitTime(header string) (time.Duration, error) {
	d := defaultWait
	switch {
	case c.WaitMS != nil:
		d = time.Duration(*c.WaitMS) * time.Millisecond
		if *c.WaitMS < 1 || *c.WaitMS > maxWait.Milliseconds() {
			return 0, &job.InvalidError{Reason: fmt.Sprintf("wait_ms is %d; must be 1 to %d", *c.WaitMS, maxWait.Milliseconds())}
		}
	case header != "":
		var err error
		if d, err = time.ParseDuration(header); err != nil || d < time.Millisecond || d > maxWait {
			return 0, &job.InvalidError{Reason: fmt.Sprintf("header %s is %q: must be a time like 30s, of 1ms to %s", cluster.HeaderWait, header, maxWait)}
		}
	}
	return d, nil
}

// waitError returns the answer to a request whose wait for a job failed. It carries
// the job's ID, so that a client that did not choose one can ask again.
func waitError(err error, id job.ID, waited time.Duration) error {
	data, _ := json.Marshal(struct { // cannot fail
		ID job.ID `json:"id"`
	}{id})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &cluster.APIError{Code: "408", Text: fmt.Sprintf("job %s has not ended within %s", id, waited), Data: data}
	case errors.Is(err, context.Canceled):
		text := fmt.Sprintf("job %s is accepted and has not ended, and this node is stopping: wait for it at another node", id)
		return &cluster.APIError{Code: "503", Text: text, RetryAfter: 100 * time.Millisecond, Data: data}
	}
	apiErr := *cluster.AsAPIError(err)
	apiErr.Data = data
	return &apiErr
}
