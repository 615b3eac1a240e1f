package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"

	"github.com/spf13/cobra"
)

// eventLine is one event of history, with every field any kind has.
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
	Cursor   *string         `json:"cursor"`
	Metadata json.RawMessage `json:"metadata"`
	Number   uint64          `json:"seq"`
	At       time.Time       `json:"at"`
	Queue    string          `json:"queue"` // of the job it is about, as far as the line says so

	jobID string
}

// eventFilter says which events are wanted.
type eventFilter struct {
	since time.Time
	event string // a tag, lower case without '-' and '.'; "": all
	queue string
	job   string // id; before it was looked up, whatever names the job
}

func (a *app) eventsVerb() *cobra.Command {
	var (
		f      eventFilter
		since  time.Duration
		follow bool
	)
	c := a.takesJSON(&cobra.Command{
		Use:   "events",
		Short: "Show what happened, and with --follow what happens",
		Long: `Shows the yard's history, oldest event first: the last ten minutes of it, or
what --since says. With --follow it goes on with what happens, and begins now
unless --since is given. With --json each event is one line, as in the stream
YARD_EVENTS. A job is named by its id, by "<queue>:<id>" or "<queue>:<key>", or,
with --queue, by its key; one that the yard has forgotten, by its id alone.`,
		Example: `  yardmaster events --since 1h --type dispatch-failed
  yardmaster events --follow --queue mail --json`,
		Args: args(),
	})
	flags := c.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "go on until it is interrupted")
	flags.DurationVar(&since, "since", 10*time.Minute, "begin this `time` ago; 0 begins with the oldest event kept")
	flags.StringVar(&f.event, "type", "", "only events of this `type`, such as dispatch-queued")
	flags.StringVarP(&f.queue, "queue", "q", "", "only events of this `queue`'s jobs")
	flags.StringVar(&f.job, "job", "", "only events of this `job`")
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case since < 0:
			return usage(c, fmt.Sprintf("--since is %s: must not be negative", since))
		case follow && !c.Flags().Changed("since"):
			f.since = time.Now()
		case since > 0:
			f.since = time.Now().Add(-since)
		}
		if err := f.check(c); err != nil {
			return err
		}
		return a.events(c.Context(), &f, follow)
	}
	return c
}

// plainName makes a tag, a label and what somebody typed comparable.
func plainName(event string) string {
	return strings.ToLower(strings.NewReplacer("-", "", ".", "", "_", "").Replace(event))
}

func (f *eventFilter) check(c *cobra.Command) error {
	if f.event != "" {
		known := slices.ContainsFunc(ledger.EventNames(), func(n string) bool { return plainName(n) == plainName(f.event) })
		if !known {
			return usage(c, fmt.Sprintf("--type %q is no event; they are %s", f.event, strings.Join(ledger.EventNames(), ", ")))
		}
		f.event = plainName(f.event)
	}
	if f.queue != "" && job.ValidQueue(f.queue) != nil {
		return usage(c, "--queue: "+job.ValidQueue(f.queue).Error())
	}
	return nil
}

func (a *app) events(ctx context.Context, f *eventFilter, follow bool) error {
	y, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	if err := f.findJob(ctx, y); err != nil {
		return err
	}
	return y.History(ctx, f.since, follow, func(t cluster.Tale) error {
		return f.tale(t.Body, func(line []byte, e *eventLine) error {
			if a.json {
				_, err := fmt.Fprintf(a.Out, "%s\n", line)
				return err
			}
			return e.write(a.Out)
		})
	})
}

// findJob learns the id of the job that is looked for. An id needs no yard, so
// that history can be read of a job that the yard has forgotten.
func (f *eventFilter) findJob(ctx context.Context, y *yard) error {
	if f.job == "" {
		return nil
	}
	if id, err := job.ParseID(f.job[strings.LastIndexByte(f.job, ':')+1:]); err == nil {
		f.job = id.String()
		return nil
	}
	answer, err := y.ask(ctx, cluster.SubjectAPI+".job.show", named(f.job, f.queue))
	if refused, ok := errors.AsType[*cluster.APIError](err); ok && refused.Code == "404" {
		return unknownJob(f.job, f.queue)
	}
	if err != nil {
		return err
	}
	var j jobAnswer
	if err := json.Unmarshal(answer, &j); err != nil {
		return unreadable(err)
	}
	f.job = j.ID
	return nil
}

// unknownJob says how history still is found of a job whose key means nothing
// to the yard any more.
func unknownJob(key, queue string) error {
	p := &problem{
		what: fmt.Sprintf("the yard knows no job %q", key),
		do:   `name it by its id, or by "<queue>:<key>"`,
	}
	if before, after, ok := strings.Cut(key, ":"); ok && queue == "" && job.ValidQueue(before) == nil {
		queue, key = before, after
	}
	if id, err := job.KeyID(queue, key); err == nil && queue != "" {
		p.do = fmt.Sprintf("if it was there and is forgotten, its events are found with --job %s", id)
	}
	return p
}

// tale gives the wanted events of one message of history to fn.
func (f *eventFilter) tale(body []byte, fn func([]byte, *eventLine) error) error {
	var events []eventLine
	var lines [][]byte
	for line := range bytes.SplitSeq(body, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var e eventLine
		if err := json.Unmarshal(line, &e); err != nil {
			return unreadable(err)
		}
		e.findJob()
		events, lines = append(events, e), append(lines, line)
	}
	for i := range events {
		e := &events[i]
		// What a notice is followed by is about the same job, and names its queue.
		if e.Queue == "" && i+1 < len(events) && events[i+1].jobID == e.jobID {
			e.Queue = events[i+1].Queue
		}
		if !f.wants(e) {
			continue
		}
		if err := fn(lines[i], e); err != nil {
			return err
		}
	}
	return nil
}

// findJob learns which job an event is about, and its queue if that is said.
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
}

func (f *eventFilter) wants(e *eventLine) bool {
	switch {
	case e.At.Before(f.since.Truncate(time.Millisecond)),
		f.event != "" && plainName(e.Event) != f.event,
		f.job != "" && e.jobID != f.job,
		f.queue != "" && (e.jobID == "" || e.Queue != f.queue):
		return false
	}
	return true
}

func (e *eventLine) write(w io.Writer) error {
	about := e.Request
	if about == "" {
		about = e.Task
	}
	var rest strings.Builder
	for _, field := range []struct{ name, value string }{
		{"owner", e.Owner}, {"phase", e.Phase}, {"target", e.Target}, {"channel", e.Channel}, {"worker", e.Worker},
		{"reason", e.Reason}, {"recovery", e.Recovery}, {"lease_id", e.LeaseID}, {"leased_until", e.Until},
	} {
		if field.value != "" {
			fmt.Fprintf(&rest, " %s=%s", field.name, field.value)
		}
	}
	if e.Cursor != nil {
		fmt.Fprintf(&rest, " cursor=%s", *e.Cursor)
	}
	if len(e.Metadata) > 0 && string(e.Metadata) != "null" {
		fmt.Fprintf(&rest, " metadata=%s", e.Metadata)
	}
	_, err := fmt.Fprintf(w, "%s  %-8d %-19s %s\n", moment(&e.At), e.Number, e.Event, plain(or(about)+rest.String()))
	return err
}
