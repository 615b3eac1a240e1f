package jobs

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/faults"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// jobExplain returns the verb 'job explain'.
func jobExplain(env *command.Env) *cobra.Command {
	return jobVerb(env, "explain", &cobra.Command{
		Use:   "explain <job>",
		Short: "Explain why a job does not run, when it will, or how it ended",
		Long: `Explains the state of a job in one sentence, followed by the facts: what the job
waits for and which jobs hold it up, where it runs, or how it ended; and by its
history. Any node can reply, even while there is no authority. docs/reference/readiness.md
lists the reason codes for programs that read --json.`,
		Example: `  yardmaster job explain order-7 --queue mail`,
	}, explainTable)
}

// queueExplain returns the verb 'queue explain'.
func queueExplain(env *command.Env) *cobra.Command {
	return queueQuery(env, "explain", &cobra.Command{
		Use:   "explain <queue>",
		Short: "Explain why a queue's jobs do or do not run",
		Long: `Explains in one sentence whether the jobs of a queue run and, if not, why; then
shows the number of jobs by state, the running and the next jobs, and the workers
and runners of each node.`,
		Example: `  yardmaster queue explain mail`,
	}, queueExplainTable)
}

// explainTable shows why a job does not run or how it ended: the verdict in one
// sentence, the facts, and the job's history.
func explainTable(out io.Writer, e *api.JobExplanation) {
	command.Printf(out, "%s\n\n", e.Verdict)
	w := command.Table(out)
	row := command.Fields(w)
	if !e.ID.IsZero() {
		row("job", e.ID.String())
	}
	row("queue", e.Queue)
	row("state", e.State)
	row("next at", command.TimeText(e.NextAt))
	if j := e.Job; j != nil {
		row("function", j.Function)
		row("priority", fmt.Sprint(j.Priority))
		row("attempts", attemptText(j))
		if j.Dispatches > 0 {
			row("dispatches", dispatchesText(j))
		}
		row("accepted", command.TimeText(&j.Created))
		row("started", command.TimeText(j.Started))
		row("ended", command.TimeText(j.Ended))
		row("lease until", command.TimeText(j.Lease))
		row("progress", progressText(j.Progress))
		row("error", faults.Line(j.Error))
	}
	row("result", e.Result)
	reasonRows(row, e.Reasons)
	observedRow(row, &e.Observed)
	w.Flush() // out is in memory
	if e.Job != nil {
		writeError(out, e.Job.Error)
	}
	writeHistory(out, e)
}

// reasonRows shows the reasons why jobs do not run, each with its data: the remaining
// time, the jobs that hold them up, and the workers and runners of each node.
func reasonRows(row func(name, value string), reasons []api.Reason) {
	for i := range reasons {
		r := &reasons[i]
		row("reason", string(r.Code)+": "+r.Text)
		if r.Data == nil {
			continue
		}
		if ms := r.Data.RemainingMS; ms > 0 {
			row("  remaining", duration.Format(time.Duration(ms)*time.Millisecond))
		}
		holderRows(row, "  holder", r.Data.Holders, r.Data.MoreHolders)
		executorRows(row, r.Data.Nodes)
	}
}

// holderRows shows the active jobs in holders, each in a row with the given name. If more
// is above 0, a last row shows it as the number of other jobs.
func holderRows(row func(name, value string), name string, holders []api.ActiveJob, more int) {
	for i := range holders {
		h := &holders[i]
		text := h.ID.String()
		if h.LimitKey != "" {
			text += fmt.Sprintf(" with key %q", h.LimitKey)
		}
		text += fmt.Sprintf(" of queue %s on %s, %s, since %s, attempt %d, until %s", h.Queue, h.Node, h.Channel, command.TimeText(&h.Since), h.Attempt, command.TimeText(&h.Deadline))
		if h.Stopping {
			text += ", stopping"
		}
		row(name, text)
	}
	if more > 0 {
		row(name, fmt.Sprintf("and %d more", more))
	}
}

// executorRows shows the workers and the runner pool of each node.
func executorRows(row func(name, value string), nodes []api.NodeExecutors) {
	for i := range nodes {
		n := &nodes[i]
		var parts []string
		if n.Error != "" {
			parts = append(parts, "no reply: "+n.Error)
		}
		if w := n.Workers; w != nil {
			text := fmt.Sprintf("workers %d, credits %d", w.Count, w.Credits)
			if w.Stalled > 0 {
				text += fmt.Sprintf(", stalled %d", w.Stalled)
			}
			parts = append(parts, text)
		}
		if p := n.Pool; p != nil {
			text := fmt.Sprintf("runner %s %d of %d up, %d of %d slots in use", p.Runner, p.Up, p.Size, p.InFlight, p.Slots)
			if p.CrashLooping > 0 {
				text += ", crash-looping"
			}
			if p.Reason != "" {
				text += ": " + p.Reason
			}
			parts = append(parts, text)
		}
		if len(parts) == 0 {
			parts = append(parts, "no workers and no runners")
		}
		row("  node "+n.Node, strings.Join(parts, "; "))
	}
}

// observedRow shows which node made an explanation, and from which state of its ledger.
func observedRow(row func(name, value string), o *api.Provenance) {
	text := "node " + o.Node + ", ledger as of " + command.TimeText(&o.LedgerAt)
	if o.LedgerAt.Unix() <= 0 {
		text = "node " + o.Node + ", whose ledger is empty"
	}
	if !o.Certain {
		text += ": may be outdated, this node reaches no quorum"
	}
	row("observed by", text)
}

// writeHistory writes a job's acceptance and its events as a table. It skips an event
// that it cannot decode.
func writeHistory(out io.Writer, e *api.JobExplanation) {
	command.Printf(out, "\nhistory")
	if e.History.Note != "" {
		command.Printf(out, " (%s)", e.History.Note)
	}
	command.Printf(out, "\n")
	w := command.Table(out)
	if e.Job != nil {
		command.Printf(w, "%s\t-\taccepted\t%s\n", command.TimeText(&e.Job.Created), job.Position{Lane: e.Job.Lane, Seq: e.Job.Seq, Index: e.Job.Index})
	}
	for _, text := range e.History.Events {
		var line struct {
			Event, Target, Channel, Worker, Action, Actor, Door, Reason string
			Request                                                     string `json:"request_id"`
			At                                                          time.Time
		}
		if json.Unmarshal(text, &line) != nil {
			continue
		}
		dispatch := "-"
		if i := strings.LastIndexByte(line.Request, '#'); i >= 0 {
			dispatch = line.Request[i:]
		}
		facts := []string{line.Target, line.Channel, line.Worker, line.Reason}
		if line.Action != "" {
			facts = []string{line.Action, line.Target, "by", line.Actor, "over", line.Door, line.Reason}
		}
		facts = slices.DeleteFunc(facts, func(fact string) bool { return fact == "" })
		command.Row(w, command.TimeText(&line.At), dispatch, line.Event, strings.Join(facts, " "))
	}
	w.Flush() // out is in memory
}

// queueExplainTable shows why a queue's jobs do or do not run: the verdict in one
// sentence, and the facts.
func queueExplainTable(out io.Writer, e *api.QueueExplanation) {
	command.Printf(out, "%s\n\n", e.Verdict)
	w := command.Table(out)
	defer w.Flush()
	row := command.Fields(w)
	row("queue", e.Queue.Name)
	row("state", e.Queue.State)
	row("concurrency", concurrencyText(e.Queue.Limit))
	n := e.Queue.Counts
	row("jobs", fmt.Sprintf("%d waiting, %d delayed, %d active, %d completed, %d failed, %d cancelled, %d expired",
		n["waiting"], n["delayed"], n["active"], n["completed"], n["failed"], n["cancelled"], n["expired"]))
	if o := e.Oldest; o != nil {
		row("oldest", fmt.Sprintf("%s, waiting for %s", o.ID, duration.Format(time.Duration(o.AgeMS)*time.Millisecond)))
	}
	if d := e.NextDue; d != nil && d.ID != nil {
		row("next due", fmt.Sprintf("%s at %s", *d.ID, command.TimeText(&d.At)))
	} else if d != nil {
		row("next due", "not before "+command.TimeText(&d.At))
	}
	row("run by", executorText(e))
	reasonRows(row, e.Reasons)
	for i := range e.Heads {
		h := &e.Heads[i]
		text := fmt.Sprintf("%s of %d", h.ID, h.Count)
		if h.Function != "" {
			text += ", " + h.Function
		}
		if h.Key != "" {
			text += ", key " + h.Key
		}
		row("first", text)
		reasonRows(row, h.Reasons)
	}
	// A reason may already have shown the active jobs or the nodes.
	if !slices.ContainsFunc(e.Reasons, func(r api.Reason) bool { return r.Code == api.ReasonLimit }) {
		holderRows(row, "active", e.Active, e.MoreActive)
	}
	if !slices.ContainsFunc(e.Reasons, func(r api.Reason) bool { return r.Data != nil && len(r.Data.Nodes) > 0 }) {
		executorRows(row, e.Nodes)
	}
	observedRow(row, &e.Observed)
}

// executorText returns what runs the queue's jobs that name no runner.
func executorText(e *api.QueueExplanation) string {
	switch {
	case e.Workers == "":
		return "runner " + e.Runner
	case !slices.ContainsFunc(e.Nodes, func(n api.NodeExecutors) bool { return n.Pool != nil }):
		return "workers of queue " + e.Workers
	}
	return fmt.Sprintf("workers of queue %s; functions also by runner %s", e.Workers, e.Runner)
}
