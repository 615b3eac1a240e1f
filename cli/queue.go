package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"yardmaster/cluster"
	"yardmaster/job"

	"github.com/spf13/cobra"
)

func (a *app) queueVerbs() *cobra.Command {
	return group(&cobra.Command{
		Use:   "queue <verb>",
		Short: "List, show, explain, add, pause, resume and remove queues",
		Long: `Looks at queues and changes them. A queue that does not exist is made by its
first job; add it beforehand to give it a concurrency limit.`,
		Example: `  yardmaster queue list
  yardmaster queue add mail --limit 10
  yardmaster queue pause mail`,
	}, a.queueList(),
		a.queueVerb("show", "Show a queue and how its jobs stand"),
		a.queueExplain(),
		a.queueAdd(),
		a.queueVerb("pause", "Start no more jobs of a queue; running ones go on"),
		a.queueVerb("resume", "Start a paused queue's jobs again"),
		a.queueVerb("rm", "Remove a queue all of whose jobs have ended, and the records of those"))
}

func (a *app) queueList() *cobra.Command {
	return a.takesJSON(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all queues and how their jobs stand",
		Example: `  yardmaster queue list --json`,
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			return show(c.Context(), a, cluster.SubjectAPI+".queue.list", struct{}{}, queuesTable)
		},
	})
}

func (a *app) queueVerb(verb, short string) *cobra.Command {
	c := a.takesJSON(&cobra.Command{
		Use:     verb + " <queue>",
		Short:   short,
		Example: "  yardmaster queue " + verb + " mail",
		Args:    args("queue"),
	})
	endpoint, table := verb, queueTable
	if verb == "rm" {
		endpoint, table = "remove", removedLine
		c.Aliases = []string{"remove", "del", "delete"}
		c.Long = `Removes a queue. While it has jobs that wait, are delayed or run, that is refused.
The yard's records of its jobs that have completed or failed go with it, and so
do their results; dead letters and history stay.`
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return show(c.Context(), a, cluster.SubjectAPI+".queue."+endpoint, map[string]any{"name": args[0]}, table)
	}
	return c
}

func (a *app) queueAdd() *cobra.Command {
	var limit int64
	c := a.takesJSON(&cobra.Command{
		Use:     "add <queue>",
		Aliases: []string{"create"},
		Short:   "Add a queue",
		Example: `  yardmaster queue add mail --limit 10`,
		Args:    args("queue"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := job.ValidQueue(args[0]); err != nil {
				return usage(c, err.Error())
			}
			request := map[string]any{"name": args[0]}
			if c.Flags().Changed("limit") {
				if limit < 1 || limit > job.MaxLimit {
					return usage(c, fmt.Sprintf("--limit is %d: must be 1 to %d", limit, int64(job.MaxLimit)))
				}
				request["concurrency_limit"] = limit
			}
			return show(c.Context(), a, cluster.SubjectAPI+".queue.add", request, queueTable)
		},
	})
	c.Flags().Int64Var(&limit, "limit", 0, "most jobs of the queue that run at once in the whole yard (default no limit)")
	return c
}

func queuesTable(w io.Writer, s *queuesAnswer) {
	fmt.Fprint(w, "QUEUE\tSTATE\tLIMIT\tWAITING\tDELAYED\tACTIVE\tCOMPLETED\tFAILED\n")
	for i := range s.Queues {
		q := &s.Queues[i]
		n := &q.Counts
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\n", q.Name, q.State, limitText(q.Limit),
			n.Waiting, n.Delayed, n.Active, n.Completed, n.Failed)
	}
}

func queueTable(w io.Writer, q *queueAnswer) {
	queuesTable(w, &queuesAnswer{Queues: []queueAnswer{*q}})
}

// removedLine is what is left to say of a queue that was removed.
func removedLine(w io.Writer, q *queueAnswer) {
	fmt.Fprintf(w, "%s\tremoved, with the records of its jobs that had ended\n", q.Name)
}

func limitText(limit uint32) string {
	if limit == 0 {
		return "-"
	}
	return fmt.Sprint(limit)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
