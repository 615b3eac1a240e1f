package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"

	"github.com/spf13/cobra"
)

func (a *app) jobVerbs() *cobra.Command {
	return group(&cobra.Command{
		Use:   "job <verb>",
		Short: "Show, explain, list, await, cancel, retry, replay and remove jobs, and read their logs",
		Long: `Looks at jobs and changes them. A job is named by its id, by "<queue>:<id>", or,
with --queue, by the key it was enqueued with.`,
		Example: `  yardmaster job list mail --state failed
  yardmaster job show order-7 --queue mail
  yardmaster job retry 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10
  yardmaster job replay order-7 --queue mail --wait`,
	}, a.jobShow(), a.jobExplain(), a.jobList(), a.jobWait(), a.jobLogs(), a.jobCancel(), a.jobRetry(), a.jobReplay(), a.jobRemove())
}

// named is the request that names a job.
func named(id, queue string) map[string]any {
	request := map[string]any{"id": id}
	if queue != "" {
		request["queue"] = queue
	}
	return request
}

func withQueue(c *cobra.Command, queue *string) *cobra.Command {
	c.Flags().StringVarP(queue, "queue", "q", "", "`queue` of the job, if it is named by its key")
	return c
}

func (a *app) jobShow() *cobra.Command {
	var queue string
	return withQueue(a.takesJSON(&cobra.Command{
		Use:     "show <job>",
		Short:   "Show all there is to know of a job",
		Example: `  yardmaster job show mail:0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10`,
		Args:    args("job"),
		RunE: func(c *cobra.Command, args []string) error {
			return show(c.Context(), a, cluster.SubjectAPI+".job.show", named(args[0], queue), jobTable)
		},
	}), &queue)
}

func (a *app) jobWait() *cobra.Command {
	var (
		queue   string
		longest time.Duration
	)
	c := withQueue(a.takesJSON(&cobra.Command{
		Use:   "wait <job>",
		Short: "Wait until a job has ended; exit with 1 if it failed",
		Long: `Waits until a job has ended, and shows it; exits with 1 if it failed. --for
limits the wait, and so does --timeout where no --for is given: after that time
the exit code is 1 too, and the job goes on.`,
		Example: `  yardmaster job wait order-7 --queue mail
  yardmaster job wait order-7 --queue mail --for 30s`,
		Args: args("job"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := validFor(c, longest); err != nil {
				return err
			}
			if c.Flags().Changed("timeout") && !c.Flags().Changed("for") {
				longest = a.timeout
			}
			y, err := a.dial(c.Context())
			if err != nil {
				return err
			}
			defer y.Close()
			return a.await(c.Context(), y, waitFor{id: args[0], queue: queue, longest: longest})
		},
	}), &queue)
	c.Flags().DurationVar(&longest, "for", 0, "longest `time` to wait; exit with 1 after it (default --timeout if given, else until the job has ended)")
	return c
}

func (a *app) jobList() *cobra.Command {
	var (
		state    string
		page     int
		pageSize int
	)
	c := a.takesJSON(&cobra.Command{
		Use:     "list <queue>",
		Aliases: []string{"ls"},
		Short:   "List a queue's jobs, oldest first",
		Long: `Lists a page of a queue's jobs in one state, oldest first; without --state, the
first page of each state.`,
		Example: `  yardmaster job list mail
  yardmaster job list mail --state failed --page 2`,
		Args: args("queue"),
		RunE: func(c *cobra.Command, given []string) error {
			if _, known := job.ParseState(state); state != "" && !known {
				return usage(c, fmt.Sprintf("--state is %q: must be one of %s", state, strings.Join(listed, ", ")))
			}
			if page < 1 || pageSize < 1 {
				return usage(c, "--page and --page-size count from 1")
			}
			if page > 1 && state == "" {
				return usage(c, "--page needs a --state: pages are counted in one")
			}
			return a.listJobs(c, given[0], state, page, pageSize)
		},
	})
	c.Flags().StringVar(&state, "state", "", "`state`: "+strings.Join(listed, ", "))
	c.Flags().IntVar(&page, "page", 1, "`number` of the page")
	c.Flags().IntVar(&pageSize, "page-size", 20, "most jobs on a page")
	return c
}

// listed are the states a job in the ledger can have, in the order they are
// shown.
var listed = []string{"active", "waiting", "delayed", "failed", "completed"}

func (a *app) listJobs(c *cobra.Command, queue, state string, page, pageSize int) error {
	request := map[string]any{"queue": queue, "state": state, "page": page, "page_size": pageSize}
	if state != "" {
		return show(c.Context(), a, cluster.SubjectAPI+".job.list", request, jobsTable)
	}
	y, err := a.dial(c.Context())
	if err != nil {
		return err
	}
	defer y.Close()
	all := struct {
		Queue string            `json:"queue"`
		Jobs  []json.RawMessage `json:"jobs"`
	}{Queue: queue, Jobs: []json.RawMessage{}}
	for _, state := range listed {
		request["state"] = state
		answer, err := y.ask(c.Context(), cluster.SubjectAPI+".job.list", request)
		if err != nil {
			return err
		}
		var part struct {
			Jobs []json.RawMessage `json:"jobs"`
		}
		if err := json.Unmarshal(answer, &part); err != nil {
			return unreadable(err)
		}
		all.Jobs = append(all.Jobs, part.Jobs...)
	}
	merged, err := json.Marshal(all)
	if err != nil {
		return unreadable(err)
	}
	return print(a, merged, jobsTable)
}

func jobsTable(w io.Writer, s *jobsAnswer) {
	if len(s.Jobs) == 0 {
		fmt.Fprintln(w, "no jobs")
		return
	}
	fmt.Fprint(w, "JOB\tSTATE\tFUNCTION\tATTEMPT\tCREATED\tNOTE\n")
	for i := range s.Jobs {
		j := &s.Jobs[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", j.ID, j.State, or(j.Function), attempt(j), moment(j.Created), note(j))
	}
}

func attempt(j *jobAnswer) string {
	if j.MaxAttempts == 0 {
		return fmt.Sprint(j.Attempts)
	}
	return fmt.Sprintf("%d of %d", j.Attempts, j.MaxAttempts)
}

// note is what matters most of a job in its state.
func note(j *jobAnswer) string {
	switch j.State {
	case "active":
		return fmt.Sprintf("on %s, %s", or(j.Node), or(j.Worker))
	case "delayed":
		return "due " + moment(j.RunAt)
	case "failed":
		return or(j.Reason)
	case "completed":
		return "ended " + moment(j.Ended)
	}
	return "-"
}

func moment(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// jobTable shows one job, leaving out what it has not.
func jobTable(out io.Writer, j *jobAnswer) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	defer w.Flush()
	row := func(name, value string) {
		if value != "" && value != "-" && value != "null" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	row("job", j.ID)
	row("queue", j.Queue)
	row("state", j.State)
	row("function", j.Function)
	row("reason", j.Reason)
	row("waiting because", j.Because)
	row("error", string(j.Error))
	row("result", value(j.Result, j.ResultMsgpack))
	if j.ResultGone {
		row("result", "gone: it was kept no longer")
	}
	row("params", value(j.Params, j.Payload))
	if j.PayloadGone {
		row("params", "gone: their record has been reclaimed")
	}
	row("priority", fmt.Sprint(j.Priority))
	row("attempts", attempt(j))
	if j.Dispatches > 0 {
		row("dispatches", dispatches(j))
	}
	row("timeout", milliseconds(j.TimeoutMS))
	row("retry interval", milliseconds(j.RetryInterval))
	row("result kept", milliseconds(j.ResultTTLMS))
	row("created", moment(j.Created))
	row("due", moment(j.RunAt))
	row("started", moment(j.Started))
	row("ended", moment(j.Ended))
	row("node", j.Node)
	row("worker", j.Worker)
	row("lease until", moment(j.Lease))
	row("progress", progress(j.Progress))
	for _, name := range sortedKeys(j.Trace) {
		row("trace "+name, j.Trace[name])
	}
	row("record", fmt.Sprintf("lane %d, sequence %d", j.Lane, j.Seq))
}

// progress is what a worker said last of the job it runs.
func progress(p *progressAnswer) string {
	if p == nil {
		return ""
	}
	said := value(p.Data, p.DataMsgpack)
	switch {
	case p.Percent == nil:
		return said
	case said == "":
		return fmt.Sprintf("%d %%", *p.Percent)
	}
	return fmt.Sprintf("%d %%, %s", *p.Percent, said)
}

func dispatches(j *jobAnswer) string {
	if j.Losses == 0 {
		return fmt.Sprint(j.Dispatches)
	}
	return fmt.Sprintf("%d, %d of them lost", j.Dispatches, j.Losses)
}

// value shows JSON as it is, and MessagePack, which a terminal cannot show, in
// Base64.
func value(text json.RawMessage, msgpack []byte) string {
	if len(msgpack) > 0 {
		return "MessagePack in Base64: " + base64.StdEncoding.EncodeToString(msgpack)
	}
	return string(text)
}

func milliseconds(ms int64) string {
	if ms == 0 {
		return ""
	}
	return (time.Duration(ms) * time.Millisecond).String()
}
