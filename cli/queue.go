package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

func (a *app) queueVerbs() *cobra.Command {
	return group(&cobra.Command{
		Use:   "queue <verb>",
		Short: "List, show, explain, add, pause, resume and remove queues",
		Long: `Shows and changes queues. A queue is created by its first job; add it beforehand to
give it a concurrency limit.`,
		Example: `  yardmaster queue list
  yardmaster queue add mail --limit 10
  yardmaster queue pause mail`,
	}, a.queueList(),
		a.queueVerb("show", "Show a queue and its number of jobs by state"),
		a.queueExplain(),
		a.queueAdd(),
		a.queueVerb("pause", "Pause a queue: its jobs do not start; running jobs continue"),
		a.queueVerb("resume", "Resume a paused queue"),
		a.queueVerb("rm", "Remove a queue whose jobs have all ended, and those jobs"))
}

func (a *app) queueList() *cobra.Command {
	return a.withJSONFlag(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all queues and their number of jobs by state",
		Example: `  yardmaster queue list --json`,
		Args:    takeArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			return requestAndPrint(c.Context(), a, api.Subject("queue-list"), struct{}{}, queuesTable)
		},
	})
}

// queueVerb returns a verb that takes one queue.
func (a *app) queueVerb(verb, short string) *cobra.Command {
	c := a.withJSONFlag(&cobra.Command{
		Use:     verb + " <queue>",
		Short:   short,
		Example: "  yardmaster queue " + verb + " mail",
		Args:    takeArgs("queue"),
	})
	if verb == "rm" {
		c.Aliases = []string{"remove", "del", "delete"}
		c.Long = `Removes a queue. It is refused while the queue has waiting, delayed or active jobs.
Its completed and failed jobs are removed from the ledger, with their results; dead
letters and history stay.`
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		request := map[string]any{"name": args[0]}
		if verb == "rm" {
			return requestAndPrint(c.Context(), a, api.Subject("queue-remove"), request, removedLine)
		}
		return requestAndPrint(c.Context(), a, api.Subject("queue-"+verb), request, queueTable)
	}
	return c
}

func (a *app) queueAdd() *cobra.Command {
	var limit int64
	c := a.withJSONFlag(&cobra.Command{
		Use:     "add <queue>",
		Aliases: []string{"create"},
		Short:   "Add a queue",
		Example: `  yardmaster queue add mail --limit 10`,
		Args:    takeArgs("queue"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := job.ValidQueue(args[0]); err != nil {
				return usageError(c, err.Error())
			}
			request := map[string]any{"name": args[0]}
			if c.Flags().Changed("limit") {
				if limit < 1 || limit > job.MaxLimit {
					return usageError(c, fmt.Sprintf("--limit is %d: must be 1 to %d", limit, int64(job.MaxLimit)))
				}
				request["concurrency_limit"] = limit
			}
			return requestAndPrint(c.Context(), a, api.Subject("queue-add"), request, queueTable)
		},
	})
	c.Flags().Int64Var(&limit, "limit", 0, "largest number of the queue's jobs that run at the same time in the whole yard (default no limit)")
	return c
}

func queuesTable(w io.Writer, s *api.QueueList) {
	fmt.Fprint(w, "QUEUE\tSTATE\tLIMIT\tWAITING\tDELAYED\tACTIVE\tCOMPLETED\tFAILED\n")
	for i := range s.Queues {
		q := &s.Queues[i]
		n := q.Counts
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\n", q.Name, q.State, limitText(q.Limit),
			n["waiting"], n["delayed"], n["active"], n["completed"], n["failed"])
	}
}

func queueTable(w io.Writer, q *api.Queue) {
	queuesTable(w, &api.QueueList{Queues: []api.Queue{*q}})
}

// removedLine shows that a queue was removed.
func removedLine(w io.Writer, q *api.Removed) {
	fmt.Fprintf(w, "%s\tremoved, with its ended jobs\n", q.Name)
}

func limitText(limit *uint32) string {
	if limit == nil {
		return "-"
	}
	return fmt.Sprint(*limit)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
