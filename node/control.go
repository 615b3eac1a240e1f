package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"yardmaster/cluster"
	"yardmaster/internal/backoff"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/membership"
)

// service is all that this node answers to anybody.
func (n *Node) service() cluster.Service {
	api := func(noun, verb, description string, do func(context.Context, *cluster.Request) (any, error)) cluster.Endpoint {
		return cluster.Endpoint{
			Name: noun + "-" + verb, Subject: cluster.SubjectAPI + "." + noun + "." + verb,
			Description: description, Do: answer(do),
		}
	}
	wait := api("job", "wait", "a job, once it has ended", n.handleJobWait)
	wait.Waits = true
	service := cluster.Service{
		Name:        "yard-api",
		Version:     semver(n.version),
		Description: "Yardmaster: jobs, queues and the state of the yard",
		Metadata:    n.facts,
		Endpoints: []cluster.Endpoint{
			{Name: "enqueue", Subject: cluster.SubjectEnqueue + ".*", Description: "accept a job for a queue", Go: n.handleEnqueue, Unheard: true},
			{Name: "call", Subject: cluster.SubjectCall + ".*", Description: "accept a job for a queue, and tell how it ended", Do: answer(n.handleCall), Waits: true},
			{Name: "exec", Subject: cluster.SubjectExec, Description: "carry out one command of the runtime contract", Do: n.handleExec},
			{Name: "exec-command", Subject: cluster.SubjectExec + ".*", Description: "carry out the command of the runtime contract that the subject names", Do: n.handleExecCommand},
			{Name: "snapshot", Subject: cluster.SubjectSnapshot, Description: "the runtime contract's snapshot", Do: answer(n.handleSnapshot)},
			{Name: "status", Subject: cluster.SubjectStatus, Description: "members, authority, lanes, backlog, readiness", Do: answer(n.handleStatus)},
			api("job", "show", "a job by id or key", n.handleJobShow),
			api("job", "explain", "why a job is where it is, when that will change, and what has happened to it", n.handleJobExplain),
			wait,
			api("job", "bulk", "accept many jobs, each with an answer of its own", n.handleBulk),
			api("job", "logs", "the end of what a job has said", n.handleJobLogs),
			api("job", "list", "a page of a queue's jobs in a state", n.handleJobList),
			api("job", "cancel", "cancel a job", n.handleJobCancel),
			api("job", "retry", "run a failed job again", n.handleJobRetry),
			api("job", "replay", "a new job that does what one that has ended did", n.handleJobReplay),
			api("job", "remove", "forget a job that is not active", n.handleJobRemove),
			api("cron", "list", "a page of the cron entries", n.handleCronList),
			api("cron", "show", "one cron entry, and how its last job stands", n.handleCronShow),
			api("cron", "add", "make a cron entry", n.handleCronAdd),
			api("cron", "remove", "remove a cron entry", n.handleCronRemove),
			api("cron", "pause", "let a cron entry tick no more", n.handleCronPause),
			api("cron", "resume", "let a cron entry tick again", n.handleCronResume),
			api("cron", "run", "make a cron entry's job now", n.handleCronRun),
			api("cluster", "members", "who belongs to the yard, how each stands, and how a change goes on", n.membersVerb(membership.Show)),
			api("cluster", "add", "let a node in that waits", n.membersVerb(membership.Add)),
			api("cluster", "rm", "take a member out", n.membersVerb(membership.Remove)),
			api("cluster", "replace", "give the place of a member that is lost to another data directory", n.membersVerb(membership.Replace)),
			api("cluster", "cancel", "take back a change that lets somebody in", n.membersVerb(membership.Cancel)),
			api("cluster", "transfer", "hand the authority to another member", n.handleTransfer),
			api("cluster", "scrub", "what each member found when it last read its copies of the streams", n.handleScrub),
			api("cluster", "rebuild", "have a member make its copy of a stream anew from the others", n.handleRebuild),
			api("ledger", "hash", "the hash of this node's ledger, which is every node's at that index", n.handleLedgerHash),
			api("queue", "list", "all queues", n.handleQueueList),
			api("queue", "show", "one queue", n.handleQueueShow),
			api("queue", "explain", "why a queue's jobs run or do not", n.handleQueueExplain),
			api("queue", "add", "make a queue", n.handleQueueAdd),
			api("queue", "pause", "start no more jobs of a queue", n.handleQueuePause),
			api("queue", "resume", "start jobs of a queue again", n.handleQueueResume),
			api("queue", "remove", "remove a queue all of whose jobs have ended", n.handleQueueRemove),
		},
	}
	for _, e := range n.dlq.verbs() {
		service.Endpoints = append(service.Endpoints, api("dlq", e.verb, e.about, e.do))
	}
	n.index(service.Endpoints)
	return service
}

// index lets the answers of which the table of routes says so tell which state
// of the ledger they show: the one that stood when they were asked for, unless
// their handler knows better. What they show may be newer than that, not older.
func (n *Node) index(endpoints []cluster.Endpoint) {
	for i := range endpoints {
		e := &endpoints[i]
		if do := e.Do; do != nil && routes[e.Name].Indexed {
			e.Do = func(ctx context.Context, r *cluster.Request) ([]byte, error) {
				n.shows(r)
				return do(ctx, r)
			}
		}
	}
}

// shows notes that an answer shows the ledger as it is now, or as it will be.
func (n *Node) shows(r *cluster.Request) {
	n.raft.View(func(l *ledger.Ledger) { r.Shows(l.Index()) })
}

// decide carries out a command; its answer tells which entry decided it.
func (n *Node) decide(ctx context.Context, r *cluster.Request, c ledger.Command) (done, error) {
	d, err := n.commander.do(ctx, c)
	if err == nil {
		r.Shows(d.Index)
	}
	return d, err
}

// semver is the version as the micro service protocol wants it.
func semver(version string) string {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "v%d.%d.%d", &major, &minor, &patch); err != nil {
		return "0.0.0"
	}
	return fmt.Sprintf("%d.%d.%d", major, minor, patch)
}

// answer turns what a handler gives into JSON.
func answer(do func(context.Context, *cluster.Request) (any, error)) func(context.Context, *cluster.Request) ([]byte, error) {
	return func(ctx context.Context, r *cluster.Request) ([]byte, error) {
		v, err := do(ctx, r)
		if err != nil {
			return nil, err
		}
		return json.Marshal(v)
	}
}

// ask reads a request's body; an empty one asks with no keys.
func ask[T any](r *cluster.Request) (v T, err error) {
	if len(r.Data) == 0 {
		return v, nil
	}
	return v, job.ReadAsked("request", r.Data, &v)
}

// enqueueRequest is a job and, beside it, its producer's key.
type enqueueRequest struct {
	job.Spec
	ID string `json:"id"`
}

// enqueueReply says where a job went.
type enqueueReply struct {
	ID        job.ID `json:"id"`
	Queue     string `json:"queue"`
	Duplicate bool   `json:"duplicate"`           // nothing new: the job was there before
	Debounced bool   `json:"debounced,omitempty"` // the job was there before, and is now what was asked for
}

// handleEnqueue accepts a job. The key is "id", or the header Nats-Msg-Id.
func (n *Node) handleEnqueue(r *cluster.Request) {
	queue := r.Token()
	var ask enqueueRequest
	body, err := readJob(r, &ask, &ask)
	if err != nil {
		n.refuse(r, err)
		return
	}
	n.enqueue(queue, &ask, body, terms{}, func(reply enqueueReply, _ job.Position, err error) {
		if err != nil {
			n.refuse(r, err)
			return
		}
		text, err := json.Marshal(reply)
		if err == nil {
			err = r.Respond(text)
		}
		n.unanswered(err)
	})
}

func (n *Node) refuse(r *cluster.Request, err error) { n.unanswered(r.Refuse(err)) }

// unanswered notes an answer that could not be sent: the asker will ask again.
func (n *Node) unanswered(err error) {
	if err != nil {
		n.log.Debug("answer is not sent", "error", err)
	}
}

func (n *Node) handleSnapshot(ctx context.Context, r *cluster.Request) (any, error) {
	view, index := n.snapshot(ctx)
	r.Shows(index)
	return view, nil
}

func (n *Node) handleStatus(ctx context.Context, _ *cluster.Request) (any, error) {
	return n.status(ctx), nil
}

// jobQuestion names a job, or a page of jobs.
type jobQuestion struct {
	ID        string `json:"id"`
	Queue     string `json:"queue"`
	State     string `json:"state"`
	Page      int    `json:"page"`
	PageSize  int    `json:"page_size"`
	TimeoutMS int64  `json:"timeout_ms"`
	Reason    string `json:"reason"`
	Brief     bool   `json:"brief"` // of a page: without what the jobs carry
}

// aboutJob reads the question and finds the job it names.
func (n *Node) aboutJob(ctx context.Context, r *cluster.Request) (q jobQuestion, id job.ID, err error) {
	if q, err = ask[jobQuestion](r); err != nil {
		return q, id, err
	}
	if q.ID == "" {
		return q, id, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	}
	id, err = n.viewer.locate(ctx, q.ID, q.Queue)
	return q, id, err
}

func (n *Node) handleJobShow(ctx context.Context, r *cluster.Request) (any, error) {
	_, id, err := n.aboutJob(ctx, r)
	if err != nil {
		return nil, err
	}
	view, err := n.viewer.show(ctx, id)
	if err != nil {
		return nil, err
	}
	shown := jobToJSON(&view)
	if view.State == job.Waiting || view.State == job.Delayed {
		if why, ok := n.inquire(ctx, id); ok {
			shown.Because = why.because()
		}
	}
	return shown, nil
}

// Bounds of a wait for a job's end.
const (
	defaultWait = 30 * time.Second
	maxWait     = 10 * time.Minute
)

func (n *Node) handleJobWait(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[jobQuestion](r)
	if err != nil {
		return nil, err
	}
	wait := defaultWait
	if q.TimeoutMS > 0 {
		wait = min(time.Duration(q.TimeoutMS)*time.Millisecond, maxWait)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	_, id, err := n.aboutJob(ctx, r)
	for away := (*job.UnavailableError)(nil); errors.As(err, &away) && ctx.Err() == nil; {
		// Nobody can tell yet whether there is such a job: who waits anyway
		// waits for that, too.
		if backoff.Sleep(ctx, 100*time.Millisecond) == nil {
			_, id, err = n.aboutJob(ctx, r)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := n.ends.await(ctx, id, job.Position{}); err != nil {
		return nil, notEnded(err, id, wait)
	}
	n.shows(r) // with the job's end
	view, err := n.viewer.show(ctx, id)
	if err != nil {
		return nil, err
	}
	return jobToJSON(&view), nil
}

// Pages of jobs.
const (
	defaultPage = 15
	maxPage     = 1000
)

func (n *Node) handleJobList(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[jobQuestion](r)
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
		q.PageSize = defaultPage
	}
	if q.Page < 1 || q.PageSize < 1 || q.PageSize > maxPage {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("page counts from 1, page_size is 1 to %d", maxPage)}
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

// jobPage is a page of jobs as people and programs see it.
type jobPage struct {
	Queue    string    `json:"queue"`
	State    string    `json:"state"`
	Page     int       `json:"page"`
	PageSize int       `json:"page_size"`
	Jobs     []jobJSON `json:"jobs"`
}

func (n *Node) handleJobCancel(ctx context.Context, r *cluster.Request) (any, error) {
	return n.change(ctx, r, func(id job.ID, q jobQuestion) ledger.Command {
		return &ledger.CancelJob{Job: id, Reason: q.Reason}
	})
}

func (n *Node) handleJobRetry(ctx context.Context, r *cluster.Request) (any, error) {
	return n.change(ctx, r, func(id job.ID, _ jobQuestion) ledger.Command { return &ledger.RetryJob{Job: id} })
}

func (n *Node) handleJobRemove(ctx context.Context, r *cluster.Request) (any, error) {
	_, id, err := n.aboutJob(ctx, r)
	if err != nil {
		return nil, err
	}
	if _, err := n.decide(ctx, r, &ledger.RemoveJob{Job: id}); err != nil {
		return nil, err
	}
	return jobRemoved{id, true}, nil
}

// jobRemoved says that a job is forgotten.
type jobRemoved struct {
	ID      job.ID `json:"id"`
	Removed bool   `json:"removed"`
}

func (n *Node) change(ctx context.Context, r *cluster.Request, command func(job.ID, jobQuestion) ledger.Command) (any, error) {
	q, id, err := n.aboutJob(ctx, r)
	if err != nil {
		return nil, err
	}
	d, err := n.decide(ctx, r, command(id, q))
	if err != nil {
		return nil, err
	}
	return jobChanged{id, d.State.String()}, nil
}

// jobChanged says what a job has become.
type jobChanged struct {
	ID    job.ID `json:"id"`
	State string `json:"state"`
}
