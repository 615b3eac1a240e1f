package inspect

import (
	"cmp"
	"context"
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
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger/history"

	"github.com/spf13/cobra"
)

// Events returns the verb events.
func Events(env *command.Env) *cobra.Command {
	var (
		f      history.Filter
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
	flags.BoolVarP(&f.Idle, "all", "a", false, "also heartbeats and renewals of the authority")
	flags.StringVar(&f.Type, "type", "", "only events of this `type`, such as dispatch-queued")
	flags.StringVarP(&f.Queue, "queue", "q", "", "only events of this `queue`'s jobs")
	flags.StringVar(&f.Job, "job", "", "only events of this `job`")
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case since < 0:
			return usererror.Usage(c, "--since is %s: must not be negative", duration.Format(since))
		case follow && !c.Flags().Changed("since"):
			f.Since = time.Now()
		case since > 0:
			f.Since = time.Now().Add(-since)
		}
		if err := checkFilter(c, &f); err != nil {
			return err
		}
		if err := findJob(c.Context(), env, &f); err != nil {
			return err
		}
		_, err := events(c.Context(), env, &f, follow)
		return err
	}
	return c
}

// checkFilter returns a usage error if the filter names an unknown type of event or an
// invalid queue.
func checkFilter(c *cobra.Command, f *history.Filter) error {
	if f.Type != "" && !slices.Contains(history.TypeNames, history.TypeName(f.Type)) {
		return usererror.Usage(c, "--type is %q: must be one of %s", f.Type, strings.Join(history.TypeNames, ", "))
	}
	if f.Queue != "" && job.ValidQueue(f.Queue) != nil {
		return usererror.Usage(c, "--queue: %v", job.ValidQueue(f.Queue))
	}
	return nil
}

// events shows the events of the yard's history that f selects and, with follow, new
// ones until ctx ends. It returns how many it has shown.
func events(ctx context.Context, env *command.Env, f *history.Filter, follow bool) (shown int, err error) {
	client, err := env.Dial(ctx)
	if err != nil {
		return 0, err
	}
	read := client.History
	if id, err := job.ParseID(f.Job); err == nil {
		read = func(ctx context.Context, since time.Time, follow bool, visit func(streams.Batch) error) error {
			return client.JobHistory(ctx, id, since, follow, visit)
		}
	}
	return shown, read(ctx, f.Since, follow, func(batch streams.Batch) error {
		return eachEvent(f, batch.Body, func(e *history.Line) error {
			shown++
			if env.JSON {
				return env.PrintLine(e.Text)
			}
			return writeEvent(env.Out, e)
		})
	})
}

// findJob replaces f.Job by the id of the job. A job given by its id is not
// looked up, so that the history of a job that is no longer in the ledger can
// be shown.
func findJob(ctx context.Context, env *command.Env, f *history.Filter) error {
	if f.Job == "" {
		return nil
	}
	if id, err := job.ParseID(afterColon(f.Job)); err == nil {
		f.Job = id.String()
		return nil
	}
	shown, err := connect.Decode[api.Job](env.Send(ctx, api.Subject("job-show"), command.JobRequest(f.Job, f.Queue)))
	if connect.Refused(err, api.CodeNotFound) != nil {
		return jobNotFoundError(f.Job, f.Queue)
	}
	if err != nil {
		return err
	}
	f.Job = shown.ID.String()
	return nil
}

// afterColon returns the part of a job's name after its queue.
func afterColon(name string) string { return name[strings.LastIndexByte(name, ':')+1:] }

// idOf returns the id of the job that name and queue name, if that can be said without the yard: of
// an id, and of a key in a known queue.
func idOf(name, queue string) (job.ID, bool) {
	if id, err := job.ParseID(afterColon(name)); err == nil {
		return id, true
	}
	key := name
	if before, after, ok := strings.Cut(name, ":"); ok && queue == "" && job.ValidQueue(before) == nil {
		queue, key = before, after
	}
	id, err := job.KeyID(queue, key)
	return id, err == nil && queue != ""
}

// jobNotFoundError returns the user error for a job that the yard does not find. name is
// the job's key or "<queue>:<key>", and queue the value of --queue, or "". If the queue is
// known, the remedy has the id that a job with this key has.
func jobNotFoundError(name, queue string) error {
	remedy := `name it by its id, or by "<queue>:<key>"`
	if id, ok := idOf(name, queue); ok {
		remedy = fmt.Sprintf("if it is no longer in the ledger, name it by its id, %s", id)
	}
	return usererror.NotFound(fmt.Sprintf("there is no job %q", name), remedy)
}

// eachEvent calls fn for each event that f selects. body is one message of the history:
// lines of JSON.
func eachEvent(f *history.Filter, body []byte, fn func(*history.Line) error) error {
	lines, err := history.ParseLines(body)
	if err != nil {
		return connect.BadReply(err)
	}
	for i := range lines {
		if !f.Matches(&lines[i]) {
			continue
		}
		if err := fn(&lines[i]); err != nil {
			return err
		}
	}
	return nil
}

// actQueue returns the queue of an act, "" for other events.
func actQueue(e *history.Line) string {
	if e.Action == "" {
		return ""
	}
	return e.Queue
}

// writeEvent writes an event as one line: time, number, name, the request or task that it is
// about, and the other fields that are set as name=value.
func writeEvent(w io.Writer, e *history.Line) error {
	var rest strings.Builder
	for _, field := range []struct{ name, value string }{
		{"action", e.Action}, {"queue", actQueue(e)}, {"owner", e.Owner}, {"phase", e.Phase}, {"target", e.Target}, {"function", e.Function}, {"channel", e.Channel},
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
	return command.Printf(w, "%s  %-8d %-21s %s\n", command.TimeText(&e.At), e.Number, e.Type(), command.OrDash(cmp.Or(e.Request, e.Task, e.Job))+rest.String())
}
