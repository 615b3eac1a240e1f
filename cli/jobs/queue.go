package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/retentionflag"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// QueueVerbs returns the verb queue.
func QueueVerbs(env *command.Env) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "queue <verb>",
		Short: "List, show, explain, add, change, pause, resume, clear and remove queues",
		Long: `Shows and changes queues. A queue is created by its first job; add it beforehand to
give it a concurrency limit.`,
		Example: `  yardmaster queue list
  yardmaster queue add mail --limit 10
  yardmaster queue pause mail`,
	}, queueList(env),
		queueVerb(env, "show", "Show a queue and its number of jobs by state"),
		queueExplain(env),
		queueAdd(env),
		queueSet(env),
		queueVerb(env, "pause", "Pause a queue: its jobs do not start; running jobs continue"),
		queueVerb(env, "resume", "Resume a paused queue"),
		queueClear(env),
		queueRemove(env))
}

// queueList returns the verb 'queue list'.
func queueList(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all queues and their number of jobs by state",
		Example: `  yardmaster queue list --json`,
		RunE:    func(c *cobra.Command, _ []string) error { return listQueues(env, c) },
	})
}

// listQueues requests all pages of the list of queues and prints them as one reply.
func listQueues(env *command.Env, c *cobra.Command) error {
	type page struct {
		Queues []json.RawMessage `json:"queues"`
		Next   string            `json:"next,omitempty"`
	}
	all := page{Queues: []json.RawMessage{}}
	err := command.Pages(c.Context(), env, api.Subject("queue-list"), func(p *page) (after string) {
		all.Queues = append(all.Queues, p.Queues...)
		return p.Next
	})
	if err != nil {
		return err
	}
	return command.PrintValue(env, all, queuesTable)
}

// queueVerb returns a verb that takes one queue, sends the request of the same name and
// shows the queue.
func queueVerb(env *command.Env, verb, short string) *cobra.Command {
	return queueQuery(env, verb, &cobra.Command{
		Use:     verb + " <queue>",
		Short:   short,
		Example: "  yardmaster queue " + verb + " mail",
	}, queueTable)
}

// queueQuery turns c into a verb that sends a request about the queue that is its
// argument and prints the reply by table, and returns c. endpoint is the last part of the
// endpoint's name.
func queueQuery[T any](env *command.Env, endpoint string, c *cobra.Command, table func(io.Writer, *T)) *cobra.Command {
	c.RunE = func(c *cobra.Command, args []string) error {
		return requestQueue(c.Context(), env, endpoint, named(args), table)
	}
	return env.WithJSON(c)
}

// requestQueue sends a request about one queue and prints the reply by table.
func requestQueue[T any](ctx context.Context, env *command.Env, endpoint string, request map[string]any, table func(io.Writer, *T)) error {
	err := command.Request(ctx, env, api.Subject("queue-"+endpoint), request, table)
	return refusedFor("queue", fmt.Sprint(request["name"]), err)
}

// named returns the body of a request about the queue or cron entry that is the
// first argument.
func named(args []string) map[string]any { return map[string]any{"name": args[0]} }

// queueRemove returns the verb 'queue rm'.
func queueRemove(env *command.Env) *cobra.Command {
	return queueQuery(env, "remove", &cobra.Command{
		Use:     "rm <queue>",
		Aliases: []string{"remove", "del", "delete"},
		Short:   "Remove a queue whose jobs have all ended, and those jobs",
		Long: `Removes a queue. It is refused while the queue has waiting, delayed or active jobs.
Its ended jobs are removed from the ledger, with their results; dead
letters and history stay.`,
		Example: "  yardmaster queue rm mail",
	}, func(w io.Writer, q *api.Removed) { command.Printf(w, "%s\tremoved, with its ended jobs\n", q.Name) })
}

// queueAdd returns the verb 'queue add'.
func queueAdd(env *command.Env) *cobra.Command {
	var limit int64
	var retryOnTimeout bool
	var retention []string
	var retries retryFlags
	c := env.WithJSON(&cobra.Command{
		Use:     "add <queue>",
		Aliases: []string{"create"},
		Short:   "Add a queue",
		Example: `  yardmaster queue add mail --limit 10`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := job.ValidQueue(args[0]); err != nil {
				return usererror.Usage(c, "%v", err)
			}
			request := named(args)
			if c.Flags().Changed("limit") {
				if limit < 1 || limit > job.MaxLimit {
					return usererror.Usage(c, "--limit is %d: must be 1 to %d", limit, int64(job.MaxLimit))
				}
				request["concurrency_limit"] = limit
			}
			if retryOnTimeout {
				request["retry_on_timeout"] = true
			}
			if err := addRetention(c, request, retention); err != nil {
				return err
			}
			if err := retries.add(c, request); err != nil {
				return err
			}
			return requestQueue(c.Context(), env, "add", request, queueTable)
		},
	})
	c.Flags().BoolVar(&retryOnTimeout, "retry-on-timeout", false, queueTimeoutsUsage)
	c.Flags().Int64Var(&limit, "limit", 0, "largest number of the queue's jobs that run at the same time in the whole yard (default no limit)")
	c.Flags().StringArrayVar(&retention, "retention", nil, retentionUsage)
	retries.register(c)
	return c
}

// queueSet returns the verb 'queue set'.
func queueSet(env *command.Env) *cobra.Command {
	var limit string
	var retryOnTimeout bool
	var retention []string
	var retries retryFlags
	c := env.WithJSON(&cobra.Command{
		Use:   "set <queue>",
		Short: "Change settings of a queue; those that are not given stay",
		Long: `Changes settings of a queue. Under a raised limit more jobs start at once. A lowered
limit stops no job: none starts until enough have ended.

--backoff, --max-backoff, --jitter, --retry-on and --discard-on set how jobs are retried
that do not set it themselves: those of --function, else those of all functions without
such settings of their own. 'none' resets a setting.`,
		Example: `  yardmaster queue set mail --limit 20
  yardmaster queue set mail --limit none
  yardmaster queue set mail --retry-on-timeout
  yardmaster queue set mail --backoff 10s --max-backoff 1h --retry-on http_503,timeout
  yardmaster queue set mail --function charge --attempts 3 --discard-on invalid_card
  yardmaster queue set mail --retention finished.age=30d --retention failed.count=default`,
		RunE: func(c *cobra.Command, args []string) error {
			request := named(args)
			if err := addRetention(c, request, retention); err != nil {
				return err
			}
			if c.Flags().Changed("retry-on-timeout") {
				request["retry_on_timeout"] = retryOnTimeout
			}
			if err := retries.add(c, request); err != nil {
				return err
			}
			switch n, err := strconv.ParseInt(limit, 10, 64); {
			case !c.Flags().Changed("limit") && len(request) == 1:
				return usererror.Usage(c, "there is nothing to change: give --limit, --retry-on-timeout, --backoff, --retry-on, --discard-on or --retention")
			case !c.Flags().Changed("limit"):
			case limit == "none":
				request["concurrency_limit"] = nil
			case err != nil || n < 1 || n > job.MaxLimit:
				return usererror.Usage(c, "--limit is %q: must be 1 to %d, or none", limit, int64(job.MaxLimit))
			default:
				request["concurrency_limit"] = n
			}
			return requestQueue(c.Context(), env, "set", request, queueTable)
		},
	})
	c.Flags().BoolVar(&retryOnTimeout, "retry-on-timeout", false, queueTimeoutsUsage)
	c.Flags().StringVar(&limit, "limit", "", "largest `number` of the queue's jobs that run at the same time in the whole yard, or none")
	c.Flags().StringArrayVar(&retention, "retention", nil, retentionUsage)
	retries.register(c)
	retries.registerRemoval(c)
	return c
}

const queueTimeoutsUsage = "retry attempts that exceed their timeout, like those that fail, unless a job decides"

const retentionUsage = "`setting=value` that differs from the yard's, or =default: finished.age, finished.count, failed.age, failed.count or results.age"

// addRetention adds the retention settings of the flags of c to a request.
func addRetention(c *cobra.Command, request map[string]any, settings []string) error {
	if len(settings) == 0 {
		return nil
	}
	change, err := retentionflag.Parse(settings, true)
	if err != nil {
		return usererror.Usage(c, "--retention: %v", err)
	}
	request["retention"] = change
	return nil
}

func queuesTable(w io.Writer, s *api.QueueList) {
	command.Printf(w, "QUEUE\tSTATE\tLIMIT\tWAITING\tDELAYED\tACTIVE\tCOMPLETED\tFAILED\tCANCELLED\tEXPIRED\n")
	for i := range s.Queues {
		q := &s.Queues[i]
		n := q.Counts
		command.Row(w, q.Name, q.State, limitText(q.Limit),
			n["waiting"], n["delayed"], n["active"], n["completed"], n["failed"], n["cancelled"], n["expired"])
	}
}

func queueTable(w io.Writer, q *api.Queue) {
	queuesTable(w, &api.QueueList{Queues: []api.Queue{*q}})
	if q.RetryOnTimeout {
		command.Printf(w, "\nTimeouts are retried, unless a job decides.\n")
	}
	if len(q.Retention) > 0 {
		settings := make([]string, len(q.Retention))
		for i := range q.Retention {
			settings[i] = q.Retention[i].Name + "=" + retentionflag.Text(q.Retention[i].Value, q.Retention[i].Unit)
		}
		command.Printf(w, "\nIts own retention: %s\n", strings.Join(settings, " "))
	}
	queueRetries(w, q)
	queueSchemas(w, q)
}

func limitText(limit *uint32) string {
	if limit == nil {
		return "-"
	}
	return fmt.Sprint(*limit)
}
