// Package dlq has the verbs for dead letters.
package dlq

import (
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// Verbs returns the verb dlq.
func Verbs(env *command.Env) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "dlq <verb>",
		Short: "List, show, count, requeue and remove dead letters",
		Long: `Shows and changes dead letters, the records of jobs that failed. A dead letter is
named by its number or by its job's id; without names, the filters select the
dead letters.`,
		Example: `  yardmaster dlq list --queue mail --newer-than 1h
  yardmaster dlq requeue --error timeout --dry-run
  yardmaster dlq requeue 17 18
  yardmaster dlq rm --older-than 720h`,
	}, dlqList(env), dlqShow(env), dlqStats(env), dlqRequeue(env), dlqRemove(env))
}

// deadLetterFlags are the filters that select dead letters.
type deadLetterFlags struct {
	queue, function, err string
	older, newer         time.Duration
	limit                int
}

func (f *deadLetterFlags) add(c *cobra.Command) *cobra.Command {
	flags := c.Flags()
	flags.StringVarP(&f.queue, "queue", "q", "", "only jobs of this `queue`")
	flags.StringVar(&f.function, "function", "", "only jobs that call this `function`")
	flags.StringVar(&f.err, "error", "", "only jobs with this `error`: its type, its code or a part of its text")
	flags.DurationVar(&f.older, "older-than", 0, "only jobs that failed longer ago than this `time`")
	flags.DurationVar(&f.newer, "newer-than", 0, "only jobs that failed no longer ago than this `time`")
	return c
}

func (f *deadLetterFlags) addLimit(c *cobra.Command, limit int) *cobra.Command {
	c.Flags().IntVar(&f.limit, "limit", limit, "largest number of dead letters, oldest first; 0 is no limit")
	return c
}

// request returns the body of the request for the flags and names. Ages are
// converted to absolute times once, so that all pages use the same filter.
func (f *deadLetterFlags) request(c *cobra.Command, names []string) (map[string]any, error) {
	q := map[string]any{}
	for name, value := range map[string]string{"queue": f.queue, "function": f.function, "error": f.err} {
		if value != "" {
			q[name] = value
		} else if c.Flags().Changed(name) {
			return nil, usererror.Usage(c, "--%s is empty: omit it to select all", name)
		}
	}
	now := time.Now().UTC()
	for _, age := range []struct {
		flag, name string
		value      time.Duration
	}{{"older-than", "failed_before", f.older}, {"newer-than", "failed_after", f.newer}} {
		if !c.Flags().Changed(age.flag) {
			continue
		}
		if age.value < 0 {
			return nil, usererror.Usage(c, "--%s is %s: must not be negative", age.flag, age.value)
		}
		q[age.name] = now.Add(-age.value)
	}
	if f.limit < 0 {
		return nil, usererror.Usage(c, "--limit is %d: must be 0 or more", f.limit)
	}
	return q, addNames(c, q, names)
}

// addNames adds dead letters to the request q, by number or by job id.
func addNames(c *cobra.Command, q map[string]any, names []string) error {
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
		q["letters"] = numbers
	case jobs != nil:
		q["jobs"] = jobs
	}
	return nil
}

const deadLetterArgs = "[letter]..."

func dlqList(env *command.Env) *cobra.Command {
	var f deadLetterFlags
	return f.addLimit(f.add(env.WithJSON(&cobra.Command{
		Use:     "list " + deadLetterArgs,
		Aliases: []string{"ls"},
		Short:   "List dead letters, oldest first",
		Long: `Lists dead letters, oldest first. STATE is the current state of the job, which may
have been retried since; "-" means that the job is no longer in the ledger.`,
		Example: `  yardmaster dlq list
  yardmaster dlq list --queue mail --error smtp --limit 0 --json`,
		RunE: func(c *cobra.Command, names []string) error {
			q, err := f.request(c, names)
			if err != nil {
				return err
			}
			return listDeadLetters(c.Context(), env, q, f.limit)
		},
	})), 100)
}

func dlqShow(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:   "show <letter>",
		Short: "Show a dead letter and the record of its job",
		Long: `Shows a dead letter: why the job failed, its attempts, its function and params, and
its current state. If a job has several dead letters, its id selects the last.
'yardmaster events --job <id> --since 0' shows its history.`,
		Example: `  yardmaster dlq show 17`,
		RunE: func(c *cobra.Command, names []string) error {
			q := map[string]any{}
			if err := addNames(c, q, names); err != nil {
				return err
			}
			return command.Request(c.Context(), env, api.Subject("dlq-show"), q, deadLetterTable)
		},
	})
}

func dlqStats(env *command.Env) *cobra.Command {
	var f deadLetterFlags
	return f.add(env.WithJSON(&cobra.Command{
		Use:     "stats",
		Short:   "Count dead letters by queue, function and error",
		Example: `  yardmaster dlq stats --newer-than 24h`,
		RunE: func(c *cobra.Command, _ []string) error {
			q, err := f.request(c, nil)
			if err != nil {
				return err
			}
			return countDeadLetters(c.Context(), env, q)
		},
	}))
}

func dlqRequeue(env *command.Env) *cobra.Command {
	var to string
	var keep bool
	c := deadLetterChangeCommand(env, &cobra.Command{
		Use:   "requeue " + deadLetterArgs,
		Short: "Run the jobs of dead letters again",
		Long: `Runs the jobs of dead letters again, and removes the dead letters. A job that is
still in the ledger is retried under its own id, with all its attempts. Otherwise,
or with --to, a new job is made from the dead letter, due at once and without
unique, rate limit and debounce keys. Its id is derived from the dead letter, so
repeating the command makes no second job.

A dead letter whose job was retried since, by 'yardmaster job retry', is only
removed; its result is "stale". A dead letter that cannot be requeued stays, and
the exit code is 1.`,
		Example: `  yardmaster dlq requeue --queue mail --newer-than 1h --dry-run
  yardmaster dlq requeue --function send --to mail-slow
  yardmaster dlq requeue --all --limit 100`,
	}, "requeue", func(c *cobra.Command, q map[string]any) error {
		if c.Flags().Changed("to") {
			if err := job.ValidQueue(to); err != nil {
				return usererror.Usage(c, "--to: %v", err)
			}
			q["to"] = to
		}
		q["keep_attempts"] = keep
		return nil
	})
	c.Flags().StringVar(&to, "to", "", "enqueue into another, existing `queue`")
	c.Flags().BoolVar(&keep, "keep-attempts", false, "count the attempts so far; the job gets at least one more")
	return c
}

func dlqRemove(env *command.Env) *cobra.Command {
	return deadLetterChangeCommand(env, &cobra.Command{
		Use:     "rm " + deadLetterArgs,
		Aliases: []string{"remove", "del", "delete"},
		Short:   "Remove dead letters",
		Long: `Removes dead letters. The failed jobs in the ledger are not changed: while the
ledger keeps a job, 'yardmaster job retry' can still run it again.`,
		Example: `  yardmaster dlq rm 17
  yardmaster dlq rm --older-than 720h --dry-run`,
	}, "remove", func(*cobra.Command, map[string]any) error { return nil })
}

// deadLetterChangeCommand adds to c the flags and the action of a verb that
// changes dead letters, and returns c. options adds further fields to the
// request.
func deadLetterChangeCommand(env *command.Env, c *cobra.Command, verb string, options func(*cobra.Command, map[string]any) error) *cobra.Command {
	var f deadLetterFlags
	var all, dry bool
	f.addLimit(f.add(env.WithJSON(c)), 0)
	c.Flags().BoolVar(&all, "all", false, "all dead letters")
	c.Flags().BoolVarP(&dry, "dry-run", "n", false, "show what would be done, without changing anything")
	c.RunE = func(c *cobra.Command, names []string) error {
		q, err := f.request(c, names)
		switch named := len(q) > 0; {
		case err != nil:
			return err
		case !named && !all:
			return usererror.Usage(c, "no dead letters are selected: name some, or give a filter or --all")
		case named && all:
			return usererror.Usage(c, "--all excludes filters and names")
		}
		q["all"], q["dry_run"] = all, dry
		if err := options(c, q); err != nil {
			return err
		}
		return changeDeadLetters(c.Context(), env, verb, q, f.limit)
	}
	return c
}
