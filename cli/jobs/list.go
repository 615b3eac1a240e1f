package jobs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// jobList returns the verb 'job list'.
func jobList(env *command.Env) *cobra.Command {
	var f listFlags
	c := env.WithJSON(&cobra.Command{
		Use:     "list",
		Args:    cobra.ArbitraryArgs, // queues, as in earlier releases
		Aliases: []string{"ls"},
		Short:   "List jobs, newest first",
		Long: `Lists jobs of all queues, or of those named by --queue, in the order in which they were
accepted, newest first. A job is shown with the key it was enqueued with and the
beginning of its params, as long as its record is stored; a UUID as a key is the
job's id. 'job show' and 'job params' show all of the params.

A line at the end has the number of jobs of these queues in each state, whatever the
other filters, and --after for the next page. Jobs that change their state, or are
accepted, in the meantime do not move others to another page.`,
		Example: `  yardmaster job list
  yardmaster job list --queue mail,post --state failed,cancelled
  yardmaster job list --function send --oldest --limit 100`,
		RunE: func(c *cobra.Command, args []string) error {
			for _, state := range f.states {
				if !slices.Contains(jobStates, state) {
					return usererror.Usage(c, "--state is %q: must be some of %s", state, strings.Join(jobStates, ", "))
				}
			}
			if f.limit < 1 {
				return usererror.Usage(c, "--limit must be at least 1")
			}
			if len(args) > 0 {
				env.NoteDeprecated("the queue as an argument", "--queue")
				f.queues = append(f.queues, args...)
			}
			return listJobs(c.Context(), env, &f)
		},
	})
	c.Flags().StringSliceVarP(&f.queues, "queue", "q", []string{}, "only jobs of these `queues`")
	c.Flags().StringSliceVar(&f.states, "state", nil, "only jobs in these `states`: "+strings.Join(jobStates, ", "))
	c.Flags().StringVar(&f.function, "function", "", "only jobs of this `function`")
	c.Flags().BoolVar(&f.oldest, "oldest", false, "oldest first")
	c.Flags().IntVar(&f.limit, "limit", 20, "largest `number` of jobs to list")
	c.Flags().StringVar(&f.after, "after", "", "continue after the page that showed this `cursor`")
	return c
}

// listFlags are the arguments and flags of 'job list', and of lists within other verbs.
type listFlags struct {
	queues   []string // empty means all
	states   []string // empty means all
	function string
	oldest   bool
	limit    int
	after    string
	brief    bool // without keys and params
}

// jobStates are the states of jobs in the ledger, in the order of display.
var jobStates = []string{"active", "waiting", "delayed", "failed", "cancelled", "expired", "completed"}

// jobPage is an [api.JobList] whose jobs are JSON.
type jobPage struct {
	Jobs    []json.RawMessage `json:"jobs"`
	Next    string            `json:"next,omitempty"`
	Totals  map[string]int    `json:"totals"`
	KeptMS  int64             `json:"kept_ms,omitempty"`
	Lacking string            `json:"lacking,omitempty"`
}

// maxListRequest is the largest number of jobs that one request may ask for.
const maxListRequest = 1000

// list requests pages until there are as many jobs as the flags allow, or no more.
func (f *listFlags) list(ctx context.Context, env *command.Env) (list jobPage, err error) {
	list.Jobs = []json.RawMessage{}
	for next := f.after; ; {
		request := api.JobListRequest{
			Queues: f.queues, States: f.states, Function: f.function, After: next, Brief: f.brief,
			Limit: min(f.limit-len(list.Jobs), maxListRequest),
		}
		if f.oldest {
			request.Order = api.OrderOldest
		}
		page, err := connect.Decode[jobPage](env.Send(ctx, api.Subject("job-list"), request))
		if err != nil {
			return list, err
		}
		page.Jobs, page.Lacking = append(list.Jobs, page.Jobs...), cmp.Or(list.Lacking, page.Lacking)
		list = page
		if next = page.Next; next == "" || len(list.Jobs) >= f.limit {
			return list, nil
		}
	}
}

// listJobs shows the jobs that the flags select.
func listJobs(ctx context.Context, env *command.Env, f *listFlags) error {
	list, err := f.list(ctx, env)
	if err != nil {
		return err
	}
	if err := command.PrintValue(env, list, jobsTable); err != nil || env.JSON {
		return err
	}
	var totals []string
	for _, state := range jobStates {
		if n := list.Totals[state]; n > 0 {
			totals = append(totals, fmt.Sprint(n, " ", state))
		}
	}
	if len(totals) > 0 {
		env.Note("in all: %s", strings.Join(totals, ", "))
	}
	noteKept(env, list.KeptMS)
	if list.Lacking != "" {
		env.Note("jobs may be missing: they may be in %s", list.Lacking)
	}
	if list.Next != "" {
		env.Note("there are more: --after %s continues", list.Next)
	}
	return nil
}

// jobsTable shows jobs, one per line.
func jobsTable(w io.Writer, list *api.JobList) { jobRows(w, list.Jobs, "PARAMS", paramsCell) }

// jobRows shows jobs with a line for each, whose last cell is that of the given column.
func jobRows(w io.Writer, jobs []api.Job, last string, cell func(*api.Job) string) {
	if len(jobs) == 0 {
		command.Printf(w, "no jobs\n")
		return
	}
	command.Titles(w, "JOB\tQUEUE\tSTATE\tFUNCTION\tKEY\tATTEMPT\tCREATED\tNOTE\t"+last, last, "KEY", "ATTEMPT", "CREATED", "NOTE")
	for i := range jobs {
		j := &jobs[i]
		command.Row(w, j.ID, j.Queue, j.State, command.OrDash(j.Function), cut(command.OrDash(j.Key), maxListedKey), attemptText(j), command.TimeText(&j.Created), jobNote(j), cell(j))
	}
}

// The longest key and params in a list, in characters. 'job show' shows all of them.
const (
	maxListedKey    = 40
	maxListedParams = 60
)

// cut returns text with at most n characters.
func cut(text string, n int) string {
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n-1]) + "…"
}

// paramsCell returns the beginning of a job's params, or why they are not shown.
func paramsCell(j *api.Job) string {
	size := ""
	if j.PayloadBytes > 0 {
		size = fmt.Sprintf("%d bytes ", j.PayloadBytes)
	}
	switch {
	case j.PayloadGone:
		return "gone"
	case j.PayloadUnread != "":
		return "not read: " + j.PayloadUnread
	case len(j.Payload) > 0:
		return fmt.Sprintf("MessagePack, %d bytes", len(j.Payload))
	}
	text := j.ParamsStart
	if len(j.Params) > 0 {
		var compact bytes.Buffer
		if json.Compact(&compact, j.Params) == nil {
			text = compact.String()
		}
	}
	return strings.TrimSpace(size + cut(text, maxListedParams))
}
