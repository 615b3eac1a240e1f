package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/retentionflag"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// QueueVerbs returns the verb queue.
func QueueVerbs(env *command.Env) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "queue <verb>",
		Short: "List, show, explain, add, change, pause, resume, clear and remove queues",
		Long: `Shows and changes queues. A queue is created by its first job; add it beforehand to
give it settings of its own.`,
		Example: `  yardmaster queue list
  yardmaster queue add mail --concurrency 10
  yardmaster queue pause mail`,
	}, queueList(env),
		queueVerb(env, "show", "Show a queue and its number of jobs by state"),
		queueExplain(env),
		queueAdd(env),
		queueSet(env),
		queueWeight(env),
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
		Long: `Lists all queues and their number of jobs by state. Failed, cancelled and expired jobs
are counted while the ledger keeps them, see 'yardmaster retention show':
finished.age. 'yardmaster job find state:failed' also finds those that it has forgotten.`,
		Example: `  yardmaster queue list --json`,
		RunE:    func(c *cobra.Command, _ []string) error { return listQueues(env, c) },
	})
}

// listQueues requests all pages of the list of queues and prints them as one reply.
func listQueues(env *command.Env, c *cobra.Command) error {
	type page struct {
		Queues []json.RawMessage `json:"queues"`
		Next   string            `json:"next,omitempty"`
		KeptMS int64             `json:"kept_ms,omitempty"`
	}
	all := page{Queues: []json.RawMessage{}}
	err := command.Pages(c.Context(), env, api.Subject("queue-list"), func(p *page) (after string) {
		all.Queues, all.KeptMS = append(all.Queues, p.Queues...), cmp.Or(min(all.KeptMS, p.KeptMS), all.KeptMS, p.KeptMS)
		return p.Next
	})
	if err != nil {
		return err
	}
	err = command.PrintValue(env, all, queuesTable)
	if err == nil && !env.JSON {
		noteKept(env, all.KeptMS)
	}
	return err
}

// noteKept prints a note if the ledger keeps failed jobs for less than a day: keptMS milliseconds. 0 means
// longer.
func noteKept(env *command.Env, keptMS int64) {
	if keptMS > 0 {
		env.Note("failed, cancelled and expired jobs are counted for %s after their end (retention finished.age); 'yardmaster job find state:failed' finds those that ended before", duration.Format(time.Duration(keptMS)*time.Millisecond))
	}
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
	c := env.WithJSON(&cobra.Command{
		Use:     "add <queue>",
		Aliases: []string{"create"},
		Short:   "Add a queue",
		Example: `  yardmaster queue add mail --concurrency 10
  yardmaster queue add mail --limit stripe --key params.customer --fair`,
	})
	add := addQueueSettings(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := job.ValidQueue(args[0]); err != nil {
			return usererror.Usage(c, "%v", err)
		}
		request := named(args)
		if err := add(request); err != nil {
			return err
		}
		return explainNumbers(request, requestQueue(c.Context(), env, "add", request, queueTable))
	}
	return c
}

// queueSet returns the verb 'queue set'.
func queueSet(env *command.Env) *cobra.Command {
	c := env.WithJSON(&cobra.Command{
		Use:   "set <queue>",
		Short: "Change settings of a queue; those that are not given stay",
		Long: `Changes settings of a queue. Under a raised bound more jobs start at once. A lowered one
stops no job: none starts until enough have ended. --limit names limits of 'yardmaster
limit set'; the names that are given replace those of the queue. Likewise --index names values
in the params of jobs that are accepted from now on, which 'yardmaster job find
params.customer:acme' finds.

--backoff, --max-backoff, --jitter, --retry-on and --discard-on set how jobs are retried
that do not set it themselves: those of --function, else those of all functions without
such settings of their own. 'none' resets a setting.`,
		Example: `  yardmaster queue set mail --concurrency 20
  yardmaster queue set mail --limit stripe --key params.customer --fair
  yardmaster queue set mail --limit none
  yardmaster queue set mail --index params.customer --index params.order.id
  yardmaster queue set mail --backoff 10s --max-backoff 1h --retry-on http_503,timeout
  yardmaster queue set mail --function charge --attempts 3 --discard-on invalid_card
  yardmaster queue set mail --retention finished.age=30d --retention failed.count=default`,
	})
	add := addQueueSettings(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		request := named(args)
		if err := add(request); err != nil {
			return err
		}
		if len(request) == 1 {
			return usererror.Usage(c, "there is nothing to change: give a setting, such as --concurrency, --limit or --retention")
		}
		return explainNumbers(request, requestQueue(c.Context(), env, "set", request, queueTable))
	}
	return c
}

// addQueueSettings adds the flags of a queue's settings to c. The function that it returns adds
// those that are given to a request.
func addQueueSettings(c *cobra.Command) func(request map[string]any) error {
	var limits, retention, index []string
	flags := c.Flags()
	add := addSettings(c, []setting{
		{"concurrency", "concurrency_limit", "`number` of the queue's jobs that run at the same time in the whole yard", number(1, job.MaxLimit)},
		{"key", "key", "`path` in params with the key of a job, such as params.customer", func(text string) (any, error) { return text, job.ValidKeyPath(text) }},
		{"age", "age_ms", "`time` of waiting that is worth as much as one class of priority", milliseconds},
		{"priority", "priority", "priority, 0 to 9, of jobs that give none", number(0, job.MaxPriority)},
		{"timeout", "timeout_ms", "`time` limit of an attempt of jobs that give none", milliseconds},
	})
	flags.StringArrayVar(&limits, "limit", nil, "`name` of a limit that all jobs of the queue use, or none; may be repeated")
	flags.StringArrayVar(&index, "index", nil, "`path` in params by whose values jobs are found, such as params.customer, or none; may be repeated")
	switches := []string{"key-optional", "fair", "retry-on-timeout"}
	flags.Bool("key-optional", false, "accept jobs without a value at --key")
	flags.Bool("fair", false, "share the starts among keys: see 'yardmaster queue weight'")
	flags.Bool("retry-on-timeout", false, queueTimeoutsUsage)
	flags.StringArrayVar(&retention, "retention", nil, retentionUsage)
	var retries retryFlags
	retries.register(c)
	if c.Name() == "set" {
		retries.registerRemoval(c)
	}
	return func(request map[string]any) error {
		for _, name := range switches {
			if flags.Changed(name) {
				request[strings.ReplaceAll(name, "-", "_")], _ = flags.GetBool(name)
			}
		}
		if err := addNames(c, request, "limit", "limits", limits, job.ValidLimit); err != nil {
			return err
		}
		if err := addNames(c, request, "index", "index", index, job.ValidIndexPath); err != nil {
			return err
		}
		if err := add(request); err != nil {
			return err
		}
		if err := retries.add(c, request); err != nil {
			return err
		}
		return addRetention(c, request, retention)
	}
}

// addNames adds the names that a flag lists to a request, under a key. The only name "none" resets them.
func addNames(c *cobra.Command, request map[string]any, flag, key string, names []string, check func(string) error) error {
	switch {
	case len(names) == 1 && names[0] == "none":
		request[key] = nil
		return nil
	case slices.Contains(names, "none"):
		return usererror.Usage(c, "--%s none excludes other values of --%s", flag, flag)
	case len(names) == 0:
		return nil
	}
	for _, name := range names {
		if err := check(name); err != nil {
			return usererror.Usage(c, "--%s: %v", flag, err)
		}
	}
	request[key] = names
	return nil
}

// explainNumbers returns err, the error of a request, or a better one if a number was given in
// place of the name of a limit: before there were named limits, --limit was what --concurrency is.
func explainNumbers(request map[string]any, err error) error {
	limits, _ := request["limits"].([]string)
	for _, name := range limits {
		if _, notNumber := strconv.ParseUint(name, 10, 64); notNumber == nil && connect.Refused(err, api.CodeInvalid) != nil {
			return usererror.NotFound(fmt.Sprintf("--limit names a limit, and there is none named %s", name),
				fmt.Sprintf("give the number of jobs that run at the same time as --concurrency %s", name))
		}
	}
	return err
}

// queueWeight returns the verb 'queue weight'.
func queueWeight(env *command.Env) *cobra.Command {
	c := env.WithJSON(&cobra.Command{
		Use:   "weight <queue> <key=weight>...",
		Short: "Set how many jobs of a key a fair queue starts in each round",
		Long: `Sets weights of keys in a fair queue: how many jobs of the key start in each round among
the keys that have waiting jobs. Keys without a weight have 1.`,
		Example: `  yardmaster queue weight mail acme=3 beta=none`,
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		request, weights := named(args), map[string]any{}
		for _, arg := range args[1:] {
			at := strings.LastIndexByte(arg, '=')
			if at < 0 {
				return usererror.Usage(c, "%q names no weight: write key=number, or key=none", arg)
			}
			key, text := arg[:at], arg[at+1:]
			if text == "none" {
				weights[key] = nil
				continue
			}
			weight, err := number(1, job.MaxKeyWeight)(text)
			if err != nil {
				return usererror.Usage(c, "the weight of %q is %q: %v", key, text, err)
			}
			weights[key] = weight
		}
		request["weights"] = weights
		return requestQueue(c.Context(), env, "set", request, queueTable)
	}
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
	command.Titles(w, "QUEUE\tSTATE\tCONCURRENCY\tWAITING\tDELAYED\tACTIVE\tCOMPLETED\tFAILED\tCANCELLED\tEXPIRED", "EXPIRED", "CANCELLED", "CONCURRENCY", "DELAYED", "COMPLETED")
	for i := range s.Queues {
		q := &s.Queues[i]
		n := q.Counts
		command.Row(w, q.Name, q.State, concurrencyText(q.Limit),
			n["waiting"], n["delayed"], n["active"], n["completed"], n["failed"], n["cancelled"], n["expired"])
	}
}

func queueTable(w io.Writer, q *api.Queue) {
	queuesTable(w, &api.QueueList{Queues: []api.Queue{*q}})
	startSettings(w, q)
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

// startSettings shows the settings of a queue that decide when its jobs start, and how.
func startSettings(w io.Writer, q *api.Queue) {
	var settings []string
	add := func(name string, isSet bool, value any) {
		if isSet {
			settings = append(settings, fmt.Sprintf("%s=%v", name, value))
		}
	}
	milliseconds := func(ms int64) string { return duration.Format(time.Duration(ms) * time.Millisecond) }
	add("limit", len(q.Limits) > 0, strings.Join(q.Limits, ","))
	add("key", q.Key != "", q.Key)
	add("key-optional", q.KeyOptional, true)
	add("index", len(q.Index) > 0, strings.Join(q.Index, ","))
	add("fair", q.Fair, true)
	add("age", q.Age > 0, milliseconds(q.Age))
	if q.Priority != nil {
		add("priority", true, *q.Priority)
	}
	add("attempts", q.MaxAttempts > 0, q.MaxAttempts)
	add("timeout", q.Timeout > 0, milliseconds(q.Timeout))
	if len(settings) > 0 {
		command.Printf(w, "\nSettings: %s\n", strings.Join(settings, " "))
	}
	if len(q.Weights) > 0 {
		command.Printf(w, "\nKEY\tWEIGHT\n")
		for _, key := range command.SortedKeys(q.Weights) {
			command.Row(w, functionName(key), q.Weights[key])
		}
	}
}

func concurrencyText(limit *uint32) string {
	if limit == nil {
		return "-"
	}
	return fmt.Sprint(*limit)
}
