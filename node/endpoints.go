package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/membership"
)

// apiService returns the API that every node serves alike.
func (n *Node) apiService() cluster.Service {
	api := func(noun, verb, description string, do func(context.Context, *cluster.Request) (any, error)) cluster.Endpoint {
		return cluster.Endpoint{
			Name: noun + "-" + verb, Subject: cluster.SubjectAPI + "." + noun + "." + verb,
			Description: description, Handle: jsonHandler(do),
		}
	}
	wait := api("job", "wait", "a job, once it has ended", n.handleJobWait)
	wait.LongRunning = true
	service := cluster.Service{
		Name:        "yard-api",
		Version:     semver(n.version),
		Description: "Yardmaster: jobs, queues and the state of the yard",
		Metadata:    n.serviceMetadata,
		Endpoints: []cluster.Endpoint{
			{Name: "enqueue", Subject: cluster.SubjectEnqueue + ".*", Description: "accept a job for a queue", HandleAsync: n.handleEnqueue, AllowNoReply: true},
			{Name: "call", Subject: cluster.SubjectCall + ".*", Description: "accept a job for a queue, and return how it ended", Handle: jsonHandler(n.handleCall), LongRunning: true},
			{Name: "exec", Subject: cluster.SubjectExec, Description: "carry out one command of the runtime contract", Handle: n.handleExec},
			{Name: "exec-command", Subject: cluster.SubjectExec + ".*", Description: "carry out the command of the runtime contract that the subject names", Handle: n.handleExecCommand},
			{Name: "snapshot", Subject: cluster.SubjectSnapshot, Description: "the runtime contract's snapshot", Handle: jsonHandler(n.handleSnapshot)},
			{Name: "status", Subject: cluster.SubjectStatus, Description: "members, authority, lanes, backlog, readiness", Handle: jsonHandler(n.handleStatus)},
			api("job", "show", "a job by id or key", n.handleJobShow),
			api("job", "explain", "why a job is where it is, when that will change, and what has happened to it", n.handleJobExplain),
			wait,
			api("job", "bulk", "accept many jobs, each with its own result", n.handleBulk),
			api("job", "logs", "the end of a job's log", n.handleJobLogs),
			api("job", "list", "a page of a queue's jobs in a state", n.handleJobList),
			api("job", "cancel", "cancel a job", n.handleJobCancel),
			api("job", "retry", "run a failed job again", n.handleJobRetry),
			api("job", "replay", "enqueue a copy of a job that has ended", n.handleJobReplay),
			api("job", "remove", "remove a job that is not active", n.handleJobRemove),
			api("cron", "list", "a page of the cron entries", n.handleCronList),
			api("cron", "show", "one cron entry, and the state of its last job", n.handleCronShow),
			api("cron", "add", "add a cron entry", n.handleCronAdd),
			api("cron", "remove", "remove a cron entry", n.handleCronRemove),
			api("cron", "pause", "pause a cron entry", n.handleCronPause),
			api("cron", "resume", "resume a cron entry", n.handleCronResume),
			api("cron", "run", "enqueue a cron entry's job now", n.handleCronRun),
			api("cluster", "members", "the members, their state, and the progress of a change", n.membersHandler(membership.Show)),
			api("cluster", "add", "admit a waiting node", n.membersHandler(membership.Add)),
			api("cluster", "rm", "remove a member", n.membersHandler(membership.Remove)),
			api("cluster", "replace", "replace a lost member by a node with another data directory", n.membersHandler(membership.Replace)),
			api("cluster", "cancel", "cancel a change that admits a node", n.membersHandler(membership.Cancel)),
			api("cluster", "transfer", "transfer the authority to another member", n.handleTransfer),
			api("cluster", "scrub", "retired: refused with 410, which names the step that replaces it", n.handleRetired),
			api("cluster", "rebuild", "retired: refused with 410, which names the step that replaces it", n.handleRetired),
			api("ledger", "hash", "the hash of this node's ledger, which is the same on every node at that index", n.handleLedgerHash),
			api("queue", "list", "all queues", n.handleQueueList),
			api("queue", "show", "one queue", n.handleQueueShow),
			api("queue", "explain", "why a queue's jobs run or do not", n.handleQueueExplain),
			api("queue", "add", "add a queue", n.handleQueueAdd),
			api("queue", "pause", "start no more jobs of a queue", n.handleQueuePause),
			api("queue", "resume", "start jobs of a queue again", n.handleQueueResume),
			api("queue", "remove", "remove a queue all of whose jobs have ended", n.handleQueueRemove),
		},
	}
	for _, e := range n.dlq.endpoints() {
		service.Endpoints = append(service.Endpoints, api("dlq", e.name, e.summary, e.handle))
	}
	n.addIndex(service.Endpoints)
	return service
}

// addIndex makes the replies of the endpoints that the table of routes marks as Indexed
// carry the index of the ledger that they show: the one at the time of the request,
// unless the handler sets a later one. A reply may show newer state, never older.
func (n *Node) addIndex(endpoints []cluster.Endpoint) {
	for i := range endpoints {
		e := &endpoints[i]
		if handle := e.Handle; handle != nil && routes[e.Name].Indexed {
			e.Handle = func(ctx context.Context, r *cluster.Request) ([]byte, error) {
				n.setIndex(r)
				return handle(ctx, r)
			}
		}
	}
}

// setIndex sets the index of the reply to the ledger's current one.
func (n *Node) setIndex(r *cluster.Request) {
	n.raft.View(func(l *ledger.Ledger) { r.SetIndex(l.Index()) })
}

// propose commits a command and sets the index of the reply to that of its entry.
func (n *Node) propose(ctx context.Context, r *cluster.Request, c ledger.Command) (commandResult, error) {
	d, err := n.proposer.propose(ctx, c)
	if err == nil {
		r.SetIndex(d.Index)
	}
	return d, err
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
func jsonHandler(handle func(context.Context, *cluster.Request) (any, error)) func(context.Context, *cluster.Request) ([]byte, error) {
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

// enqueueRequest is a job with its producer's key.
type enqueueRequest struct {
	job.Spec
	ID string `json:"id"`
}

// enqueueReply names the job that was accepted.
type enqueueReply struct {
	ID        job.ID `json:"id"`
	Queue     string `json:"queue"`
	Duplicate bool   `json:"duplicate"`           // the job existed before
	Debounced bool   `json:"debounced,omitempty"` // the job existed before and now has the new specification
}

// handleEnqueue accepts a job. The key is "id", or the header Nats-Msg-Id.
func (n *Node) handleEnqueue(r *cluster.Request) {
	queue := r.Token()
	var req enqueueRequest
	body, err := readJob(r, &req, &req)
	if err != nil {
		n.respondError(r, err)
		return
	}
	n.enqueue(queue, &req, body, enqueueOptions{}, func(reply enqueueReply, _ job.Position, err error) {
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
	view, index := n.snapshot(ctx)
	r.SetIndex(index)
	return view, nil
}

func (n *Node) handleStatus(ctx context.Context, _ *cluster.Request) (any, error) {
	return n.status(ctx), nil
}

// jobRequest names a job, or a page of jobs.
type jobRequest struct {
	ID        string `json:"id"`
	Queue     string `json:"queue"`
	State     string `json:"state"`
	Page      int    `json:"page"`
	PageSize  int    `json:"page_size"`
	TimeoutMS int64  `json:"timeout_ms"`
	Reason    string `json:"reason"`
	Brief     bool   `json:"brief"` // of a page: without bodies and results
}

// findJob decodes the request and finds the job that it names.
func (n *Node) findJob(ctx context.Context, r *cluster.Request) (req jobRequest, id job.ID, err error) {
	if req, err = decodeRequest[jobRequest](r); err != nil {
		return req, id, err
	}
	if req.ID == "" {
		return req, id, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	}
	id, err = n.viewer.locate(ctx, req.ID, req.Queue)
	return req, id, err
}

func (n *Node) handleJobShow(ctx context.Context, r *cluster.Request) (any, error) {
	_, id, err := n.findJob(ctx, r)
	if err != nil {
		return nil, err
	}
	view, err := n.viewer.full(ctx, id)
	if err != nil {
		return nil, err
	}
	reply := jobToJSON(&view)
	if view.State == job.Waiting || view.State == job.Delayed {
		if d, ok := n.diagnose(ctx, id); ok {
			reply.Because = d.waitReason()
		}
	}
	return reply, nil
}

// Bounds of a wait for a job to end.
const (
	defaultWait = 30 * time.Second
	maxWait     = 10 * time.Minute
)

func (n *Node) handleJobWait(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[jobRequest](r)
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
	if err := n.completions.await(ctx, id, job.Position{}); err != nil {
		return nil, waitError(err, id, wait)
	}
	n.setIndex(r) // an index that includes the end of the job
	view, err := n.viewer.full(ctx, id)
	if err != nil {
		return nil, err
	}
	return jobToJSON(&view), nil
}

// Page sizes of jobs.
const (
	defaultPageSize = 15
	maxPageSize     = 1000
)

func (n *Node) handleJobList(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[jobRequest](r)
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
	list := n.viewer.list
	if q.Brief {
		list = n.viewer.page
	}
	views, err := list(ctx, q.Queue, state, q.Page, q.PageSize)
	if err != nil {
		return nil, err
	}
	jobs := make([]jobJSON, len(views))
	for i := range views {
		jobs[i] = jobToJSON(&views[i])
	}
	return jobPage{q.Queue, q.State, q.Page, q.PageSize, jobs}, nil
}

// jobPage is a page of jobs in the API.
type jobPage struct {
	Queue    string    `json:"queue"`
	State    string    `json:"state"`
	Page     int       `json:"page"`
	PageSize int       `json:"page_size"`
	Jobs     []jobJSON `json:"jobs"`
}

func (n *Node) handleJobCancel(ctx context.Context, r *cluster.Request) (any, error) {
	return n.changeJob(ctx, r, func(id job.ID, q jobRequest) ledger.Command {
		return &ledger.CancelJob{Job: id, Reason: q.Reason}
	})
}

func (n *Node) handleJobRetry(ctx context.Context, r *cluster.Request) (any, error) {
	return n.changeJob(ctx, r, func(id job.ID, _ jobRequest) ledger.Command { return &ledger.RetryJob{Job: id} })
}

func (n *Node) handleJobRemove(ctx context.Context, r *cluster.Request) (any, error) {
	_, id, err := n.findJob(ctx, r)
	if err != nil {
		return nil, err
	}
	if _, err := n.propose(ctx, r, &ledger.RemoveJob{Job: id}); err != nil {
		return nil, err
	}
	return jobRemoved{id, true}, nil
}

// jobRemoved reports that a job was removed.
type jobRemoved struct {
	ID      job.ID `json:"id"`
	Removed bool   `json:"removed"`
}

// changeJob commits a command about the job of a request and returns the job's new
// state.
func (n *Node) changeJob(ctx context.Context, r *cluster.Request, command func(job.ID, jobRequest) ledger.Command) (any, error) {
	q, id, err := n.findJob(ctx, r)
	if err != nil {
		return nil, err
	}
	d, err := n.propose(ctx, r, command(id, q))
	if err != nil {
		return nil, err
	}
	return jobChanged{id, d.State.String()}, nil
}

// jobChanged reports a job's new state.
type jobChanged struct {
	ID    job.ID `json:"id"`
	State string `json:"state"`
}
