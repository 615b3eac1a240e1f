package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"yardmaster/cluster"

	"github.com/spf13/cobra"
)

// cancelFlags say which jobs are meant where none are named.
type cancelFlags struct {
	queue, state, function string
	all, dry               bool
}

// cancellable are the states of jobs that have not ended. Those that wait come
// first: none of them is to start because another has left its place.
var cancellable = []string{"waiting", "delayed", "active"}

func (a *app) jobCancel() *cobra.Command {
	var f cancelFlags
	c := withQueue(a.takesJSON(&cobra.Command{
		Use:   "cancel [job]...",
		Short: "Stop jobs that have not ended; they end as failed",
		Long: `Stops jobs that have not ended: what waits never starts, and who runs one is told
to stop, and its outcome counts as cancelled; a runner that does not stop is
killed. A cancelled job has failed, with the reason "cancelled", and leaves a
dead letter: 'yardmaster job retry' and 'dlq requeue' run it after all.

Without names, --queue and --state, --function or --all say which jobs are
meant; those that end meanwhile by themselves are left as they are, and those
that come meanwhile are cancelled too.`,
		Example: `  yardmaster job cancel order-7 --queue mail
  yardmaster job cancel --queue mail --state waiting --function send --dry-run
  yardmaster job cancel --queue mail --all`,
	}), &f.queue)
	flags := c.Flags()
	flags.StringVar(&f.state, "state", "", "only jobs in this `state`: "+strings.Join(cancellable, ", "))
	flags.StringVar(&f.function, "function", "", "only jobs that call this `function`")
	flags.BoolVar(&f.all, "all", false, "all jobs of the queue that have not ended")
	flags.BoolVarP(&f.dry, "dry-run", "n", false, "change nothing, show which jobs would be cancelled")
	c.RunE = func(c *cobra.Command, jobs []string) error {
		filtered := f.state != "" || f.function != "" || f.all || f.dry
		switch {
		case len(jobs) > 0 && filtered:
			return usage(c, "--state, --function, --all and --dry-run are for jobs that are not named")
		case len(jobs) > 0:
			return eachJob(a, c, "cancel", jobs, func(name string) any { return named(name, f.queue) }, cancelledLine)
		case f.queue == "":
			return usage(c, "no jobs are named: name some, or a --queue with --state, --function or --all")
		case f.state == "" && f.function == "" && !f.all:
			return usage(c, "no jobs are named: name some, give --state or --function, or --all for the whole queue")
		case f.all && (f.state != "" || f.function != ""):
			return usage(c, "--all excludes --state and --function")
		case f.state != "" && !slices.Contains(cancellable, f.state):
			return usage(c, fmt.Sprintf("--state is %q: must be one of %s", f.state, strings.Join(cancellable, ", ")))
		}
		return a.cancelFiltered(c.Context(), &f)
	}
	return c
}

// cancelledLine shows how a job stands after it. One that somebody runs has not
// ended yet.
func cancelledLine(w io.Writer, s *stateAnswer) {
	if s.State == "active" {
		s.State = "active, told to stop"
	}
	stateLine(w, s)
}

// maxLooks is how often jobs are looked for: while some are listed and cancelled
// others change their state, and with it their place in the list.
const maxLooks = 10

// cancelFiltered looks for jobs and cancels them until it finds no more.
func (a *app) cancelFiltered(ctx context.Context, f *cancelFlags) error {
	y, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	var jobs []cancelling
	seen := map[string]bool{}
	for range maxLooks {
		var found []cancelling
		if found, err = f.find(ctx, y, seen); err == nil && !f.dry {
			err = cancelAll(ctx, y, found)
		}
		jobs = append(jobs, found...)
		if err != nil || f.dry || len(found) == 0 {
			break
		}
	}
	return errors.Join(a.tellCancelled(f, jobs), err)
}

// cancelling is a job and what became of it; "" if nothing was done.
type cancelling struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Done  string `json:"result"` // cancelled, ended, or "" if it was not begun or is not known
}

// find lists the jobs that the flags mean and that were not seen yet, page by
// page.
func (f *cancelFlags) find(ctx context.Context, y *yard, seen map[string]bool) (jobs []cancelling, err error) {
	const size = 500
	for _, state := range cancellable {
		if f.state != "" && f.state != state {
			continue
		}
		for page := 1; ; page++ {
			answer, err := y.ask(ctx, jobSubject("list"), map[string]any{
				"queue": f.queue, "state": state, "page": page, "page_size": size, "brief": true,
			})
			if err != nil {
				return nil, err
			}
			var part jobsAnswer
			if err := json.Unmarshal(answer, &part); err != nil {
				return nil, unreadable(err)
			}
			for i := range part.Jobs {
				if j := &part.Jobs[i]; !seen[j.ID] && (f.function == "" || j.Function == f.function) {
					seen[j.ID] = true
					jobs = append(jobs, cancelling{ID: j.ID, State: j.State})
				}
			}
			if len(part.Jobs) < size {
				break
			}
		}
	}
	return jobs, nil
}

// cancelsAtOnce are on their way together: the authority puts what comes
// together into one entry.
const cancelsAtOnce = 32

// cancelAll cancels job after job until one cannot be for a reason that the
// others would meet too.
func cancelAll(ctx context.Context, y *yard, jobs []cancelling) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	next := make(chan *cancelling)
	var workers sync.WaitGroup
	for range cancelsAtOnce {
		workers.Go(func() {
			for j := range next {
				answer, err := y.ask(ctx, jobSubject("cancel"), named(j.ID, ""))
				var refused *cluster.APIError
				var now stateAnswer
				switch {
				case errors.As(err, &refused) && (refused.Code == "404" || refused.Code == "409"):
					j.Done = "ended"
				case err != nil:
					stop(err)
				case json.Unmarshal(answer, &now) == nil:
					j.Done, j.State = "cancelled", now.State
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

func (a *app) tellCancelled(f *cancelFlags, jobs []cancelling) error {
	list := &listing{a: a, head: "JOB\tSTATE\tRESULT\n", name: "jobs"}
	results, part := map[string]int{}, []json.RawMessage{}
	for _, j := range jobs {
		if j.Done == "" {
			j.Done = "not done"
		}
		if f.dry {
			j.Done = "would be cancelled"
		}
		results[j.Done]++
		text, err := json.Marshal(j)
		if err != nil {
			return err
		}
		part = append(part, text)
	}
	err := each(list, part, func(w io.Writer, j *cancelling) { fmt.Fprintf(w, "%s\t%s\t%s\n", j.ID, j.State, j.Done) })
	if err = errors.Join(err, list.end("no such jobs")); err != nil || a.json || len(jobs) == 0 {
		return err
	}
	var words []string
	for _, name := range sortedKeys(results) {
		words = append(words, fmt.Sprint(results[name], " ", name))
	}
	_, err = fmt.Fprintf(a.Err, "yardmaster: %s\n", strings.Join(words, ", "))
	return err
}
