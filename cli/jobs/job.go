// Package jobs has the verbs for jobs, queues and cron entries.
package jobs

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/durationflag"
	"github.com/yardmaster-dev/yardmaster/cli/faults"
	"github.com/yardmaster-dev/yardmaster/cli/inspect"
	"github.com/yardmaster-dev/yardmaster/cli/operations"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// Verbs returns the verb job.
func Verbs(env *command.Env) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "job <verb>",
		Short: "Show, list, find, explain, wait for, change, cancel, retry, replay and remove jobs; show their events and logs",
		Long: `Shows and changes jobs. A job is named by its id, by "<queue>:<id>", by
"<queue>:<key>" with the key it was enqueued with, or by that key, with --queue
if several queues have such a job.`,
		Example: `  yardmaster job list --state failed
  yardmaster job show order-7 --queue mail
  yardmaster job retry 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10
  yardmaster job replay order-7 --queue mail --wait`,
	}, jobShow(env), jobResult(env), jobParams(env), jobExplain(env), jobList(env), jobFind(env), jobWait(env), jobLogs(env), jobErrors(env), inspect.JobHistory(env), jobCancel(env), jobSet(env), jobRetry(env), jobReplay(env), jobRemove(env))
}

// withQueue adds the flag --queue to c and returns c.
func withQueue(c *cobra.Command, queue *string) *cobra.Command {
	c.Flags().StringVarP(queue, "queue", "q", "", "`queue` of the job, if it is named by its key")
	return c
}

// jobVerb turns c into a verb that sends one request for each of the jobs that are its
// arguments and prints the replies by table, and returns c. endpoint is the last part of
// the endpoint's name.
func jobVerb[T any](env *command.Env, endpoint string, c *cobra.Command, table func(io.Writer, *T)) *cobra.Command {
	var queue string
	c.RunE = func(c *cobra.Command, jobs []string) error {
		return requestEach(c.Context(), env, "job-"+endpoint, jobRequests(jobs, queue), table)
	}
	return withQueue(env.WithJSON(c), &queue)
}

// manyVerb is jobVerb for a verb that can also start an operation with an action.
func manyVerb[T any](env *command.Env, endpoint string, c *cobra.Command, table func(io.Writer, *T)) *cobra.Command {
	c = jobVerb(env, endpoint, c, table)
	var many operations.Flags
	many.Add(c, nil)
	each := c.RunE
	c.RunE = func(c *cobra.Command, jobs []string) error {
		given, err := many.Start(c, env, jobs, api.OperationStart{Action: endpoint})
		switch {
		case given:
			return err
		case len(jobs) == 0:
			return usererror.Usage(c, "no jobs are named: name some, or give --query")
		case c.Flags().Changed("dry-run"):
			return usererror.Usage(c, "--dry-run is for --query")
		}
		return each(c, jobs)
	}
	return c
}

// jobRequests returns the body of a request for each of several jobs. queue is that of
// jobs that are named by their key, or "".
func jobRequests(jobs []string, queue string) []map[string]any {
	requests := make([]map[string]any, len(jobs))
	for i, name := range jobs {
		requests[i] = command.JobRequest(name, queue)
	}
	return requests
}

// requestEach sends requests to an endpoint, one after the other, and prints the
// replies. It stops at the first error.
func requestEach[T any](ctx context.Context, env *command.Env, endpoint string, requests []map[string]any, table func(io.Writer, *T)) error {
	for _, request := range requests {
		if err := command.Request(ctx, env, api.Subject(endpoint), request, table); err != nil {
			return refusedFor("job", fmt.Sprint(request["id"]), err)
		}
	}
	return nil
}

// refusedFor returns err with the name of a job or queue in front. It returns err unchanged if
// err already names the job or queue, or is not a refusal because of its state or absence.
// kind is "job" or "queue".
func refusedFor(kind, name string, err error) error {
	refused := connect.Refused(err, api.CodeNotFound, api.CodeConflict)
	if refused == nil {
		return err
	}
	words := strings.Fields(refused.Text)
	for i := 1; i < len(words); i++ {
		word := strings.Trim(words[i], `":,;`)
		if words[i-1] == kind && (word == name || word == name[strings.LastIndexByte(name, ':')+1:]) {
			return err
		}
	}
	named := *refused
	named.Text = kind + " " + name + ": " + refused.Text
	return &named
}

// jobShow returns the verb 'job show'.
func jobShow(env *command.Env) *cobra.Command {
	return jobVerb(env, "show", &cobra.Command{
		Use:     "show <job>",
		Short:   "Show a job",
		Example: `  yardmaster job show mail:0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10`,
	}, jobTable)
}

// jobWait returns the verb 'job wait'.
func jobWait(env *command.Env) *cobra.Command {
	var (
		queue string
		limit time.Duration
	)
	c := withQueue(env.WithJSON(&cobra.Command{
		Use:   "wait <job>",
		Short: "Wait until a job has ended; exit with 1 if it failed",
		Long: `Waits until a job has ended and shows it; exits with 1 if it failed. --for, or
--timeout if --for is not given, limits the wait: after that time the command
exits with 5, and the job continues.`,
		Example: `  yardmaster job wait order-7 --queue mail
  yardmaster job wait order-7 --queue mail --for 30s`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkFor(c, limit); err != nil {
				return err
			}
			if c.Flags().Changed("timeout") && !c.Flags().Changed("for") {
				limit = env.Timeout
			}
			if _, err := env.Dial(c.Context()); err != nil { // before requests are sent concurrently
				return err
			}
			return await(c.Context(), env, waitRequest{id: args[0], queue: queue, limit: limit})
		},
	}), &queue)
	durationflag.Var(c.Flags(), &limit, "for", 0, "longest `time` to wait; then exit with 5 (default --timeout if given, else no limit)")
	return c
}

// attemptText returns the number of a job's attempts, and of how many it has at most if
// the job sets that.
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
		return fmt.Sprintf("on %s, %s", command.OrDash(j.Node), command.OrDash(j.Worker))
	case "delayed":
		return "due " + command.TimeText(&j.RunAt)
	case "failed", "expired":
		return command.OrDash(j.Reason)
	case "cancelled":
		return command.OrDash(cancellationText(j.Cancellation))
	case "completed":
		return "ended " + command.TimeText(j.Ended)
	}
	return "-"
}

// jobTable shows one job, without empty fields.
func jobTable(out io.Writer, j *api.Job) {
	w := command.Table(out)
	defer func() {
		w.Flush() // out is in memory
		writeError(out, j.Error)
	}()
	row := command.Fields(w)
	row("job", j.ID.String())
	row("key", j.Key)
	row("queue", j.Queue)
	row("state", j.State)
	row("function", j.Function)
	row("reason", j.Reason)
	row("cancelled", cancellationText(j.Cancellation))
	row("waiting because", j.Because)
	row("error", faults.Line(j.Error))
	row("result", valueText(j.Result, j.ResultMsgpack))
	row("result", resultNote(j))
	row("params", valueText(j.Params, j.Payload))
	if j.PayloadGone {
		row("params", "gone: the record has been reclaimed")
	}
	if j.PayloadBytes > 0 {
		row("params", fmt.Sprintf("%d bytes; 'yardmaster job params %s' prints them", j.PayloadBytes, j.ID))
	}
	row("priority", fmt.Sprint(j.Priority))
	row("attempts", attemptText(j))
	if j.Dispatches > 0 {
		row("dispatches", dispatchesText(j))
	}
	row("timeout", durationText(j.TimeoutMS))
	row("retry interval", durationText(j.RetryInterval))
	row("expires", command.TimeText(j.Expires))
	row("limit key", j.LimitKey)
	for _, name := range command.SortedKeys(j.Limits) {
		row("limit "+name, cmp.Or(j.Limits[name], "under its limit key"))
	}
	row("tags", strings.Join(j.Tags, ", "))
	for _, name := range command.SortedKeys(j.Meta) {
		row("meta "+name, j.Meta[name])
	}
	if j.RetryOnTimeout != nil {
		row("retry on timeout", strconv.FormatBool(*j.RetryOnTimeout))
	}
	row("result kept", durationText(j.ResultTTL))
	row("created", command.TimeText(&j.Created))
	row("due", command.TimeText(&j.RunAt))
	row("started", command.TimeText(j.Started))
	row("ended", command.TimeText(j.Ended))
	row("node", j.Node)
	row("worker", j.Worker)
	row("lease until", command.TimeText(j.Lease))
	row("progress", progressText(j.Progress))
	for _, name := range command.SortedKeys(j.Trace) {
		row("trace "+name, j.Trace[name])
	}
	row("record", job.Position{Lane: j.Lane, Seq: j.Seq, Index: j.Index}.String())
	switch {
	case j.LetterGone:
		row("dead letter", fmt.Sprintf("%d, which was requeued or removed ('yardmaster job history') or evicted ('yardmaster retention show': failed.*)", j.DeadLetter))
	case j.DeadLetter > 0:
		row("dead letter", fmt.Sprint(j.DeadLetter))
	}
}

// resultNote returns why a job's result is not shown. It returns "" for a result that is
// shown, and for a job without a result.
func resultNote(j *api.Job) string {
	gone := map[string]string{
		"result_expired": "its retention time has passed",
		"result_evicted": "newer results took its place",
		"result_dropped": "it was not kept: " + j.ResultReason,
	}
	switch {
	case j.ResultGone != "":
		return fmt.Sprintf("gone, %d bytes: %s (%s)", j.ResultBytes, cmp.Or(gone[j.ResultGone], "no reason is known"), j.ResultGone)
	case j.ResultBytes > 0 && len(j.Result) == 0 && len(j.ResultMsgpack) == 0:
		return fmt.Sprintf("%d bytes; 'yardmaster job result %s' prints it", j.ResultBytes, j.ID)
	}
	return ""
}

// writeError writes the error of a job's last attempt in lines, unless its row in the table shows all of it.
func writeError(out io.Writer, f *job.Fault) {
	if f == nil || len(f.Details) == 0 && len(f.Message) <= maxErrorLine && !strings.Contains(f.Message, "\n") {
		return
	}
	command.Printf(out, "\nerror of the last attempt\n")
	faults.Write(out, "  ", f)
}

// maxErrorLine is the longest message, in bytes, that is shown in the table only.
const maxErrorLine = 1000

// cancellationText returns when and why a job was cancelled, and the actor; "" for nil.
func cancellationText(c *job.Cancellation) string {
	if c == nil {
		return ""
	}
	text := command.TimeText(&c.At)
	if c.Actor != "" {
		text += fmt.Sprintf(" by %s over %s", c.Actor, c.Door)
	}
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	return text
}

// progressText returns the last progress that a worker reported: the percentage, the
// data, or both; "" for nil.
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
	return duration.Format(time.Duration(ms) * time.Millisecond)
}
