package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// cancelFlags select jobs when none are named.
type cancelFlags struct {
	queue, state, function string
	all, dry               bool
}

// cancellable lists the states of jobs that have not ended. Active jobs come
// last: cancelling them first would free slots that waiting jobs would take.
var cancellable = []string{"waiting", "delayed", "active"}

func jobCancel(env *command.Env) *cobra.Command {
	var f cancelFlags
	c := withQueue(env.WithJSON(&cobra.Command{
		Use:   "cancel [job]...",
		Short: "Cancel jobs that have not ended; they end as failed",
		Long: `Cancels jobs that have not ended. A waiting job never starts. A running job is
asked to stop and ends as cancelled; a runner that does not stop is killed. A
cancelled job has failed with the reason "cancelled" and leaves a dead letter,
so 'yardmaster job retry' and 'dlq requeue' can still run it.

Without job names, --queue with --state, --function or --all selects the jobs.
Jobs that end while the command runs are left as they are; jobs enqueued while
it runs are cancelled too.`,
		Example: `  yardmaster job cancel order-7 --queue mail
  yardmaster job cancel --queue mail --state waiting --function send --dry-run
  yardmaster job cancel --queue mail --all`,
	}), &f.queue)
	flags := c.Flags()
	flags.StringVar(&f.state, "state", "", "only jobs in this `state`: "+strings.Join(cancellable, ", "))
	flags.StringVar(&f.function, "function", "", "only jobs that call this `function`")
	flags.BoolVar(&f.all, "all", false, "all jobs of the queue that have not ended")
	flags.BoolVarP(&f.dry, "dry-run", "n", false, "show which jobs would be cancelled, without changing anything")
	c.RunE = func(c *cobra.Command, jobs []string) error {
		filtered := f.state != "" || f.function != "" || f.all || f.dry
		switch {
		case len(jobs) > 0 && filtered:
			return usererror.Usage(c, "--state, --function, --all and --dry-run exclude job names")
		case len(jobs) > 0:
			return eachJob(env, c, "cancel", jobs, func(name string) any { return command.JobRequest(name, f.queue) }, cancelledLine)
		case f.queue == "":
			return usererror.Usage(c, "no jobs are named: name some, or a --queue with --state, --function or --all")
		case f.state == "" && f.function == "" && !f.all:
			return usererror.Usage(c, "no jobs are named: name some, give --state or --function, or --all for the whole queue")
		case f.all && (f.state != "" || f.function != ""):
			return usererror.Usage(c, "--all excludes --state and --function")
		case f.state != "" && !slices.Contains(cancellable, f.state):
			return usererror.Usage(c, "--state is %q: must be one of %s", f.state, strings.Join(cancellable, ", "))
		}
		return cancelFiltered(c.Context(), env, &f)
	}
	return c
}

// cancelledLine shows the state of a job after its cancellation. A job that
// runs is still active until its executor stops it.
func cancelledLine(w io.Writer, s *api.JobChanged) {
	if s.State == "active" {
		s.State = "active, stopping"
	}
	stateLine(w, s)
}

// maxListPasses limits how often jobs are listed. One pass may miss jobs that
// change their state, and so their position in the list, during it.
const maxListPasses = 10

// cancelFiltered lists and cancels the jobs that f selects until no new ones
// are found.
func cancelFiltered(ctx context.Context, env *command.Env, f *cancelFlags) error {
	if _, err := env.Dial(ctx); err != nil {
		return err
	}
	var jobs []cancelResult
	var err error
	seen := map[string]bool{}
	for range maxListPasses {
		var found []cancelResult
		if found, err = f.find(ctx, env, seen); err == nil && !f.dry {
			err = cancelAll(ctx, env, found)
		}
		jobs = append(jobs, found...)
		if err != nil || f.dry || len(found) == 0 {
			break
		}
	}
	return errors.Join(printCancelled(env, f, jobs), err)
}

// cancelResult is a job and the result of its cancellation.
type cancelResult struct {
	ID     string `json:"id"`
	State  string `json:"state"`
	Result string `json:"result"` // "cancelled", "ended", or "" if not tried or unknown
}

// find lists the jobs that f selects and that are not in seen, page by page,
// and adds them to seen.
func (f *cancelFlags) find(ctx context.Context, env *command.Env, seen map[string]bool) (jobs []cancelResult, err error) {
	const size = 500
	for _, state := range cancellable {
		if f.state != "" && f.state != state {
			continue
		}
		for page := 1; ; page++ {
			part, err := connect.Decode[api.JobPage](env.Send(ctx, api.Subject("job-list"), map[string]any{
				"queue": f.queue, "state": state, "page": page, "page_size": size, "brief": true,
			}))
			if err != nil {
				return nil, err
			}
			for i := range part.Jobs {
				j := &part.Jobs[i]
				if id := j.ID.String(); !seen[id] && (f.function == "" || j.Function == f.function) {
					seen[id] = true
					jobs = append(jobs, cancelResult{ID: id, State: j.State})
				}
			}
			if len(part.Jobs) < size {
				break
			}
		}
	}
	return jobs, nil
}

// maxParallelCancels is the number of concurrent requests. The authority puts
// concurrent cancellations into one log entry.
const maxParallelCancels = 32

// cancelAll cancels jobs and sets their results. It stops at the first error
// that is not specific to one job.
func cancelAll(ctx context.Context, env *command.Env, jobs []cancelResult) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	next := make(chan *cancelResult)
	var workers sync.WaitGroup
	for range maxParallelCancels {
		workers.Go(func() {
			for j := range next {
				answer, err := env.Send(ctx, api.Subject("job-cancel"), command.JobRequest(j.ID, ""))
				var now api.JobChanged
				switch {
				case connect.Refused(err, api.CodeNotFound, api.CodeConflict) != nil:
					j.Result = "ended"
				case err != nil:
					stop(err)
				case json.Unmarshal(answer, &now) == nil:
					j.Result, j.State = "cancelled", now.State
				}
			}
		})
	}
	for i := range jobs {
		select {
		case next <- &jobs[i]:
		case <-ctx.Done():
		}
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}

func printCancelled(env *command.Env, f *cancelFlags, jobs []cancelResult) error {
	list := &command.List{Env: env, Head: "JOB\tSTATE\tRESULT\n", Name: "jobs"}
	results, part := map[string]int{}, []json.RawMessage{}
	for _, j := range jobs {
		if j.Result == "" {
			j.Result = "not done"
		}
		if f.dry {
			j.Result = "would be cancelled"
		}
		results[j.Result]++
		text, err := json.Marshal(j)
		if err != nil {
			return err
		}
		part = append(part, text)
	}
	err := command.WriteItems(list, part, func(w io.Writer, j *cancelResult) { fmt.Fprintf(w, "%s\t%s\t%s\n", j.ID, j.State, j.Result) })
	if err = errors.Join(err, list.End("no such jobs")); err != nil || env.JSON || len(jobs) == 0 {
		return err
	}
	env.Note("%s", command.Counts(results))
	return nil
}
