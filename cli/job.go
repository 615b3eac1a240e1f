package cli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

func (a *app) jobVerbs() *cobra.Command {
	return group(&cobra.Command{
		Use:   "job <verb>",
		Short: "Show, list, explain, wait for, cancel, retry, replay and remove jobs; show their logs",
		Long: `Shows and changes jobs. A job is named by its id, by "<queue>:<id>", or, with
--queue, by the key it was enqueued with.`,
		Example: `  yardmaster job list mail --state failed
  yardmaster job show order-7 --queue mail
  yardmaster job retry 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10
  yardmaster job replay order-7 --queue mail --wait`,
	}, a.jobShow(), a.jobExplain(), a.jobList(), a.jobWait(), a.jobLogs(), a.jobCancel(), a.jobRetry(), a.jobReplay(), a.jobRemove())
}

// jobRequest returns the body of a request about one job.
func jobRequest(id, queue string) map[string]any {
	request := map[string]any{"id": id}
	if queue != "" {
		request["queue"] = queue
	}
	return request
}

// withQueue adds the flag --queue to c and returns c.
func withQueue(c *cobra.Command, queue *string) *cobra.Command {
	c.Flags().StringVarP(queue, "queue", "q", "", "`queue` of the job, if it is named by its key")
	return c
}

func (a *app) jobShow() *cobra.Command {
	var queue string
	return withQueue(a.withJSONFlag(&cobra.Command{
		Use:     "show <job>",
		Short:   "Show a job",
		Example: `  yardmaster job show mail:0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10`,
		Args:    takeArgs("job"),
		RunE: func(c *cobra.Command, args []string) error {
			return requestAndPrint(c.Context(), a, api.Subject("job-show"), jobRequest(args[0], queue), jobTable)
		},
	}), &queue)
}

func (a *app) jobWait() *cobra.Command {
	var (
		queue string
		limit time.Duration
	)
	c := withQueue(a.withJSONFlag(&cobra.Command{
		Use:   "wait <job>",
		Short: "Wait until a job has ended; exit with 1 if it failed",
		Long: `Waits until a job has ended and shows it; exits with 1 if it failed. --for, or
--timeout if --for is not given, limits the wait: after that time the command
exits with 1, and the job continues.`,
		Example: `  yardmaster job wait order-7 --queue mail
  yardmaster job wait order-7 --queue mail --for 30s`,
		Args: takeArgs("job"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := validateFor(c, limit); err != nil {
				return err
			}
			if c.Flags().Changed("timeout") && !c.Flags().Changed("for") {
				limit = a.timeout
			}
			cl, err := a.dial(c.Context())
			if err != nil {
				return err
			}
			defer cl.Close()
			return a.await(c.Context(), cl, waitRequest{id: args[0], queue: queue, timeout: limit})
		},
	}), &queue)
	c.Flags().DurationVar(&limit, "for", 0, "longest `time` to wait; then exit with 1 (default --timeout if given, else no limit)")
	return c
}

func (a *app) jobList() *cobra.Command {
	var (
		state    string
		page     int
		pageSize int
	)
	c := a.withJSONFlag(&cobra.Command{
		Use:     "list <queue>",
		Aliases: []string{"ls"},
		Short:   "List a queue's jobs, oldest first",
		Long: `Lists one page of the queue's jobs in a state, oldest first; without --state, the
first page of every state.`,
		Example: `  yardmaster job list mail
  yardmaster job list mail --state failed --page 2`,
		Args: takeArgs("queue"),
		RunE: func(c *cobra.Command, given []string) error {
			if _, known := job.ParseState(state); state != "" && !known {
				return usageError(c, fmt.Sprintf("--state is %q: must be one of %s", state, strings.Join(listed, ", ")))
			}
			if page < 1 || pageSize < 1 {
				return usageError(c, "--page and --page-size must be at least 1")
			}
			if page > 1 && state == "" {
				return usageError(c, "--page requires --state")
			}
			return a.listJobs(c, given[0], state, page, pageSize)
		},
	})
	c.Flags().StringVar(&state, "state", "", "only jobs in this `state`: "+strings.Join(listed, ", "))
	c.Flags().IntVar(&page, "page", 1, "`number` of the page")
	c.Flags().IntVar(&pageSize, "page-size", 20, "largest number of jobs on a page")
	return c
}

// listed are the states of jobs in the ledger, in the order of display.
var listed = []string{"active", "waiting", "delayed", "failed", "completed"}

// listJobs shows a page of jobs, of one state or of each.
func (a *app) listJobs(c *cobra.Command, queue, state string, page, pageSize int) error {
	request := map[string]any{"queue": queue, "state": state, "page": page, "page_size": pageSize}
	if state != "" {
		return requestAndPrint(c.Context(), a, api.Subject("job-list"), request, jobsTable)
	}
	cl, err := a.dial(c.Context())
	if err != nil {
		return err
	}
	defer cl.Close()
	all := struct {
		Queue string            `json:"queue"`
		Jobs  []json.RawMessage `json:"jobs"`
	}{Queue: queue, Jobs: []json.RawMessage{}}
	for _, state := range listed {
		request["state"] = state
		answer, err := cl.request(c.Context(), api.Subject("job-list"), request)
		if err != nil {
			return err
		}
		var part struct {
			Jobs []json.RawMessage `json:"jobs"`
		}
		if err := json.Unmarshal(answer, &part); err != nil {
			return badReplyError(err)
		}
		all.Jobs = append(all.Jobs, part.Jobs...)
	}
	merged, err := json.Marshal(all)
	if err != nil {
		return badReplyError(err)
	}
	return printReply(a, merged, jobsTable)
}

func jobsTable(w io.Writer, s *api.JobPage) {
	if len(s.Jobs) == 0 {
		fmt.Fprintln(w, "no jobs")
		return
	}
	fmt.Fprint(w, "JOB\tSTATE\tFUNCTION\tATTEMPT\tCREATED\tNOTE\n")
	for i := range s.Jobs {
		j := &s.Jobs[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", j.ID, j.State, orDash(j.Function), attemptText(j), timeText(&j.Created), jobNote(j))
	}
}

func attemptText(j *api.Job) string {
	if j.MaxAttempts == 0 {
		return fmt.Sprint(j.Attempts)
	}
	return fmt.Sprintf("%d of %d", j.Attempts, j.MaxAttempts)
}

// jobNote returns the most important fact about a job in its state.
func jobNote(j *api.Job) string {
	switch j.State {
	case "active":
		return fmt.Sprintf("on %s, %s", orDash(j.Node), orDash(j.Worker))
	case "delayed":
		return "due " + timeText(&j.RunAt)
	case "failed":
		return orDash(j.Reason)
	case "completed":
		return "ended " + timeText(j.Ended)
	}
	return "-"
}

func timeText(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// jobTable shows one job, without empty fields.
func jobTable(out io.Writer, j *api.Job) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	defer w.Flush()
	row := func(name, value string) {
		if value != "" && value != "-" && value != "null" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	row("job", j.ID.String())
	row("queue", j.Queue)
	row("state", j.State)
	row("function", j.Function)
	row("reason", j.Reason)
	row("waiting because", j.Because)
	row("error", faultText(j.Error))
	row("result", valueText(j.Result, j.ResultMsgpack))
	if j.ResultGone {
		row("result", "gone: its retention time has passed")
	}
	row("params", valueText(j.Params, j.Payload))
	if j.PayloadGone {
		row("params", "gone: the record has been reclaimed")
	}
	row("priority", fmt.Sprint(j.Priority))
	row("attempts", attemptText(j))
	if j.Dispatches > 0 {
		row("dispatches", dispatchesText(j))
	}
	row("timeout", durationText(j.TimeoutMS))
	row("retry interval", durationText(j.RetryInterval))
	row("result kept", durationText(j.ResultTTL))
	row("created", timeText(&j.Created))
	row("due", timeText(&j.RunAt))
	row("started", timeText(j.Started))
	row("ended", timeText(j.Ended))
	row("node", j.Node)
	row("worker", j.Worker)
	row("lease until", timeText(j.Lease))
	row("progress", progressText(j.Progress))
	for _, name := range sortedKeys(j.Trace) {
		row("trace "+name, j.Trace[name])
	}
	row("record", fmt.Sprintf("lane %d, sequence %d", j.Lane, j.Seq))
}

// faultText returns a job's error as JSON, "" for nil.
func faultText(f *job.Fault) string {
	if f == nil {
		return ""
	}
	text, _ := json.Marshal(f) // cannot fail: what it holds was decoded from JSON
	return string(text)
}

// progressText returns the last progress that a worker reported.
func progressText(p *api.Progress) string {
	if p == nil {
		return ""
	}
	data := valueText(p.Data, p.DataMsgpack)
	switch {
	case p.Percent == nil:
		return data
	case data == "":
		return fmt.Sprintf("%d %%", *p.Percent)
	}
	return fmt.Sprintf("%d %%, %s", *p.Percent, data)
}

func dispatchesText(j *api.Job) string {
	if j.Losses == 0 {
		return fmt.Sprint(j.Dispatches)
	}
	return fmt.Sprintf("%d, %d of them lost", j.Dispatches, j.Losses)
}

// valueText returns a JSON value as it is, or a MessagePack value as Base64.
func valueText(text json.RawMessage, msgpack []byte) string {
	if len(msgpack) > 0 {
		return "MessagePack, as Base64: " + base64.StdEncoding.EncodeToString(msgpack)
	}
	return string(text)
}

func durationText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return (time.Duration(ms) * time.Millisecond).String()
}
