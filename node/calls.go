package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"yardmaster/cluster"
	"yardmaster/job"
)

// readJob reads a request's job into ask, and what stands beside it into whole,
// of which ask is a part. body is the request as it came if it can be the
// record as it is, else nil.
func readJob(r *cluster.Request, ask *enqueueRequest, whole any) (body []byte, err error) {
	if spec, ok := job.ScanSpec(r.Data); ok && utf8.Valid(r.Data) {
		ask.Spec, body = spec, r.Data
	} else if err := readSpec(r.Data, ask, whole); err != nil {
		return nil, err
	}
	added, err := ask.Take(r.Producer())
	if added {
		body = nil
	}
	ask.ID = cmp.Or(ask.ID, r.Header(cluster.HeaderMsgID))
	return body, err
}

// readSpec reads text into whole, of which ask is the job.
func readSpec(text []byte, ask *enqueueRequest, whole any) error {
	if err := job.ReadAsked("job", text, whole); err != nil {
		return err
	}
	if string(ask.Params) == "null" { // absent, as in every other key
		ask.Params = nil
	}
	return nil
}

// enqueue hands a job to the door and calls then once. The job that holds its
// unique key is an answer like any other; the place is zero if the ledger knows
// the job already.
func (n *Node) enqueue(queue string, ask *enqueueRequest, body []byte, t terms, then func(enqueueReply, job.Position, error)) {
	n.door.enqueue(queue, ask.Spec, body, ask.ID, t, func(a accepted, err error) {
		reply := enqueueReply{a.id, queue, a.duplicate, a.debounced}
		var other *job.DuplicateError
		if errors.As(err, &other) {
			reply, a.position, err = enqueueReply{ID: other.ID, Queue: other.Queue, Duplicate: true}, job.Position{}, nil
		}
		then(reply, a.position, err)
	})
}

// callRequest is a job and how long its outcome is waited for.
type callRequest struct {
	enqueueRequest
	WaitMS *int64 `json:"wait_ms"` // 1 to 10 min; nil: the header Yard-Wait, else 30 s
}

// callReply is how a job ended.
type callReply struct {
	enqueueReply
	State         string          `json:"state"` // completed or failed
	Attempts      uint32          `json:"attempts"`
	Result        json.RawMessage `json:"result,omitempty"`
	ResultMsgpack []byte          `json:"result_msgpack,omitempty"`
	ResultBytes   int             `json:"result_bytes,omitempty"` // of one that is too large to show
	ResultGone    bool            `json:"result_gone,omitempty"`
	Error         *job.Fault      `json:"error,omitempty"`
}

// handleCall accepts a job and tells how it ended. The same call under the same
// key asks for the same job, so that it can be repeated whatever happened to
// the first, at any node.
func (n *Node) handleCall(ctx context.Context, r *cluster.Request) (any, error) {
	var ask callRequest
	body, err := readJob(r, &ask.enqueueRequest, &ask)
	if err != nil {
		return nil, err
	}
	wait, err := ask.wait(r.Header(cluster.HeaderWait))
	if err != nil {
		return nil, err
	}
	reply, err := n.enqueueAndAwait(ctx, r, ask.enqueueRequest, body, wait)
	if err != nil {
		return nil, err
	}
	view, err := n.viewer.end(ctx, reply.ID)
	if err != nil {
		return nil, notEnded(err, reply.ID, wait)
	}
	full := jobToJSON(&view)
	return callReply{
		enqueueReply: reply, State: full.State, Attempts: full.Attempts, Result: full.Result,
		ResultMsgpack: full.ResultMsgpack, ResultBytes: full.ResultBytes, ResultGone: full.ResultGone, Error: full.Error,
	}, nil
}

// enqueueAndAwait accepts a job and waits so long for its end. Once it is
// accepted every error names it.
func (n *Node) enqueueAndAwait(ctx context.Context, r *cluster.Request, ask enqueueRequest, body []byte, wait time.Duration) (enqueueReply, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	type taken struct {
		reply enqueueReply
		at    job.Position
		err   error
	}
	answered := make(chan taken, 1)
	n.enqueue(r.Token(), &ask, body, terms{}, func(reply enqueueReply, at job.Position, err error) {
		answered <- taken{reply, at, err}
	})
	made := <-answered // which comes whatever happens: publishes have a patience of their own
	if made.err != nil {
		return made.reply, made.err
	}
	r.Forget()
	err := n.ends.await(ctx, made.reply.ID, made.at)
	if errors.Is(err, job.ErrJobNotFound) && made.reply.Duplicate {
		err = &cluster.APIError{Code: "410", Text: fmt.Sprintf("job %s was accepted before and has ended; the yard has forgotten how", made.reply.ID)}
	}
	if err != nil {
		return made.reply, notEnded(err, made.reply.ID, wait)
	}
	return made.reply, nil
}

func (c *callRequest) wait(header string) (time.Duration, error) {
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

// notEnded answers who waited for a job and does not learn its end. Its id comes
// with the answer, so that whoever minted none can ask further.
func notEnded(err error, id job.ID, waited time.Duration) error {
	known, _ := json.Marshal(struct { // which cannot fail
		ID job.ID `json:"id"`
	}{id})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &cluster.APIError{Code: "408", Text: fmt.Sprintf("job %s has not ended within %s", id, waited), Data: known}
	case errors.Is(err, context.Canceled):
		text := fmt.Sprintf("job %s is accepted and has not ended, and this node is stopping: wait for it at another", id)
		return &cluster.APIError{Code: "503", Text: text, RetryAfter: 100 * time.Millisecond, Data: known}
	}
	refusal := *cluster.RefusalOf(err)
	refusal.Data = known
	return &refusal
}
