package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/operations"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

// cancelFlags are the flags of 'job cancel'. Except for queue they exclude job names.
type cancelFlags struct {
	queue, state, function string
	all, dryRun            bool
	many                   operations.Flags
}

// cancellable lists the states of jobs that have not ended. Active jobs come
// last: cancelling them first would free slots that waiting jobs would take.
var cancellable = []string{"waiting", "delayed", "active"}

// jobCancel returns the verb 'job cancel'.
func jobCancel(env *command.Env) *cobra.Command {
	var f cancelFlags
	c := withQueue(env.WithJSON(&cobra.Command{
		Use:   "cancel [job]...",
		Short: "Cancel jobs that have not ended",
		Long: `Cancels jobs that have not ended. A waiting job never starts. A running job is
asked to stop and ends as cancelled; a runner that does not stop is killed. If it
completes first, it is completed. A cancelled job leaves no dead letter. While its
params are stored, 'yardmaster job retry' and 'job replay' run it again.

Without job names, --query selects the jobs: the yard cancels them by an operation,
however many they are. Or --queue with --state, --function or --all selects them:
this program cancels them. Jobs that end while it runs are left as they are; jobs
enqueued while it runs are cancelled too.`,
		Example: `  yardmaster job cancel order-7 --queue mail
  yardmaster job cancel --queue mail --state waiting --function send --dry-run
  yardmaster job cancel --queue mail --all
  yardmaster job cancel --query 'queue:mail customer:acme created:<1d' --dry-run`,
	}), &f.queue)
	f.many.Add(c, &f.dryRun)
	flags := c.Flags()
	flags.StringVar(&f.state, "state", "", "only jobs in this `state`: "+strings.Join(cancellable, ", "))
	flags.StringVar(&f.function, "function", "", "only jobs that call this `function`")
	flags.BoolVar(&f.all, "all", false, "all jobs of the queue that have not ended")
	flags.BoolVarP(&f.dryRun, "dry-run", "n", false, "show which jobs would be cancelled, without changing anything")
	c.RunE = func(c *cobra.Command, jobs []string) error {
		if given, err := f.many.Start(c, env, jobs, api.OperationStart{Action: "cancel"}); given {
			return err
		}
		if err := f.check(c, len(jobs) > 0); err != nil {
			return err
		}
		if len(jobs) > 0 {
			return requestEach(c.Context(), env, "job-cancel", jobRequests(jobs, f.queue), cancelledLine)
		}
		return cancelFiltered(c.Context(), env, &f)
	}
	return c
}

// check returns a usage error unless the flags of c select jobs. hasNames is whether
// the arguments of c name jobs.
func (f *cancelFlags) check(c *cobra.Command, hasNames bool) error {
	hasFilter := f.state != "" || f.function != ""
	switch {
	case hasNames && (hasFilter || f.all || f.dryRun):
		return usererror.Usage(c, "--state, --function, --all and --dry-run exclude job names")
	case hasNames:
		return nil
	case f.queue == "":
		return usererror.Usage(c, "no jobs are named: name some, or a --queue with --state, --function or --all")
	case !hasFilter && !f.all:
		return usererror.Usage(c, "no jobs are named: name some, give --state or --function, or --all for the whole queue")
	case f.all && hasFilter:
		return usererror.Usage(c, "--all excludes --state and --function")
	case f.state != "" && !slices.Contains(cancellable, f.state):
		return usererror.Usage(c, "--state is %q: must be one of %s", f.state, strings.Join(cancellable, ", "))
	}
	return nil
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

// cancelFiltered cancels the jobs that f selects, until a list of them has no new ones,
// and shows them. With --dry-run it only shows them.
func cancelFiltered(ctx context.Context, env *command.Env, f *cancelFlags) error {
	var jobs []cancelResult
	listed := map[string]bool{}
	for range maxListPasses {
		newJobs, err := f.list(ctx, env, listed)
		if err == nil && !f.dryRun {
			err = cancelAll(ctx, env, newJobs)
		}
		jobs = append(jobs, newJobs...)
		if err != nil && len(jobs) == 0 && !env.JSON {
			return err // rather than report an empty list
		}
		if err != nil || f.dryRun || len(newJobs) == 0 {
			return errors.Join(printCancelled(env, f, jobs), err)
		}
	}
	return printCancelled(env, f, jobs)
}

// cancelResult is a job and the result of its cancellation.
type cancelResult struct {
	ID     string `json:"id"`
	State  string `json:"state"`
	Result string `json:"result"` // "cancelled", "ended", or "" if not tried or unknown
}

// list returns the jobs that f selects and whose ids are not in listed, and adds their
// ids to listed.
func (f *cancelFlags) list(ctx context.Context, env *command.Env, listed map[string]bool) (jobs []cancelResult, err error) {
	for _, state := range cancellable {
		if f.state != "" && f.state != state {
			continue
		}
		selected := listFlags{queues: []string{f.queue}, states: []string{state}, function: f.function, oldest: true, limit: math.MaxInt, brief: true}
		list, err := selected.list(ctx, env)
		if err != nil {
			return nil, err
		}
		for _, text := range list.Jobs {
			j, err := connect.Decode[api.Job](text, nil)
			if err != nil {
				return nil, err
			}
			if id := j.ID.String(); !listed[id] {
				listed[id] = true
				jobs = append(jobs, cancelResult{ID: id, State: j.State})
			}
		}
	}
	return jobs, nil
}

// maxParallelCancels is the number of concurrent requests. The authority puts
// concurrent cancellations into one log entry.
const maxParallelCancels = 32

// cancelAll cancels jobs concurrently and sets their results. It stops at the first
// error that is not specific to one job, and returns that error.
func cancelAll(ctx context.Context, env *command.Env, jobs []cancelResult) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxParallelCancels)
	for i := range jobs {
		group.Go(func() error { return jobs[i].cancel(ctx, env) })
	}
	return group.Wait()
}

// cancel requests the cancellation of the job and sets its state and result. It returns
// no error for a job that has ended or does not exist.
func (r *cancelResult) cancel(ctx context.Context, env *command.Env) error {
	reply, err := connect.Decode[api.JobChanged](env.Send(ctx, api.Subject("job-cancel"), command.JobRequest(r.ID, "")))
	switch {
	case connect.Refused(err, api.CodeNotFound, api.CodeConflict) != nil:
		r.Result = "ended"
	case err != nil:
		return err
	default:
		r.Result, r.State = "cancelled", reply.State
	}
	return nil
}

// printCancelled shows jobs with the results of their cancellation as a list, and their
// number by result as a note.
func printCancelled(env *command.Env, f *cancelFlags, jobs []cancelResult) error {
	results, items := map[string]int{}, []json.RawMessage{}
	for _, j := range jobs {
		j.Result = cmp.Or(j.Result, "not done")
		if f.dryRun {
			j.Result = "would be cancelled"
		}
		results[j.Result]++
		text, err := json.Marshal(j)
		if err != nil {
			return err
		}
		items = append(items, text)
	}

	list := &command.List{Env: env, Titles: "JOB\tSTATE\tRESULT", Name: "jobs"}
	err := command.WriteItems(list, items, func(w io.Writer, j *cancelResult) { command.Row(w, j.ID, j.State, j.Result) })
	if err = errors.Join(err, list.End("no such jobs")); err != nil || env.JSON || len(jobs) == 0 {
		return err
	}
	env.Note("%s", command.Counts(results))
	return nil
}
