package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/server/intake"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
)

// Enqueue answers requests that create jobs. All fields are required.
type Enqueue struct {
	Intake  *intake.Intake
	Viewer  *jobview.Viewer
	Waiters *ledgerwait.Waiters
	Log     *slog.Logger
}

// Handlers returns the handlers by the name of the endpoint, but for the endpoint
// enqueue, whose handler is [Enqueue.HandleAsync].
func (h *Enqueue) Handlers() map[string]Handler {
	return map[string]Handler{"call": Raw(h.call), "job-bulk": JSON(h.bulk)}
}

// HandleAsync accepts a job for the queue that the request's subject names. It returns
// before the job is accepted; the reply, with the job's id or an error, is sent later. The
// job's key is the field id of the request or else the header Nats-Msg-Id.
func (h *Enqueue) HandleAsync(r *cluster.Request) {
	queue := r.Token()
	req, body, err := readRequest(r, r.Data)
	if err != nil {
		h.respondError(r, err)
		return
	}
	h.Intake.PublishAsync(intake.Job{Queue: queue, Spec: req.Spec, Body: body, Key: req.ID, Quota: quotaOf(r)}, func(a intake.Ack, err error) {
		reply, err := enqueueReply(r, queue, a, err)
		if err != nil {
			h.respondError(r, err)
			return
		}
		h.logUnsent(r.Respond(encodeReply(&reply)))
	})
}

// encodeReply returns the JSON of a reply, exactly as [json.Marshal] does.
func encodeReply(reply *api.EnqueueReply) []byte {
	b := append(make([]byte, 0, 128), `{"id":"`...)
	b = append(reply.ID.Append(b), `","queue":`...)
	b = append(job.AppendText(b, reply.Queue), `,"duplicate":`...)
	b = strconv.AppendBool(b, reply.Duplicate)
	if reply.Debounced {
		b = append(b, `,"debounced":true`...)
	}
	return append(b, '}')
}

func (h *Enqueue) respondError(r *cluster.Request, err error) { h.logUnsent(r.RespondError(err)) }

// logUnsent logs a reply that could not be sent. The client will ask again.
func (h *Enqueue) logUnsent(err error) {
	if err != nil {
		h.Log.Debug("reply not sent", "err", err)
	}
}

// readRequest decodes text, the body of r, and applies the headers of r. body is as of
// [readJob].
func readRequest(r *cluster.Request, text []byte) (req api.EnqueueRequest, body []byte, err error) {
	if spec, ok := scanJob(text); ok { // without a request that is allocated
		req.Spec = spec
		body, err = applyHeaders(r, text, &req)
		return req, body, err
	}
	var decoded api.EnqueueRequest
	body, err = readJob(r, text, &decoded, &decoded)
	return decoded, body, err
}

// readJob decodes text, the body of r, into dst: a pointer to a request of which req is
// the part that holds the job, or req itself. It also applies the headers of r. body is
// text if it can be stored as the job's record without changes, else nil.
func readJob(r *cluster.Request, text []byte, req *api.EnqueueRequest, dst any) (body []byte, err error) {
	if spec, ok := scanJob(text); ok {
		req.Spec, body = spec, text
	} else if err := readSpec(text, req, dst); err != nil {
		return nil, err
	}
	return applyHeaders(r, body, req)
}

// scanJob decodes a body of the usual form, faster than [readSpec].
func scanJob(text []byte) (job.Spec, bool) {
	spec, ok := job.ScanSpec(text)
	return spec, ok && utf8.Valid(text)
}

// applyHeaders applies the headers of r to req. It returns body, the JSON of the job, or
// nil if that is no longer complete.
func applyHeaders(r *cluster.Request, body []byte, req *api.EnqueueRequest) ([]byte, error) {
	added, err := req.ApplyHeaders(r.ProducerHeaders())
	if added {
		body = nil
	}
	req.ID = cmp.Or(req.ID, r.Header(subjects.HeaderMsgID))
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

// enqueueReply returns the reply to r, the request for a job of a queue. A job whose unique
// key another job holds is answered with the ID of the holder. Neither the reply nor the error
// names a queue that the sender of r may not use.
func enqueueReply(r *cluster.Request, queue string, a intake.Ack, err error) (api.EnqueueReply, error) {
	if other, ok := errors.AsType[*job.DuplicateError](err); ok {
		reply := api.EnqueueReply{ID: other.ID, Queue: other.Queue, Duplicate: true}
		if within := queuesOf(r); within != nil && !slices.Contains(within, other.Queue) {
			reply.Queue = ""
		}
		return reply, nil
	}
	refused, ok := errors.AsType[*api.Error](err)
	if ok && refused.Reason() == api.ReasonIDConflict && queuesOf(r) != nil {
		err = &api.Error{Code: refused.Code, Data: refused.Data, Text: "id_conflict: the id is that of another queue's job"}
	}
	return api.EnqueueReply{ID: a.ID, Queue: queue, Duplicate: a.Duplicate, Debounced: a.Debounced}, err
}

// queuesOf returns the only queues that the sender of r may use, nil if it may use all.
func queuesOf(r *cluster.Request) []string {
	if r.Sender == nil {
		return nil
	}
	return r.Sender().Queues
}

// quotaOf returns a function that returns the Quota of the sender of r, nil if its new queues
// are not counted.
func quotaOf(r *cluster.Request) func() string {
	if r.Sender == nil {
		return nil
	}
	return func() string { return r.Sender().Quota }
}

// call accepts a job, waits for it and returns how it ended. A call may be
// repeated under the same key at any node, whatever happened to the first: it refers
// to the same job.
func (h *Enqueue) call(ctx context.Context, text []byte) ([]byte, error) {
	var req api.CallRequest
	body, err := readJob(call(ctx), text, &req.EnqueueRequest, &req)
	if err != nil {
		return nil, err
	}
	wait, err := callTimeout(&req, Header(ctx, subjects.HeaderWait))
	if err != nil {
		return nil, err
	}
	reply, err := h.enqueueAndWait(ctx, req.EnqueueRequest, body, wait)
	if err != nil {
		return nil, err
	}
	view, err := h.Viewer.Finished(ctx, reply.ID, api.MaxShownBytes)
	if err != nil {
		return nil, waitError(err, reply.ID, wait)
	}
	full := api.JobOf(&view)
	return job.EncodeJSON(&api.CallReply{
		EnqueueReply: reply, State: full.State, Attempts: full.Attempts, Result: full.Result,
		ResultMsgpack: full.ResultMsgpack, ResultBytes: full.ResultBytes, ResultGone: full.ResultGone, ResultReason: full.ResultReason, Error: full.Error,
	})
}

// enqueueAndWait accepts a job and waits up to wait for it to end. Once the job is
// accepted, every error carries its ID.
func (h *Enqueue) enqueueAndWait(ctx context.Context, req api.EnqueueRequest, body []byte, wait time.Duration) (api.EnqueueReply, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	// Publishing has its own timeout. It must not be cut short, or the reply would not
	// carry the job's ID.
	ack, err := h.Intake.Publish(context.WithoutCancel(ctx), intake.Job{Queue: Token(ctx), Spec: req.Spec, Body: body, Key: req.ID, Quota: cluster.QuotaOf(ctx)})
	reply, err := enqueueReply(call(ctx), Token(ctx), ack, err)
	if err != nil {
		return reply, err
	}
	if !cluster.MayUse(ctx, reply.Queue) {
		return reply, &api.Error{Code: api.CodeForbidden, Text: "a job of a queue that this user may not use holds the same unique key: no job was made, and there is no result to wait for"}
	}
	Release(ctx)
	err = h.Waiters.JobEnd(ctx, reply.ID, ack.Position) // the position is zero if the ledger knows the job already
	if errors.Is(err, job.ErrJobNotFound) {
		_, _, ended := h.Viewer.Ended(ctx, reply.ID)
		if ended == nil { // the ledger has forgotten it since
			return reply, nil
		}
		if isUnavailable(ended) {
			err = ended
		}
	}
	if errors.Is(err, job.ErrJobNotFound) && reply.Duplicate {
		err = &api.Error{Code: api.CodeGone, Text: fmt.Sprintf("job %s was accepted before and has ended; the yard no longer knows how", reply.ID)}
	}
	if err != nil {
		return reply, waitError(err, reply.ID, wait)
	}
	return reply, nil
}

// AndWait returns a handler that enqueues a job, waits until it has ended and returns it.
// If that takes longer than timeout, which is at most MaxWait, the handler returns an error
// that contains the job's id.
func (h *Enqueue) AndWait(timeout time.Duration) Handler {
	return Raw(func(ctx context.Context, text []byte) ([]byte, error) {
		req, body, err := readRequest(call(ctx), text)
		if err != nil {
			return nil, err
		}
		reply, err := h.enqueueAndWait(ctx, req, body, timeout)
		if err != nil {
			return nil, err
		}
		view, err := h.Viewer.Full(ctx, reply.ID, api.MaxShownBytes)
		if err != nil {
			return nil, waitError(err, reply.ID, timeout)
		}
		return job.EncodeJSON(api.JobOf(&view))
	})
}

// callTimeout returns how long a call waits for its job: the time in the request, or else
// that in header, the value of its header Yard-Wait, or else defaultWait. header is "" if
// it is missing.
func callTimeout(c *api.CallRequest, header string) (time.Duration, error) {
	if c.WaitMS != nil {
		if *c.WaitMS < 1 || *c.WaitMS > MaxWait.Milliseconds() {
			return 0, &job.InvalidError{Reason: fmt.Sprintf("wait_ms is %d; must be 1 to %d", *c.WaitMS, MaxWait.Milliseconds())}
		}
		return time.Duration(*c.WaitMS) * time.Millisecond, nil
	}
	if header == "" {
		return defaultWait, nil
	}
	wait, err := duration.Parse(header)
	if err != nil || wait < time.Millisecond || wait > MaxWait {
		return 0, &job.InvalidError{Reason: fmt.Sprintf("header %s is %q: must be a time like 30s, of 1ms to %s", subjects.HeaderWait, header, duration.Format(MaxWait))}
	}
	return wait, nil
}

// waitError returns the answer to a request whose wait for a job failed. It carries
// the job's ID, so that a client that did not choose one can ask again.
func waitError(err error, id job.ID, waited time.Duration) error {
	data, _ := json.Marshal(struct { // cannot fail
		ID job.ID `json:"id"`
	}{id})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &api.Error{Code: api.CodeTimeout, Text: fmt.Sprintf("job %s has not ended within %s", id, duration.Format(waited)), Data: data}
	case errors.Is(err, context.Canceled):
		text := fmt.Sprintf("job %s is accepted and has not ended, and this node is stopping: wait for it at another node", id)
		return &api.Error{Code: api.CodeUnavailable, Text: text, RetryAfter: 100 * time.Millisecond, Data: data}
	}
	apiErr := *cluster.AsAPIError(err)
	apiErr.Data = data
	return &apiErr
}
