package pages

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

// jobData is the data of the page of a job.
type jobData struct {
	Explained api.JobExplanation
	Job       *api.Job // with params and result; nil: the ledger has no such job
	Unread    error    // why it is without params and result; nil: it has those that there are
	Steps     []step   // its history, or the end of it from the last dispatch on
	Earlier   []step   // what happened before Steps, if that is much
	Logs      []job.LogLine
	MoreLogs  bool
	LogsError error
	Start     string // the beginning of params that are too large to show
}

// step is an event of a job's history, or a group of the events of one dispatch.
type step struct {
	At       time.Time
	Kind     string // queued, notified, assigned, delivered, failed, acted or other
	Title    string
	Detail   string
	Dispatch uint32
	Error    *job.Fault    // of a dispatch that failed, if it is kept
	After    time.Duration // since the step before
}

// Job loads the page.
func Job(ctx context.Context, e *Env, v *View) (any, error) {
	d := &jobData{}
	var err error
	if d.Explained, err = ask[api.JobExplanation](ctx, e, v, "job-explain", &api.JobRequest{ID: v.Name, Queue: v.Query.Get("queue")}); err != nil {
		return nil, err
	}
	d.Steps = steps(d.Explained.History.Events)
	id := v.Name
	if !d.Explained.ID.IsZero() {
		id = d.Explained.ID.String()
	}
	ctx, cancel := context.WithTimeout(ctx, streamsTimeout)
	defer cancel()
	var reads crash.Group
	reads.Run(func() { d.readJob(ctx, e, v, id) })
	reads.Run(func() { d.readLogs(ctx, e, v, id) })
	reads.Run(func() { d.readErrors(ctx, e, v, id) })
	_ = reads.Wait() // the functions return no errors
	d.fold()
	return d, nil
}

// streamsTimeout bounds reading what streams have of a job, which may not answer without a quorum.
const streamsTimeout = 3500 * time.Millisecond

// readJob reads the job with its params and result.
func (d *jobData) readJob(ctx context.Context, e *Env, v *View, id string) {
	shown, err := ask[api.Job](ctx, e, v, "job-show", &api.JobRequest{ID: id})
	if err != nil {
		d.Job, d.Unread = d.Explained.Job, err
		return
	}
	d.Job = &shown
	if shown.PayloadBytes > 0 {
		d.Start = contentStart(ctx, e, v, id)
	}
}

// readLogs reads the last lines of the job's log.
func (d *jobData) readLogs(ctx context.Context, e *Env, v *View, id string) {
	logs, err := ask[api.LogReply](ctx, e, v, "job-logs", &api.LogRequest{ID: id, Lines: 200})
	d.LogsError, d.MoreLogs = err, logs.More
	for _, text := range logs.Lines {
		var line job.LogLine
		if json.Unmarshal(text, &line) == nil {
			d.Logs = append(d.Logs, line)
		}
	}
}

// maxOpenSteps is the largest number of steps before the last dispatch that are not folded.
const maxOpenSteps = 12

// fold moves the steps before the last dispatch to Earlier, if there are many.
func (d *jobData) fold() {
	var last uint32
	for i := range d.Steps {
		last = max(last, d.Steps[i].Dispatch)
	}
	i := slices.IndexFunc(d.Steps, func(s step) bool { return s.Dispatch == last })
	if last > 0 && i > maxOpenSteps {
		d.Earlier, d.Steps = d.Steps[:i:i], d.Steps[i:]
	}
}

// EarlierDispatches returns the number of dispatches in Earlier.
func (d *jobData) EarlierDispatches() int {
	numbers := map[uint32]bool{}
	for i := range d.Earlier {
		numbers[d.Earlier[i].Dispatch] = true
	}
	delete(numbers, 0)
	return len(numbers)
}

// maxShownErrors is the largest number of errors of attempts on the page.
const maxShownErrors = 20

// readErrors adds the errors of attempts to the steps in which they failed, if they are kept.
func (d *jobData) readErrors(ctx context.Context, e *Env, v *View, id string) {
	errs, err := ask[api.JobErrors](ctx, e, v, "job-errors", &api.JobErrorsRequest{ID: id, Limit: maxShownErrors})
	if err != nil {
		return // the messages are in the history
	}
	byDispatch := make(map[uint32]*job.Fault, len(errs.Errors))
	for i := range errs.Errors {
		byDispatch[errs.Errors[i].N] = &errs.Errors[i].Error
	}
	for i := range d.Steps {
		if s := &d.Steps[i]; s.Kind == "failed" {
			s.Error = byDispatch[s.Dispatch]
		}
	}
}

// contentStart returns the beginning of a job's params.
func contentStart(ctx context.Context, e *Env, v *View, id string) string {
	part, err := ask[api.Content](ctx, e, v, "job-params", &api.ContentRequest{ID: id, Limit: format.CutBlock})
	if err != nil {
		return ""
	}
	return string(part.Data)
}

// steps returns the events of a job's history as steps, oldest first.
func steps(events []json.RawMessage) (all []step) {
	for _, text := range events {
		lines, err := history.ParseLines(text)
		if err != nil || len(lines) != 1 {
			continue
		}
		l := &lines[0]
		_, n, _ := job.ParseRequestID(l.Request)
		s := step{At: l.At, Dispatch: n}
		switch l.Type() {
		case "dispatch-queued":
			s.Kind, s.Title, s.Detail = "queued", "Queued", joined("function", l.Function, "for", l.Target)
		case "dispatch-notified":
			s.Kind, s.Title, s.Detail = "notified", "Dispatched", joined("to", l.Channel)
		case "worker-assigned":
			s.Kind, s.Title, s.Detail = "assigned", "Assigned", joined("to", l.Worker)
		case "dispatch-delivered":
			s.Kind, s.Title = "delivered", "Completed"
		case "dispatch-failed":
			s.Kind, s.Title, s.Detail = "failed", "Failed", joined("", l.Error, "", l.Reason)
		case "operator-acted":
			s.Kind, s.Title, s.Detail = "acted", l.Action, joined("by", l.Actor, "at the door", l.Door, "–", l.Reason)
		default:
			s.Kind, s.Title, s.Detail = "other", l.Type(), joined("worker", l.Worker, "", l.Reason)
		}
		if len(all) > 0 {
			s.After = s.At.Sub(all[len(all)-1].At)
		}
		all = append(all, s)
	}
	return all
}

// joined returns the pairs of a word and a value that have a value.
func joined(pairs ...string) string {
	var parts []string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			parts = append(parts, strings.TrimSpace(pairs[i]+" "+pairs[i+1]))
		}
	}
	return strings.Join(parts, " ")
}
