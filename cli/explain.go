package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"yardmaster/cluster"

	"github.com/spf13/cobra"
)

// explainAnswer is why a job is where it is.
type explainAnswer struct {
	ID      string         `json:"id"`
	Queue   string         `json:"queue"`
	State   string         `json:"state"`
	Verdict string         `json:"verdict"`
	NextAt  *time.Time     `json:"next_at"`
	Reasons []reasonAnswer `json:"reasons"`
	Job     *jobAnswer     `json:"job"`
	Result  string         `json:"result"`
	History struct {
		Events   []json.RawMessage `json:"events"`
		Complete bool              `json:"complete"`
		Note     string            `json:"note"`
	} `json:"history"`
	Observed observedAnswer `json:"observed"`
}

type observedAnswer struct {
	Node     string     `json:"node"`
	LedgerAt *time.Time `json:"ledger_at"`
	Certain  bool       `json:"certain"`
}

type reasonAnswer struct {
	Code string `json:"code"`
	Text string `json:"text"`
	Data *struct {
		Holders     []holderAnswer `json:"holders"`
		MoreHolders int            `json:"more_holders"`
		Nodes       []handsAnswer  `json:"nodes"`
		RemainingMS int64          `json:"remaining_ms"`
		Lease       *time.Time     `json:"lease_until"`
	} `json:"data"`
}

type holderAnswer struct {
	ID       string     `json:"id"`
	Node     string     `json:"node"`
	Channel  string     `json:"channel"`
	Since    *time.Time `json:"since"`
	Attempt  int        `json:"attempt"`
	Deadline *time.Time `json:"deadline"`
	Stopping bool       `json:"stopping"`
}

// handsAnswer is what a member has to run jobs with.
type handsAnswer struct {
	Node    string `json:"node"`
	Error   string `json:"error"`
	Workers *struct {
		Count   int `json:"count"`
		Stalled int `json:"stalled"`
		Credits int `json:"credits"`
	} `json:"workers"`
	Pool *struct {
		Runner   string `json:"runner"`
		Size     int    `json:"size"`
		Up       int    `json:"up"`
		Slots    int    `json:"slots"`
		InFlight int    `json:"in_flight"`
		Looping  int    `json:"crash_looping"`
		Reason   string `json:"reason"`
	} `json:"pool"`
}

// queueExplainAnswer is why a queue's jobs run or do not.
type queueExplainAnswer struct {
	Queue   queueAnswer    `json:"queue"`
	Verdict string         `json:"verdict"`
	Reasons []reasonAnswer `json:"reasons"`
	Oldest  *struct {
		ID    string `json:"id"`
		AgeMS int64  `json:"age_ms"`
	} `json:"oldest"`
	NextDue *struct {
		ID *string    `json:"id"`
		At *time.Time `json:"at"`
	} `json:"next_due"`
	Heads []struct {
		ID       string         `json:"id"`
		Function string         `json:"function"`
		Count    int            `json:"count"`
		Reasons  []reasonAnswer `json:"reasons"`
	} `json:"heads"`
	Active     []holderAnswer `json:"active"`
	MoreActive int            `json:"more_active"`
	Workers    string         `json:"workers"`
	Runner     string         `json:"runner"`
	Nodes      []handsAnswer  `json:"nodes"`
	Observed   observedAnswer `json:"observed"`
}

func (a *app) jobExplain() *cobra.Command {
	var queue string
	return withQueue(a.takesJSON(&cobra.Command{
		Use:   "explain <job>",
		Short: "Tell why a job does not run, when it will, or how it ended",
		Long: `Tells in one sentence why a job is where it is, then what that goes by: what it
waits for and who holds it up, where it runs, or how it ended; and below that
its history. It is answered by any node, also while the yard cannot decide. The
codes of the reasons, for programs that read --json, are in docs/explain.md.`,
		Example: `  yardmaster job explain order-7 --queue mail`,
		Args:    args("job"),
		RunE: func(c *cobra.Command, args []string) error {
			return show(c.Context(), a, cluster.SubjectAPI+".job.explain", named(args[0], queue), explainTable)
		},
	}), &queue)
}

func (a *app) queueExplain() *cobra.Command {
	return a.takesJSON(&cobra.Command{
		Use:   "explain <queue>",
		Short: "Tell why a queue's jobs run or do not, and on whom they wait",
		Long: `Tells in one sentence whether a queue's jobs go on and if not, why; then how its
jobs stand, which run, which is next, and what each node has to run them with.`,
		Example: `  yardmaster queue explain mail`,
		Args:    args("queue"),
		RunE: func(c *cobra.Command, args []string) error {
			return show(c.Context(), a, cluster.SubjectAPI+".queue.explain", map[string]any{"name": args[0]}, queueExplainTable)
		},
	})
}

// explainTable shows the verdict, the facts, and the history.
func explainTable(out io.Writer, e *explainAnswer) {
	fmt.Fprintf(out, "%s\n\n", plain(e.Verdict))
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	row := rows(w)
	row("job", e.ID)
	row("queue", e.Queue)
	row("state", e.State)
	row("next at", moment(e.NextAt))
	if j := e.Job; j != nil {
		row("function", j.Function)
		row("priority", fmt.Sprint(j.Priority))
		row("attempts", attempt(j))
		if j.Dispatches > 0 {
			row("dispatches", dispatches(j))
		}
		row("accepted", moment(j.Created))
		row("started", moment(j.Started))
		row("ended", moment(j.Ended))
		row("lease until", moment(j.Lease))
		row("progress", progress(j.Progress))
		row("error", string(j.Error))
	}
	row("result", e.Result)
	reasonRows(row, e.Reasons)
	observedRow(row, &e.Observed)
	w.Flush() // what it writes to is a buffer
	e.writeHistory(out)
}

// rows writes named values, leaving out what is not there.
func rows(w io.Writer) func(name, value string) {
	return func(name, value string) {
		if value != "" && value != "-" && value != "null" {
			fmt.Fprintf(w, "%s\t%s\n", name, plain(value))
		}
	}
}

// reasonRows shows reasons and what they go by.
func reasonRows(row func(name, value string), reasons []reasonAnswer) {
	for i := range reasons {
		r := &reasons[i]
		row("reason", r.Code+": "+r.Text)
		if r.Data == nil {
			continue
		}
		if ms := r.Data.RemainingMS; ms > 0 {
			row("  remaining", (time.Duration(ms) * time.Millisecond).String())
		}
		holderRows(row, "  holder", r.Data.Holders, r.Data.MoreHolders)
		handsRows(row, r.Data.Nodes)
	}
}

func holderRows(row func(name, value string), name string, holders []holderAnswer, more int) {
	for i := range holders {
		h := &holders[i]
		text := fmt.Sprintf("%s on %s, %s, since %s, attempt %d, until %s", h.ID, h.Node, h.Channel, moment(h.Since), h.Attempt, moment(h.Deadline))
		if h.Stopping {
			text += ", told to stop"
		}
		row(name, text)
	}
	if more > 0 {
		row(name, fmt.Sprintf("and %d more", more))
	}
}

// handsRows shows what each member has.
func handsRows(row func(name, value string), nodes []handsAnswer) {
	for i := range nodes {
		n := &nodes[i]
		var has []string
		if n.Error != "" {
			has = append(has, "not heard: "+n.Error)
		}
		if w := n.Workers; w != nil {
			text := fmt.Sprintf("workers %d, credits %d", w.Count, w.Credits)
			if w.Stalled > 0 {
				text += fmt.Sprintf(", stalled %d", w.Stalled)
			}
			has = append(has, text)
		}
		if p := n.Pool; p != nil {
			text := fmt.Sprintf("runner %s %d of %d up, %d of %d slots taken", p.Runner, p.Up, p.Size, p.InFlight, p.Slots)
			if p.Looping > 0 {
				text += ", crash-looping"
			}
			if p.Reason != "" {
				text += ": " + p.Reason
			}
			has = append(has, text)
		}
		if len(has) == 0 {
			has = append(has, "nothing")
		}
		row("  node "+n.Node, strings.Join(has, "; "))
	}
}

func observedRow(row func(name, value string), o *observedAnswer) {
	text := "node " + o.Node + ", ledger of " + moment(o.LedgerAt)
	if o.LedgerAt == nil || o.LedgerAt.Unix() <= 0 {
		text = "node " + o.Node + ", whose ledger is empty so far"
	}
	if !o.Certain {
		text += ": the yard may know more, this node hears no quorum"
	}
	row("as seen by", text)
}

func (e *explainAnswer) writeHistory(out io.Writer) {
	fmt.Fprint(out, "\nhistory")
	if e.History.Note != "" {
		fmt.Fprintf(out, " (%s)", plain(e.History.Note))
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	if e.Job != nil {
		fmt.Fprintf(w, "%s\t-\taccepted\tlane %d, sequence %d\n", moment(e.Job.Created), e.Job.Lane, e.Job.Seq)
	}
	for _, text := range e.History.Events {
		var line eventLine
		if json.Unmarshal(text, &line) != nil {
			continue
		}
		dispatch := "-"
		if i := strings.LastIndexByte(line.Request, '#'); i >= 0 {
			dispatch = line.Request[i:]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", moment(&line.At), dispatch, line.Event,
			plain(strings.TrimSpace(strings.Join([]string{line.Target, line.Channel, line.Worker, line.Reason}, " "))))
	}
	w.Flush() // what it writes to is a buffer
}

// queueExplainTable shows the verdict and the facts.
func queueExplainTable(out io.Writer, e *queueExplainAnswer) {
	fmt.Fprintf(out, "%s\n\n", plain(e.Verdict))
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	defer w.Flush()
	row := rows(w)
	row("queue", e.Queue.Name)
	row("state", e.Queue.State)
	row("limit", limitText(e.Queue.Limit))
	n := &e.Queue.Counts
	row("jobs", fmt.Sprintf("%d waiting, %d delayed, %d active, %d completed, %d failed", n.Waiting, n.Delayed, n.Active, n.Completed, n.Failed))
	if o := e.Oldest; o != nil {
		row("oldest", fmt.Sprintf("%s, waiting for %s", o.ID, time.Duration(o.AgeMS)*time.Millisecond))
	}
	if d := e.NextDue; d != nil && d.ID != nil {
		row("next due", fmt.Sprintf("%s at %s", *d.ID, moment(d.At)))
	} else if d != nil {
		row("next due", "not before "+moment(d.At))
	}
	row("run by", runBy(e))
	said := false // what each node has
	for i := range e.Reasons {
		said = said || e.Reasons[i].Data != nil && len(e.Reasons[i].Data.Nodes) > 0
	}
	reasonRows(row, e.Reasons)
	for i := range e.Heads {
		h := &e.Heads[i]
		text := fmt.Sprintf("%s of %d", h.ID, h.Count)
		if h.Function != "" {
			text += ", " + h.Function
		}
		row("first", text)
		reasonRows(row, h.Reasons)
	}
	if !slices.ContainsFunc(e.Reasons, func(r reasonAnswer) bool { return r.Code == "queue_limit" }) { // which shows them
		holderRows(row, "active", e.Active, e.MoreActive)
	}
	if !said {
		handsRows(row, e.Nodes)
	}
	observedRow(row, &e.Observed)
}

// runBy tells whom the queue's jobs go to that name no runner.
func runBy(e *queueExplainAnswer) string {
	switch {
	case e.Workers == "":
		return "runner " + e.Runner
	case !slices.ContainsFunc(e.Nodes, func(n handsAnswer) bool { return n.Pool != nil }):
		return "workers of queue " + e.Workers
	}
	return fmt.Sprintf("workers of queue %s; functions also by runner %s", e.Workers, e.Runner)
}
