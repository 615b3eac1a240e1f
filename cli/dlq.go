package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"yardmaster/job"

	"github.com/spf13/cobra"
)

func (a *app) dlqVerbs() *cobra.Command {
	return group(&cobra.Command{
		Use:   "dlq <verb>",
		Short: "List, show, count, requeue and remove dead letters",
		Long: `Looks at dead letters, the jobs that ended badly, and gives them a new life. A
letter is named by its number or by its job's id; without a name, the filters
say which letters are meant.`,
		Example: `  yardmaster dlq list --queue mail --newer-than 1h
  yardmaster dlq requeue --error timeout --dry-run
  yardmaster dlq requeue 17 18
  yardmaster dlq rm --older-than 720h`,
	}, a.dlqList(), a.dlqShow(), a.dlqStats(), a.dlqRequeue(), a.dlqRemove())
}

// letterFlags say which letters are meant.
type letterFlags struct {
	queue, function, err string
	older, newer         time.Duration
	limit                int
}

func (f *letterFlags) add(c *cobra.Command) *cobra.Command {
	flags := c.Flags()
	flags.StringVarP(&f.queue, "queue", "q", "", "only letters of this `queue`")
	flags.StringVar(&f.function, "function", "", "only letters of jobs that call this `function`")
	flags.StringVar(&f.err, "error", "", "only letters with this `error`: its type, its code or a part of its text")
	flags.DurationVar(&f.older, "older-than", 0, "only jobs that failed longer ago than this `time`")
	flags.DurationVar(&f.newer, "newer-than", 0, "only jobs that failed no longer ago than this `time`")
	return c
}

func (f *letterFlags) addLimit(c *cobra.Command, most int) *cobra.Command {
	c.Flags().IntVar(&f.limit, "limit", most, "most letters, oldest first; 0 is no limit")
	return c
}

// question is the request that the flags and names make. Times are fixed here,
// so that all parts of a long answer mean the same letters.
func (f *letterFlags) question(c *cobra.Command, names []string) (map[string]any, error) {
	q := map[string]any{}
	for name, value := range map[string]string{"queue": f.queue, "function": f.function, "error": f.err} {
		if value != "" {
			q[name] = value
		} else if c.Flags().Changed(name) {
			return nil, usage(c, fmt.Sprintf("--%s is empty: leave it out for all", name))
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
			return nil, usage(c, fmt.Sprintf("--%s is %s: must not be negative", age.flag, age.value))
		}
		q[age.name] = now.Add(-age.value)
	}
	if f.limit < 0 {
		return nil, usage(c, fmt.Sprintf("--limit is %d: must be 0 or more", f.limit))
	}
	return q, nameLetters(c, q, names)
}

// nameLetters adds letters by number or by job.
func nameLetters(c *cobra.Command, q map[string]any, names []string) error {
	var numbers []uint64
	var jobs []job.ID
	for _, name := range names {
		if number, err := strconv.ParseUint(name, 10, 64); err == nil && number > 0 {
			numbers = append(numbers, number)
			continue
		}
		id, err := job.ParseID(name[strings.LastIndexByte(name, ':')+1:])
		if err != nil {
			return usage(c, fmt.Sprintf("%q names no dead letter: give its number or its job's id", name))
		}
		jobs = append(jobs, id)
	}
	switch {
	case numbers != nil && jobs != nil:
		return usage(c, "letters are named either by number or by job, not both at once")
	case numbers != nil:
		q["letters"] = numbers
	case jobs != nil:
		q["jobs"] = jobs
	}
	return nil
}

const letterNames = "[letter]..."

func (a *app) dlqList() *cobra.Command {
	var f letterFlags
	return f.addLimit(f.add(a.takesJSON(&cobra.Command{
		Use:     "list " + letterNames,
		Aliases: []string{"ls"},
		Short:   "List dead letters, oldest first",
		Long: `Lists dead letters, oldest first. NOW is how the job stands by now: it may have
been retried since; "-" is one that the yard has forgotten.`,
		Example: `  yardmaster dlq list
  yardmaster dlq list --queue mail --error smtp --limit 0 --json`,
		RunE: func(c *cobra.Command, names []string) error {
			q, err := f.question(c, names)
			if err != nil {
				return err
			}
			return a.listLetters(c.Context(), q, f.limit)
		},
	})), 100)
}

func (a *app) dlqShow() *cobra.Command {
	return a.takesJSON(&cobra.Command{
		Use:   "show <letter>",
		Short: "Show a dead letter and its record; of a job's letters, the last",
		Long: `Shows a dead letter: why the job failed, how often it was tried, what it was asked
to do, and how it stands by now. 'yardmaster events --job <id> --since 0' tells
its history.`,
		Example: `  yardmaster dlq show 17`,
		Args:    args("letter"),
		RunE: func(c *cobra.Command, names []string) error {
			q := map[string]any{}
			if err := nameLetters(c, q, names); err != nil {
				return err
			}
			return show(c.Context(), a, dlqSubject("show"), q, letterTable)
		},
	})
}

func (a *app) dlqStats() *cobra.Command {
	var f letterFlags
	return f.add(a.takesJSON(&cobra.Command{
		Use:     "stats",
		Short:   "Count dead letters by queue, function and error",
		Example: `  yardmaster dlq stats --newer-than 24h`,
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			q, err := f.question(c, nil)
			if err != nil {
				return err
			}
			return a.countLetters(c.Context(), q)
		},
	}))
}

func (a *app) dlqRequeue() *cobra.Command {
	var to string
	var keep bool
	c := a.changesLetters(&cobra.Command{
		Use:   "requeue " + letterNames,
		Short: "Give the jobs of dead letters a new life",
		Long: `Gives the jobs of dead letters a new life, and removes the letters. While the
yard remembers a job, it waits again under its own id, with all its attempts;
afterwards, or with --to, a new job is made of the letter, under an id of its
own that is always the same, due at once and without unique, rate limit and
debounce keys. So whoever is not sure what was done repeats the command.

A letter whose job has gone on since, because 'yardmaster job retry' has run it
again, is only removed: its result is "stale". A letter that cannot be requeued stays, and the
exit code is 1.`,
		Example: `  yardmaster dlq requeue --queue mail --newer-than 1h --dry-run
  yardmaster dlq requeue --function send --to mail-slow
  yardmaster dlq requeue --all --limit 100`,
	}, "requeue", func(c *cobra.Command, q map[string]any) error {
		if c.Flags().Changed("to") {
			if err := job.ValidQueue(to); err != nil {
				return usage(c, "--to: "+err.Error())
			}
			q["to"] = to
		}
		q["keep_attempts"] = keep
		return nil
	})
	c.Flags().StringVar(&to, "to", "", "another `queue`, which must exist")
	c.Flags().BoolVar(&keep, "keep-attempts", false, "let the attempts a job has had go on counting; it has one more at least")
	return c
}

func (a *app) dlqRemove() *cobra.Command {
	return a.changesLetters(&cobra.Command{
		Use:     "rm " + letterNames,
		Aliases: []string{"remove", "del", "delete"},
		Short:   "Remove dead letters",
		Long: `Removes dead letters. The yard's own record of a job that failed is not touched:
while it is kept, 'yardmaster job retry' still runs the job again.`,
		Example: `  yardmaster dlq rm 17
  yardmaster dlq rm --older-than 720h --dry-run`,
	}, "remove", func(*cobra.Command, map[string]any) error { return nil })
}

// changesLetters makes a verb that changes letters; options adds what else the
// request says.
func (a *app) changesLetters(c *cobra.Command, verb string, options func(*cobra.Command, map[string]any) error) *cobra.Command {
	var f letterFlags
	var all, dry bool
	f.addLimit(f.add(a.takesJSON(c)), 0)
	c.Flags().BoolVar(&all, "all", false, "all dead letters")
	c.Flags().BoolVarP(&dry, "dry-run", "n", false, "change nothing, show what would be done")
	c.RunE = func(c *cobra.Command, names []string) error {
		q, err := f.question(c, names)
		switch named := len(q) > 0; {
		case err != nil:
			return err
		case !named && !all:
			return usage(c, "no dead letters are named: name some, give a filter, or --all")
		case named && all:
			return usage(c, "--all excludes filters and names")
		}
		q["all"], q["dry_run"] = all, dry
		if err := options(c, q); err != nil {
			return err
		}
		return a.changeLetters(c.Context(), verb, q, f.limit)
	}
	return c
}
