package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/membership"
	"github.com/yardmaster-dev/yardmaster/server"
	"github.com/yardmaster-dev/yardmaster/server/authority"
	"github.com/yardmaster-dev/yardmaster/server/deadletters"
	"github.com/yardmaster-dev/yardmaster/server/intake"
	"github.com/yardmaster-dev/yardmaster/server/joblog"
)

// apiService returns the API that every node serves alike.
func (n *Node) apiService() cluster.Service {
	return cluster.Service{
		Name: "yard-api", Version: semver(n.version), Description: "Yardmaster: jobs, queues and the state of the yard",
		Metadata: n.serviceMetadata, Endpoints: n.bind(api.Endpoints, n.apiHandlers()),
	}
}

type handler = server.Handler

// apiHandlers returns the handlers of [api.Endpoints] by name.
func (n *Node) apiHandlers() map[string]handler {
	logs := &joblog.Reader{FindJob: n.viewer.Locate, Read: n.cluster.Reader.ReadLog}
	handlers := map[string]handler{
		"call":             jsonHandler(n.handleCall),
		"snapshot":         jsonHandler(n.handleSnapshot),
		"status":           server.JSONReply(n.reporter.Status),
		"job-show":         jsonHandler(n.handleJobShow),
		"job-explain":      server.JSON(n.diagnoser.ExplainJob),
		"job-wait":         jsonHandler(n.handleJobWait),
		"job-bulk":         jsonHandler(n.handleBulk),
		"job-logs":         server.JSON(logs.Handle),
		"job-list":         jsonHandler(n.handleJobList),
		"job-cancel":       jsonHandler(n.handleJobCancel),
		"job-retry":        jsonHandler(n.handleJobRetry),
		"job-remove":       jsonHandler(n.handleJobRemove),
		"cron-list":        jsonHandler(n.handleCronList),
		"cron-show":        jsonHandler(n.handleCronShow),
		"cron-add":         jsonHandler(n.handleCronAdd),
		"cron-remove":      jsonHandler(n.handleCronRemove),
		"cron-pause":       jsonHandler(n.handleCronPause),
		"cron-resume":      jsonHandler(n.handleCronResume),
		"cron-run":         jsonHandler(n.handleCronRun),
		"cluster-members":  server.JSON(n.member.Handler(membership.Show)),
		"cluster-add":      server.JSON(n.member.Handler(membership.Add)),
		"cluster-rm":       server.JSON(n.member.Handler(membership.Remove)),
		"cluster-replace":  server.JSON(n.member.Handler(membership.Replace)),
		"cluster-cancel":   server.JSON(n.member.Handler(membership.Cancel)),
		"cluster-transfer": server.JSON(n.transfer.HandleTransfer),
		"cluster-scrub":    jsonHandler(n.handleRetired),
		"cluster-rebuild":  jsonHandler(n.handleRetired),
		"ledger-hash":      server.JSONReply(n.hasher.Hash),
		"queue-explain":    server.JSON(n.diagnoser.ExplainQueue),
	}
	queues := &server.Queues{Authority: n.proposer, View: n.raft.View}
	contract := &server.Contract{Authority: n.proposer, IsMember: n.transfer.IsMember, Acquire: n.transfer.Acquire}
	letters := deadletters.New(deadletters.Config{
		Reader: n.cluster.Reader, Remove: n.cluster.Admin.RemoveDeadLetter, View: n.raft.View, Authority: n.proposer,
		Jobs: n.viewer, Intake: n.intake, MaxAttempts: n.cfg.Scheduler.MaxAttempts,
	})
	for _, more := range []map[string]handler{letters.Handlers(), queues.Handlers(), contract.Handlers()} {
		maps.Copy(handlers, more)
	}
	return handlers
}

// bind returns the endpoints of a table with their handlers, by name.
func (n *Node) bind(table []api.Endpoint, handlers map[string]handler) []cluster.Endpoint {
	index := func() (index uint64) {
		n.raft.View(func(l *ledger.Ledger) { index = l.Index() })
		return index
	}
	bound := server.Binding{Node: n.cfg.Node.Name, Index: index}.Bind(table, handlers)
	for i := range bound {
		if e := &bound[i]; e.Name == "enqueue" {
			e.HandleAsync = n.handleEnqueue
		}
	}
	return bound
}

// setIndex sets the index of the reply to the ledger's current one.
func (n *Node) setIndex(r *cluster.Request) {
	n.raft.View(func(l *ledger.Ledger) { r.SetIndex(l.Index()) })
}

// semver returns version in the form that the NATS service API requires.
func semver(version string) string {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "v%d.%d.%d", &major, &minor, &patch); err != nil {
		return "0.0.0"
	}
	return fmt.Sprintf("%d.%d.%d", major, minor, patch)
}

// jsonHandler returns a handler that encodes the result of handle as JSON.
func jsonHandler(handle func(context.Context, *cluster.Request) (any, error)) handler {
	return func(ctx context.Context, r *cluster.Request) ([]byte, error) {
		v, err := handle(ctx, r)
		if err != nil {
			return nil, err
		}
		return json.Marshal(v)
	}
}

// decodeRequest decodes a request's body. An empty body is an empty request.
func decodeRequest[T any](r *cluster.Request) (v T, err error) {
	if len(r.Data) == 0 {
		return v, nil
	}
	return v, job.UnmarshalStrict("request", r.Data, &v)
}

// handleEnqueue accepts a job. The key is "id", or the header Nats-Msg-Id.
func (n *Node) handleEnqueue(r *cluster.Request) {
	queue := r.Token()
	var req api.EnqueueRequest
	body, err := readJob(r, &req, &req)
	if err != nil {
		n.respondError(r, err)
		return
	}
	n.intake.PublishAsync(intake.Job{Queue: queue, Spec: req.Spec, Body: body, Key: req.ID}, func(a intake.Ack, err error) {
		reply, err := enqueueReply(queue, a, err)
		if err != nil {
			n.respondError(r, err)
			return
		}
		text, err := json.Marshal(reply)
		if err == nil {
			err = r.Respond(text)
		}
		n.logUnsent(err)
	})
}

func (n *Node) respondError(r *cluster.Request, err error) { n.logUnsent(r.RespondError(err)) }

// logUnsent logs a reply that could not be sent. The client will ask again.
func (n *Node) logUnsent(err error) {
	if err != nil {
		n.log.Debug("reply not sent", "err", err)
	}
}

func (n *Node) handleSnapshot(ctx context.Context, r *cluster.Request) (any, error) {
	view, index := n.reporter.Snapshot(ctx)
	r.SetIndex(index)
	return view, nil
}

// findJob decodes the request and finds the job that it names.
func (n *Node) findJob(ctx context.Context, r *cluster.Request) (req api.JobRequest, id job.ID, err error) {
	if req, err = decodeRequest[api.JobRequest](r); err != nil {
		return req, id, err
	}
	if req.ID == "" {
		return req, id, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	}
	id, err = n.viewer.Locate(ctx, req.ID, req.Queue)
	return req, id, err
}

func (n *Node) handleJobShow(ctx context.Context, r *cluster.Request) (any, error) {
	_, id, err := n.findJob(ctx, r)
	if err != nil {
		return nil, err
	}
	view, err := n.viewer.Full(ctx, id)
	if err != nil {
		return nil, err
	}
	reply := api.JobOf(&view)
	if view.State == job.Waiting || view.State == job.Delayed {
		reply.Because = n.diagnoser.WaitReason(ctx, id)
	}
	return reply, nil
}

// Bounds of a wait for a job to end.
const (
	defaultWait = 30 * time.Second
	maxWait     = 10 * time.Minute
)

func (n *Node) handleJobWait(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[api.JobRequest](r)
	if err != nil {
		return nil, err
	}
	wait := defaultWait
	if q.TimeoutMS > 0 {
		wait = min(time.Duration(q.TimeoutMS)*time.Millisecond, maxWait)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	_, id, err := n.findJob(ctx, r)
	for unavailable := (*job.UnavailableError)(nil); errors.As(err, &unavailable) && ctx.Err() == nil; {
		// It is not certain yet whether the job exists: keep asking until it is.
		if backoff.Sleep(ctx, 100*time.Millisecond) == nil {
			_, id, err = n.findJob(ctx, r)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := n.waiters.JobEnd(ctx, id, job.Position{}); err != nil {
		return nil, waitError(err, id, wait)
	}
	n.setIndex(r) // an index that includes the end of the job
	view, err := n.viewer.Full(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.JobOf(&view), nil
}

// Page sizes of jobs.
const (
	defaultPageSize = 15
	maxPageSize     = 1000
)

func (n *Node) handleJobList(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[api.JobRequest](r)
	if err != nil {
		return nil, err
	}
	state, ok := job.ParseState(q.State)
	if !ok {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("state %q: must be new, waiting, delayed, active, completed or failed", q.State)}
	}
	if q.Page == 0 {
		q.Page = 1
	}
	if q.PageSize == 0 {
		q.PageSize = defaultPageSize
	}
	if q.Page < 1 || q.PageSize < 1 || q.PageSize > maxPageSize {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("page counts from 1, page_size is 1 to %d", maxPageSize)}
	}
	list := n.viewer.List
	if q.Brief {
		list = n.viewer.Page
	}
	views, err := list(ctx, q.Queue, state, q.Page, q.PageSize)
	if err != nil {
		return nil, err
	}
	jobs := make([]api.Job, len(views))
	for i := range views {
		jobs[i] = api.JobOf(&views[i])
	}
	return api.JobPage{Queue: q.Queue, State: q.State, Page: q.Page, PageSize: q.PageSize, Jobs: jobs}, nil
}

func (n *Node) handleJobCancel(ctx context.Context, r *cluster.Request) (any, error) {
	return n.changeJob(ctx, r, func(id job.ID, q api.JobRequest) ledger.Command {
		return &ledger.CancelJob{Job: id, Reason: q.Reason}
	})
}

func (n *Node) handleJobRetry(ctx context.Context, r *cluster.Request) (any, error) {
	return n.changeJob(ctx, r, func(id job.ID, _ api.JobRequest) ledger.Command { return &ledger.RetryJob{Job: id} })
}

func (n *Node) handleJobRemove(ctx context.Context, r *cluster.Request) (any, error) {
	_, id, err := n.findJob(ctx, r)
	if err != nil {
		return nil, err
	}
	if _, err := n.commit(ctx, r, &ledger.RemoveJob{Job: id}); err != nil {
		return nil, err
	}
	return api.JobRemoved{ID: id, Removed: true}, nil
}

// changeJob commits a command about the job of a request and returns the job's new
// state.
func (n *Node) changeJob(ctx context.Context, r *cluster.Request, command func(job.ID, api.JobRequest) ledger.Command) (any, error) {
	q, id, err := n.findJob(ctx, r)
	if err != nil {
		return nil, err
	}
	d, err := n.commit(ctx, r, command(id, q))
	if err != nil {
		return nil, err
	}
	return api.JobChanged{ID: id, State: d.State.String()}, nil
}

// commit commits a command and sets the index of the reply to that of its entry.
func (n *Node) commit(ctx context.Context, r *cluster.Request, c ledger.Command) (authority.Result, error) {
	d, err := n.proposer.Propose(ctx, c)
	if err == nil {
		r.SetIndex(d.Index)
	}
	return d, err
}
