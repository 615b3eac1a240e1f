// Package dlq has the verbs for dead letters.
package dlq

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/durationflag"
	"github.com/yardmaster-dev/yardmaster/cli/operations"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/internal/mergepatch"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// Verbs returns the verb dlq.
func Verbs(env *command.Env) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "dlq <verb>",
		Short: "List, show, requeue and remove dead letters; stats counts them",
		Long: `Shows and changes dead letters, the records of jobs that failed. A dead letter is
named by its number or by its job's id; without names, the filters select the
dead letters.`,
		Example: `  yardmaster dlq list --queue mail --newer-than 1h
  yardmaster dlq requeue --error timeout --dry-run
  yardmaster dlq requeue 17 18
  yardmaster dlq rm --older-than 720h`,
	}, dlqList(env), dlqShow(env), dlqStats(env), dlqRequeue(env), dlqRemove(env))
}

// selection is the flags that select dead letters.
type selection struct {
	queue, function, err string
	older, newer         time.Duration
	limit                int // 0 means no limit
}

// addFilters adds the flags that filter dead letters to c, and returns c.
func (s *selection) addFilters(c *cobra.Command) *cobra.Command {
	flags := c.Flags()
	flags.StringVarP(&s.queue, "queue", "q", "", "only jobs of this `queue`")
	flags.StringVar(&s.function, "function", "", "only jobs that call this `function`")
	flags.StringVar(&s.err, "error", "", "only jobs with this `error`: its type, its code or a part of its text")
	durationflag.Var(flags, &s.older, "older-than", 0, "only jobs that failed longer ago than this `time`")
	durationflag.Var(flags, &s.newer, "newer-than", 0, "only jobs that failed no longer ago than this `time`")
	return c
}

// addLimit adds the flag --limit with a default to c. order is "newest" or "oldest".
func (s *selection) addLimit(c *cobra.Command, limit int, order string) {
	c.Flags().IntVar(&s.limit, "limit", limit, "largest number of dead letters, "+order+" first; 0 is no limit")
}

// request returns the body of the request for the dead letters that the flags and
// names select. Ages are converted to absolute times once, so that the requests for
// all pages use the same filter.
func (s *selection) request(c *cobra.Command, names []string) (map[string]any, error) {
	request := map[string]any{}
	for name, value := range map[string]string{"queue": s.queue, "function": s.function, "error": s.err} {
		if value != "" {
			request[name] = value
		} else if c.Flags().Changed(name) {
			return nil, usererror.Usage(c, "--%s is empty: omit it to select all", name)
		}
	}
	now := time.Now().UTC()
	for _, age := range []struct {
		flag, field string
		value       time.Duration
	}{{"older-than", "failed_before", s.older}, {"newer-than", "failed_after", s.newer}} {
		if age.value < 0 {
			return nil, usererror.Usage(c, "--%s is %s: must not be negative", age.flag, duration.Format(age.value))
		}
		if c.Flags().Changed(age.flag) {
			request[age.field] = now.Add(-age.value)
		}
	}
	if s.limit < 0 {
		return nil, usererror.Usage(c, "--limit is %d: must be 0 or more", s.limit)
	}
	return request, addNames(c, request, names)
}

// addNames adds the dead letters that names name to a request. A name is the number
// of a dead letter, or the id of its job, also as "<queue>:<id>".
func addNames(c *cobra.Command, request map[string]any, names []string) error {
	var numbers []uint64
	var jobs []job.ID
	for _, name := range names {
		if number, err := strconv.ParseUint(name, 10, 64); err == nil && number > 0 {
			numbers = append(numbers, number)
			continue
		}
		id, err := job.ParseID(name[strings.LastIndexByte(name, ':')+1:])
		if err != nil {
			return usererror.Usage(c, "%q is not a dead letter: give its number or its job's id", name)
		}
		jobs = append(jobs, id)
	}
	switch {
	case numbers != nil && jobs != nil:
		return usererror.Usage(c, "name dead letters by number or by job, not both")
	case numbers != nil:
		request["letters"] = numbers
	case jobs != nil:
		request["jobs"] = jobs
	}
	return nil
}

// deadLetterArgs is the part of a Use line for any number of dead letters.
const deadLetterArgs = "[letter]..."

// dlqList returns the verb 'dlq list'.
func dlqList(env *command.Env) *cobra.Command {
	var s selection
	var oldestFirst bool
	c := s.addFilters(env.WithJSON(&cobra.Command{
		Use:     "list " + deadLetterArgs,
		Aliases: []string{"ls"},
		Short:   "List dead letters, newest first",
		Long: `Lists dead letters, newest first. STATE is the current state of the job, which may
have been retried since; "-" means that the job is no longer in the ledger.`,
		Example: `  yardmaster dlq list
  yardmaster dlq list --queue mail --error smtp --limit 0 --json`,
		RunE: func(c *cobra.Command, names []string) error {
			request, err := s.request(c, names)
			if err != nil {
				return err
			}
			if oldestFirst {
				request["order"] = api.OrderOldest
			}
			return listDeadLetters(c.Context(), pages{env, "list", request, s.limit})
		},
	}))
	s.addLimit(c, 100, "newest")
	c.Flags().BoolVar(&oldestFirst, "oldest-first", false, "begin with the oldest")
	return c
}

// dlqShow returns the verb 'dlq show'.
func dlqShow(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:   "show <letter>",
		Short: "Show a dead letter and the record of its job",
		Long: `Shows a dead letter: why the job failed, its attempts, its function and params, and
its current state. If a job has several dead letters, its id selects the last.
'yardmaster events --job <id> --since 0' shows its history.`,
		Example: `  yardmaster dlq show 17`,
		RunE: func(c *cobra.Command, names []string) error {
			request := map[string]any{}
			if err := addNames(c, request, names); err != nil {
				return err
			}
			return command.Request(c.Context(), env, api.Subject("dlq-show"), request, deadLetterTable)
		},
	})
}

// dlqStats returns the verb 'dlq stats'.
func dlqStats(env *command.Env) *cobra.Command {
	var s selection
	return s.addFilters(env.WithJSON(&cobra.Command{
		Use:     "stats",
		Short:   "Count dead letters by queue, function, and type and code of the error",
		Example: `  yardmaster dlq stats --newer-than 24h`,
		RunE: func(c *cobra.Command, _ []string) error {
			request, err := s.request(c, nil)
			if err != nil {
				return err
			}
			return countDeadLetters(c.Context(), pages{env, "stats", request, 0})
		},
	}))
}

// dlqRequeue returns the verb 'dlq requeue'.
func dlqRequeue(env *command.Env) *cobra.Command {
	var to string
	var keep bool
	c := changeVerb(env, "requeue", &cobra.Command{
		Use:   "requeue " + deadLetterArgs,
		Short: "Run the jobs of dead letters again",
		Long: `Runs the jobs of dead letters again, and removes the dead letters. A job that is
still in the ledger is retried under its own id, with all its attempts. Otherwise,
or with --to, a new job is made from the dead letter, due at once and without
unique, rate limit and debounce keys. Its id is derived from the dead letter, so
repeating the command makes no second job.

With --query, the yard requeues the dead letters of all jobs that match, by an operation.
--params then changes the params of the jobs.

A dead letter whose job was retried since, by 'yardmaster job retry', is only
removed; its result is "stale". A dead letter that cannot be requeued stays, and
the exit code is 1.`,
		Example: `  yardmaster dlq requeue --queue mail --newer-than 1h --dry-run
  yardmaster dlq requeue --function send --to mail-slow
  yardmaster dlq requeue --all --limit 100
  yardmaster dlq requeue --query 'error:timeout customer:acme' --params '{"timeout":30}'`,
	}, func(c *cobra.Command, request map[string]any) error {
		if c.Flags().Changed("to") {
			if err := job.ValidQueue(to); err != nil {
				return usererror.Usage(c, "--to: %v", err)
			}
			request["to"] = to
		}
		request["keep_attempts"] = keep
		return nil
	})
	c.Flags().StringVar(&to, "to", "", "enqueue into another, existing `queue`")
	c.Flags().BoolVar(&keep, "keep-attempts", false, "count the attempts so far; the job gets at least one more")
	return withQuery(env, c, &to, &keep)
}

// withQuery lets 'dlq requeue' also start an operation, and returns the verb c.
func withQuery(env *command.Env, c *cobra.Command, to *string, keep *bool) *cobra.Command {
	var many operations.Flags
	var params string
	dryRun := new(bool)
	many.Add(c, dryRun)
	c.Flags().StringVar(&params, "params", "", "with --query: JSON merge patch for the params of the jobs, which become new jobs: `json`")
	each := c.RunE
	c.RunE = func(c *cobra.Command, names []string) error {
		*dryRun, _ = c.Flags().GetBool("dry-run")
		request := api.OperationStart{Action: "requeue", To: *to, KeepAttempts: *keep}
		if c.Flags().Changed("params") {
			if err := mergepatch.Check([]byte(params)); err != nil {
				return usererror.Usage(c, "--params must be a JSON object: %v", err)
			}
			if !c.Flags().Changed("query") {
				return usererror.Usage(c, "--params is for --query")
			}
			request.Params = json.RawMessage(params)
		}
		if given, err := many.Start(c, env, names, request, "to", "keep-attempts", "params"); given {
			return err
		}
		return each(c, names)
	}
	return c
}

// dlqRemove returns the verb 'dlq rm'.
func dlqRemove(env *command.Env) *cobra.Command {
	return changeVerb(env, "remove", &cobra.Command{
		Use:     "rm " + deadLetterArgs,
		Aliases: []string{"remove", "del", "delete"},
		Short:   "Remove dead letters",
		Long: `Removes dead letters. The failed jobs in the ledger are not changed: while the
ledger keeps a job, 'yardmaster job retry' can still run it again.`,
		Example: `  yardmaster dlq rm 17
  yardmaster dlq rm --older-than 720h --dry-run`,
	}, func(*cobra.Command, map[string]any) error { return nil })
}

// changeVerb turns c into a verb that changes dead letters, and returns c. endpoint is
// the last part of the endpoint's name. addOptions adds the options of the verb to the
// request.
func changeVerb(env *command.Env, endpoint string, c *cobra.Command, addOptions func(*cobra.Command, map[string]any) error) *cobra.Command {
	var s selection
	var all, dryRun bool
	s.addFilters(env.WithJSON(c))
	s.addLimit(c, 0, "oldest")
	c.Flags().BoolVar(&all, "all", false, "all dead letters")
	c.Flags().BoolVarP(&dryRun, "dry-run", "n", false, "show what would be done, without changing anything")
	c.RunE = func(c *cobra.Command, names []string) error {
		request, err := s.request(c, names)
		if err != nil {
			return err
		}
		switch filtered := len(request) > 0; {
		case !filtered && !all:
			return usererror.Usage(c, "no dead letters are selected: name some, or give a filter or --all")
		case filtered && all:
			return usererror.Usage(c, "--all excludes filters and names")
		}
		request["all"], request["dry_run"] = all, dryRun
		if err := addOptions(c, request); err != nil {
			return err
		}
		return changeDeadLetters(c.Context(), pages{env, endpoint, request, s.limit}, dryRun)
	}
	return c
}
