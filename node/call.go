package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/server/intake"
)

// readJob decodes a request into dst, of which req is the part that holds the job.
// body is the request's text if it can be stored as the record without changes,
// else nil.
func readJob(r *cluster.Request, req *api.EnqueueRequest, dst any) (body []byte, err error) {
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
func readSpec(text []byte, req *api.EnqueueRequest, dst any) error {
	if err := job.UnmarshalStrict("job", text, dst); err != nil {
		return err
	}
	if string(req.Params) == "null" { // means absent, as for every other key
		req.Params = nil
	}
	return nil
}

// enqueueReply returns the reply to the request for a job of a queue. A job whose unique
// key another job holds is answered with the ID of the holder.
func enqueueReply(queue string, a intake.Ack, err error) (api.EnqueueReply, error) {
	var other *job.DuplicateError
	if errors.As(err, &other) {
		return api.EnqueueReply{ID: other.ID, Queue: other.Queue, Duplicate: true}, nil
	}
	return api.EnqueueReply{ID: a.ID, Queue: queue, Duplicate: a.Duplicate, Debounced: a.Debounced}, err
}

// handleCall accepts a job, waits for it and returns how it ended. A call may be
// repeated under the same key at any node, whatever happened to the first: it refers
// to the same job.
func (n *Node) handleCall(ctx context.Context, r *cluster.Request) (any, error) {
	var req api.CallRequest
	body, err := readJob(r, &req.EnqueueRequest, &req)
	if err != nil {
		return nil, err
	}
	wait, err := callTimeout(&req, r.Header(cluster.HeaderWait))
	if err != nil {
		return nil, err
	}
	reply, err := n.enqueueAndAwait(ctx, r, req.EnqueueRequest, body, wait)
	if err != nil {
		return nil, err
	}
	view, err := n.viewer.Finished(ctx, reply.ID)
	if err != nil {
		return nil, waitError(err, reply.ID, wait)
	}
	full := api.JobOf(&view)
	return api.CallReply{
		EnqueueReply: reply, State: full.State, Attempts: full.Attempts, Result: full.Result,
		ResultMsgpack: full.ResultMsgpack, ResultBytes: full.ResultBytes, ResultGone: full.ResultGone, Error: full.Error,
	}, nil
}

// enqueueAndAwait accepts a job and waits up to wait for it to end. Once the job is
// accepted, every error carries its ID.
func (n *Node) enqueueAndAwait(ctx context.Context, r *cluster.Request, req api.EnqueueRequest, body []byte, wait time.Duration) (api.EnqueueReply, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	// Publishing has its own timeout. It must not be cut short, or the reply would not
	// carry the job's ID.
	ack, err := n.intake.Publish(context.WithoutCancel(ctx), intake.Job{Queue: r.Token(), Spec: req.Spec, Body: body, Key: req.ID})
	reply, err := enqueueReply(r.Token(), ack, err)
	if err != nil {
		return reply, err
	}
	r.Release()
	err = n.waiters.JobEnd(ctx, reply.ID, ack.Position) // the position is zero if the ledger knows the job already
	if errors.Is(err, job.ErrJobNotFound) && reply.Duplicate {
		err = &api.Error{Code: api.CodeGone, Text: fmt.Sprintf("job %s was accepted before and has ended; the yard no longer knows how", reply.ID)}
	}
	if err != nil {
		return reply, waitError(err, reply.ID, wait)
	}
	return reply, nil
}

// callTimeout returns how long a call waits. header is the value of its header Yard-Wait.
func callTimeout(c *api.CallRequest, header string) (time.Duration, error) {
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
		return &api.Error{Code: api.CodeTimeout, Text: fmt.Sprintf("job %s has not ended within %s", id, waited), Data: data}
	case errors.Is(err, context.Canceled):
		text := fmt.Sprintf("job %s is accepted and has not ended, and this node is stopping: wait for it at another node", id)
		return &api.Error{Code: api.CodeUnavailable, Text: text, RetryAfter: 100 * time.Millisecond, Data: data}
	}
	apiErr := *cluster.AsAPIError(err)
	apiErr.Data = data
	return &apiErr
}
