package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
)

// The parameters of requests over NATS.
const (
	natsAttempt = 5 * time.Second        // for one answer; then the request is repeated
	natsPause   = 100 * time.Millisecond // before a request is repeated, unless the cluster asks for another time
	natsWait    = 20 * time.Second       // of one request that waits for the end of a job
)

// natsTransport reaches the cluster over a connection of the caller.
type natsTransport struct {
	nc     *nats.Conn
	nodes  []string // worker ports, if the caller gave any
	closed context.Context
	close  context.CancelFunc
}

// openNATS returns a client over opts.NATS. It waits until a node answers or ctx ends.
func openNATS(ctx context.Context, opts Options) (*Client, error) {
	t := &natsTransport{nc: opts.NATS, nodes: opts.Nodes}
	t.closed, t.close = context.WithCancel(context.Background())
	if _, err := t.operate(ctx, "status", nil); err != nil {
		return nil, fmt.Errorf("reach a node over NATS: %w", refusalOf(err))
	}
	return &Client{opts: opts, transport: t}, nil
}

// Close ends calls in progress. The connection belongs to the caller and stays open.
func (t *natsTransport) Close() error {
	t.close()
	return nil
}

// enqueue sends the job as one request under one key.
func (t *natsTransport) enqueue(ctx context.Context, s *Spec) (id string, err error) {
	request, err := s.apiRequest()
	if err != nil {
		return "", err
	}
	if request.ID == "" {
		request.ID = "auto-" + rand.Text()
	}
	body, err := json.Marshal(request)
	if err != nil {
		return "", invalidJob("%w", err)
	}
	answer, err := t.request(ctx, api.Subject("enqueue", s.Queue), body, natsAttempt)
	if err != nil {
		return "", err
	}
	var accepted api.EnqueueReply
	if err := json.Unmarshal(answer, &accepted); err != nil {
		return "", fmt.Errorf("the answer of the node: %w", err)
	}
	id = accepted.ID.String()
	if accepted.Queue != "" { // else it is a queue that this user may not use
		id = accepted.Queue + ":" + id
	}
	own, err := job.KeyID(s.Queue, request.ID)
	if err != nil || s.UniqueKey == "" || accepted.ID == own || accepted.Debounced {
		return id, nil
	}
	return "", &Error{ // as over a worker port
		Code: string(overhop.CodeDuplicateJob), Message: "another job holds the unique key: " + id, JobID: id, status: statuses[overhop.CodeDuplicateJob],
	}
}

// apiRequest returns the job, which is valid, as a request of the API. The error wraps
// [ErrInvalidJob].
func (s *Spec) apiRequest() (*api.EnqueueRequest, error) {
	m, err := s.message()
	if err != nil {
		return nil, err
	}
	r := &api.EnqueueRequest{ID: s.Key, Spec: job.Spec{
		Function: m.Function, Priority: m.Priority, RetryOnTimeout: m.RetryOnTimeout, Trace: m.Trace,
		MaxAttempts: unlessZero(m.MaxAttempts), TimeoutMS: unlessZero(m.Timeout), RetryInterval: unlessZero(m.RetryInterval),
		ResultTTLMS: unlessZero(m.ResultTTL),
		UniqueKey:   m.UniqueKey, UniqueTTLMS: m.UniqueTTL, UniqueUntil: m.UniqueUntil,
		RateLimitKey: m.RateLimitKey, RateLimitMS: m.RateLimit, DebounceKey: m.DebounceKey, DebounceMS: m.Debounce,
		LimitKey: m.LimitKey, Limits: m.Limits, Tags: m.Tags, Meta: m.Meta, ExpiresInMS: m.ExpiresIn,
	}}
	if !s.ExpiresAt.IsZero() {
		r.ExpiresAt = &s.ExpiresAt
	}
	if !s.RunAt.IsZero() {
		r.RunAt = &s.RunAt
	}
	r.DelayMS = m.Delay
	if len(m.Payload) == 0 && m.Function == "" {
		r.Payload = overhop.Raw{0xc0} // nil: a job that names nothing to do is refused
	} else if len(m.Payload) > 0 {
		if r.Params, err = overhop.AppendJSON(nil, m.Payload); err != nil || m.Payload.Kind() != overhop.KindMap {
			r.Params, r.Payload = nil, m.Payload // binary, or no map
		}
	}
	return r, nil
}

// wait waits until a job has ended, by requests that the cluster answers when it has.
func (t *natsTransport) wait(ctx context.Context, id string) (end overhop.JobEnd, err error) {
	request, err := json.Marshal(api.JobRequest{ID: id, TimeoutMS: natsWait.Milliseconds()})
	if err != nil {
		return end, err
	}
	for {
		answer, err := t.request(ctx, api.Subject("job-wait"), request, natsWait+natsAttempt)
		if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == api.CodeTimeout {
			continue
		}
		if err != nil {
			return end, err
		}
		return endOf(answer)
	}
}

// endOf returns how the job in the answer of a node has ended.
func endOf(answer []byte) (end overhop.JobEnd, err error) {
	var j api.Job
	if err := json.Unmarshal(answer, &j); err != nil {
		return end, fmt.Errorf("the answer of the node: %w", err)
	}
	end = overhop.JobEnd{JID: j.JID, Attempts: int64(j.Attempts), Gone: j.ResultGone, Result: slices.Clone(overhop.Raw(j.ResultMsgpack))}
	if len(j.Result) > 0 {
		if end.Result, err = overhop.FromJSON(j.Result); err != nil {
			return end, fmt.Errorf("the result: %w", err)
		}
	}
	end.Omitted = len(end.Result) == 0 && j.ResultBytes > 0 && j.ResultGone == ""
	if j.State == "completed" {
		return end, nil
	}
	end.Fault = &overhop.Fault{Message: j.Reason}
	if fault := j.Error; fault != nil {
		end.Fault = &overhop.Fault{Message: fault.Message, Type: fault.Type, Code: fault.Code}
		if len(fault.Details) > 0 {
			end.Fault.Details, err = overhop.FromJSON(fault.Details)
		}
	}
	if j.Cancellation != nil {
		end.Fault.Type, end.Fault.Reason = cmp.Or(end.Fault.Type, job.FaultCancelled), j.Cancellation.Reason
	}
	return end, err
}

// content reads a value of a job in parts, which the API sends as CONTENT does.
func (t *natsTransport) content(ctx context.Context, id, value string) (overhop.Raw, error) {
	op := map[string]string{overhop.ContentResult: "job-result", overhop.ContentPayload: "job-params"}[value]
	return overhop.ReadContent(id, value, func(content overhop.Raw) (overhop.Raw, error) {
		offset, _ := content.Get("offset").Int()
		request, err := json.Marshal(api.ContentRequest{ID: id, Offset: offset})
		if err != nil {
			return nil, err
		}
		answer, err := t.request(ctx, api.Subject(op), request, natsAttempt)
		if err != nil {
			return nil, err
		}
		var part api.Content
		if err := json.Unmarshal(answer, &part); err != nil {
			return nil, fmt.Errorf("the answer of the node: %w", err)
		}
		return overhop.Fields{"size": part.Size, "version": part.Version, "encoding": part.Encoding, "data": part.Data}.Raw(), nil
	})
}

// operate carries out an operation, such as "queue.list".
func (t *natsTransport) operate(ctx context.Context, op string, request []byte) ([]byte, error) {
	subject := api.SubjectAPI + "." + op
	if op == "status" {
		subject = api.SubjectStatus
	}
	return t.request(ctx, subject, request, natsAttempt)
}

// workerNodes returns the worker ports that the caller gave, or else those that the nodes
// announce.
func (t *natsTransport) workerNodes(ctx context.Context) (nodes []string, err error) {
	if len(t.nodes) > 0 {
		return t.nodes, nil
	}
	answer, err := t.operate(ctx, "status", nil)
	if err != nil {
		return nil, err
	}
	var status api.Status
	if err := json.Unmarshal(answer, &status); err != nil {
		return nil, fmt.Errorf("the answer of the node: %w", err)
	}
	for _, n := range status.Nodes {
		if n.Edge != "" {
			nodes = append(nodes, n.Edge)
		}
	}
	if len(nodes) == 0 {
		return nil, errors.New("no node announces its worker port; set Options.Nodes")
	}
	return nodes, nil
}

// request sends a request until a node answers, waiting at most attempt for one answer, and
// repeats it if the cluster is unavailable. The error is an [*api.Error] if a node refuses
// it.
func (t *natsTransport) request(ctx context.Context, subject string, body []byte, attempt time.Duration) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.closed, cancel)()
	var last error
	for {
		one, done := context.WithTimeout(ctx, attempt)
		answer, err := t.nc.RequestWithContext(one, subject, body)
		done()
		pause := natsPause
		switch {
		case t.closed.Err() != nil:
			return nil, overhop.ErrClosed
		case ctx.Err() != nil && last != nil:
			return nil, fmt.Errorf("%w; last answer: %w", ctx.Err(), last)
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, nats.ErrMaxPayload):
			return nil, &api.Error{Code: api.CodeTooLarge, Text: fmt.Sprintf("the request has %d bytes, and a NATS message at most %d; use the worker port", len(body), t.nc.MaxPayload())}
		case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrBadSubject):
			return nil, err
		case err != nil: // no node answers, for example while the connection is lost
			last = err
		default:
			refused := refusalIn(answer)
			if refused == nil {
				return answer.Data, nil
			}
			if refused.Code != api.CodeUnavailable && refused.Code != api.CodeUnknown {
				return nil, refused
			}
			last, pause = refused, max(refused.RetryAfter, natsPause)
		}
		backoff.Sleep(ctx, pause) // if ctx has ended, the next iteration returns
	}
}

// refusalIn returns the error in a node's answer, or nil.
func refusalIn(answer *nats.Msg) *api.Error {
	if answer.Header.Get("Nats-Service-Error-Code") == "" {
		return nil
	}
	var reply api.ErrorReply
	if err := json.Unmarshal(answer.Data, &reply); err != nil {
		return &api.Error{Code: api.CodeInternal, Text: "the error of the node cannot be read: " + err.Error()}
	}
	return &api.Error{
		Code: reply.Error.Code, Text: reply.Error.Message, Data: reply.Error.Data,
		RetryAfter: time.Duration(reply.Error.RetryAfter) * time.Millisecond,
	}
}
