package inspect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/durationflag"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"

	"github.com/spf13/cobra"
)

// eventLine is one event of history, with the fields of all kinds of events.
type eventLine struct {
	Event    string          `json:"event"`
	Request  string          `json:"request_id"`
	Owner    string          `json:"owner"`
	LeaseID  string          `json:"lease_id"`
	Until    string          `json:"leased_until"`
	Target   string          `json:"target"`
	Channel  string          `json:"channel"`
	Reason   string          `json:"reason"`
	Phase    string          `json:"phase"`
	Worker   string          `json:"worker"`
	Task     string          `json:"task_id"`
	Recovery string          `json:"recovery"`
	Function string          `json:"function"`
	Error    string          `json:"error_type"`
	Cursor   *string         `json:"cursor"`
	Metadata json.RawMessage `json:"metadata"`
	Number   uint64          `json:"seq"`
	At       time.Time       `json:"at"`
	Queue    string          `json:"queue"` // of its job or act; may be empty in the line of a job
	Action   string          `json:"action"`
	Job      string          `json:"job"` // of an act
	Actor    string          `json:"actor"`
	Door     string          `json:"door"`

	jobID string
}

// eventFilter selects events.
type eventFilter struct {
	since time.Time
	event string // name in the form of plainName; "" means all
	idle  bool   // with event "": also those of idleEvents
	queue string // "" means all
	job   string // as given, after findJob the id; "" means all
}

// Events returns the verb events.
func Events(env *command.Env) *cobra.Command {
	var (
		f      eventFilter
		since  time.Duration
		follow bool
	)
	c := env.WithJSON(&cobra.Command{
		Use:   "events",
		Short: "Show past events, and with --follow new ones",
		Long: `Shows the yard's history, oldest event first, for the last ten minutes or for the
time of --since. With --follow it continues with new events, and starts now unless
--since is given. The authority's heartbeats and renewals, every three seconds, are
left out unless --all or --type is given. With --json each event is one line of
JSON, with the names of the runtime contract.
A job is named by its id, by "<queue>:<id>" or "<queue>:<key>", or, with --queue,
by its key. A job that is no longer in the ledger is named by its id only.`,
		Example: `  yardmaster events --since 1h --type dispatch-failed
  yardmaster events --follow --queue mail --json`,
	})
	flags := c.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "continue with new events until interrupted")
	durationflag.Var(flags, &since, "since", 10*time.Minute, "start this `time` ago; 0 starts with the oldest event kept")
	flags.BoolVarP(&f.idle, "all", "a", false, "also heartbeats and renewals of the authority")
	flags.StringVar(&f.event, "type", "", "only events of this `type`, such as dispatch-queued")
	flags.StringVarP(&f.queue, "queue", "q", "", "only events of this `queue`'s jobs")
	flags.StringVar(&f.job, "job", "", "only events of this `job`")
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case since < 0:
			return usererror.Usage(c, "--since is %s: must not be negative", since)
		case follow && !c.Flags().Changed("since"):
			f.since = time.Now()
		case since > 0:
			f.since = time.Now().Add(-since)
		}
		if err := f.check(c); err != nil {
			return err
		}
		return events(c.Context(), env, &f, follow)
	}
	return c
}

// plainName returns the name of an event in lower case without '-', '.' and '_',
// so that tags, labels and user input can be compared.
func plainName(event string) string {
	return strings.ToLower(strings.NewReplacer("-", "", ".", "", "_", "").Replace(event))
}

// idleEvents are what a yard without work reports all the time.
var idleEvents = []string{ledger.RunHeartbeat.String(), ledger.AuthorityRenewed.String()}

// typeNames holds the names of all events in one style, in lower case with hyphens.
var typeNames = func() []string {
	names := append(ledger.EventNames(), ledger.OperatorActed.Label())
	for i, name := range names {
		names[i] = strings.NewReplacer(".", "-", "_", "-").Replace(name)
	}
	return names
}()

// typeName returns the name in typeNames of an event, or event itself if typeNames does not
// have it, as for an event of a newer build.
func typeName(event string) string {
	plain := plainName(event)
	if i := slices.IndexFunc(typeNames, func(name string) bool { return plainName(name) == plain }); i >= 0 {
		return typeNames[i]
	}
	return event
}

// check returns a usage error if the filter names an unknown type of event or an invalid
// queue. It replaces f.event by the form of the name that matches compares.
func (f *eventFilter) check(c *cobra.Command) error {
	if f.event != "" {
		if !slices.Contains(typeNames, typeName(f.event)) {
			return usererror.Usage(c, "--type is %q: must be one of %s", f.event, strings.Join(typeNames, ", "))
		}
		f.event = plainName(f.event)
	}
	if f.queue != "" && job.ValidQueue(f.queue) != nil {
		return usererror.Usage(c, "--queue: %v", job.ValidQueue(f.queue))
	}
	return nil
}

// events shows the events of the yard's history that f selects and, with follow, new
// ones until ctx ends.
func events(ctx context.Context, env *command.Env, f *eventFilter, follow bool) error {
	client, err := env.Dial(ctx)
	if err != nil {
		return err
	}
	if err := f.findJob(ctx, env); err != nil {
		return err
	}
	return client.History(ctx, f.since, follow, func(batch streams.Batch) error {
		return f.eachEvent(batch.Body, func(line []byte, e *eventLine) error {
			if env.JSON {
				return env.PrintLine(line)
			}
			return e.write(env.Out)
		})
	})
}

// findJob replaces f.job by the id of the job. A job given by its id is not
// looked up, so that the history of a job that is no longer in the ledger can
// be shown.
func (f *eventFilter) findJob(ctx context.Context, env *command.Env) error {
	if f.job == "" {
		return nil
	}
	if id, err := job.ParseID(f.job[strings.LastIndexByte(f.job, ':')+1:]); err == nil {
		f.job = id.String()
		return nil
	}
	shown, err := connect.Decode[api.Job](env.Send(ctx, api.Subject("job-show"), command.JobRequest(f.job, f.queue)))
	if connect.Refused(err, api.CodeNotFound) != nil {
		return jobNotFoundError(f.job, f.queue)
	}
	if err != nil {
		return err
	}
	f.job = shown.ID.String()
	return nil
}

// jobNotFoundError returns the user error for a job that the yard does not find. name is
// the job's key or "<queue>:<key>", and queue the value of --queue, or "". If the queue is
// known, the remedy has the id that a job with this key has.
func jobNotFoundError(name, queue string) error {
	key := name
	if before, after, ok := strings.Cut(name, ":"); ok && queue == "" && job.ValidQueue(before) == nil {
		queue, key = before, after
	}
	remedy := `name it by its id, or by "<queue>:<key>"`
	if id, err := job.KeyID(queue, key); err == nil && queue != "" {
		remedy = fmt.Sprintf("if it is no longer in the ledger, --job %s shows its events", id)
	}
	return usererror.New(fmt.Sprintf("there is no job %q", name), remedy)
}

// eachEvent calls fn for each event that f selects, with its line of JSON. body is one
// message of the history: lines of JSON.
func (f *eventFilter) eachEvent(body []byte, fn func([]byte, *eventLine) error) error {
	var events []eventLine
	var lines [][]byte
	for line := range bytes.SplitSeq(body, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var e eventLine
		if err := json.Unmarshal(line, &e); err != nil {
			return connect.BadReply(err)
		}
		e.findJob()
		events, lines = append(events, e), append(lines, line)
	}
	for i := range events {
		e := &events[i]
		// A worker event without a queue is followed by an event of the same job.
		if e.Queue == "" && i+1 < len(events) && events[i+1].jobID == e.jobID {
			e.Queue = events[i+1].Queue
		}
		if !f.matches(e) {
			continue
		}
		if err := fn(lines[i], e); err != nil {
			return err
		}
	}
	return nil
}

// findJob sets the id of the job that the event is about, and its queue if the
// event names it.
func (e *eventLine) findJob() {
	if id, _, ok := job.ParseRequestID(e.Request); ok {
		e.jobID = id.String()
		if e.Queue == "" && !strings.Contains(e.Target, "/") {
			e.Queue = e.Target
		}
	}
	if queue, id, ok := strings.Cut(e.Task, ":"); ok {
		e.jobID, e.Queue = id, queue
	}
	if e.Job != "" {
		e.jobID = e.Job
	}
}

// matches reports whether f selects e: it is not too old, of the event type, job and queue
// that f names, and not hidden.
func (f *eventFilter) matches(e *eventLine) bool {
	isTooOld := e.At.Before(f.since.Truncate(time.Millisecond)) // events have times in milliseconds
	switch {
	case isTooOld:
		return false
	case f.event != "" && plainName(e.Event) != f.event:
		return false
	case f.event == "" && !f.idle && slices.Contains(idleEvents, e.Event):
		return false
	case f.job != "" && e.jobID != f.job:
		return false
	}
	return f.queue == "" || (e.jobID != "" || e.Action != "") && e.Queue == f.queue
}

// actQueue returns the queue of an act, "" for other events.
func (e *eventLine) actQueue() string {
	if e.Action == "" {
		return ""
	}
	return e.Queue
}

// write writes the event as one line: time, number, name, the request or task that it is
// about, and the other fields that are set as name=value.
func (e *eventLine) write(w io.Writer) error {
	var rest strings.Builder
	for _, field := range []struct{ name, value string }{
		{"action", e.Action}, {"queue", e.actQueue()}, {"owner", e.Owner}, {"phase", e.Phase}, {"target", e.Target}, {"function", e.Function}, {"channel", e.Channel},
		{"worker", e.Worker}, {"error_type", e.Error}, {"actor", e.Actor}, {"door", e.Door}, {"reason", e.Reason}, {"recovery", e.Recovery},
		{"lease_id", e.LeaseID}, {"leased_until", e.Until},
	} {
		if field.value != "" {
			command.Printf(&rest, " %s=%s", field.name, field.value)
		}
	}
	if e.Cursor != nil {
		command.Printf(&rest, " cursor=%s", *e.Cursor)
	}
	if len(e.Metadata) > 0 && string(e.Metadata) != "null" {
		command.Printf(&rest, " metadata=%s", e.Metadata)
	}
	return command.Printf(w, "%s  %-8d %-21s %s\n", command.TimeText(&e.At), e.Number, typeName(e.Event), command.OrDash(cmp.Or(e.Request, e.Task, e.Job))+rest.String())
}
