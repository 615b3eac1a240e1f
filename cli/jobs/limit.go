package jobs

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// LimitVerbs returns the verb limit.
func LimitVerbs(env *command.Env) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "limit <verb>",
		Short: "List, show, set, pause, resume and remove named limits, which queues and jobs share",
		Long: `Shows and changes named limits: how many jobs run at once, in all and of each key, and
how many start in a time. Queues use a limit with 'yardmaster queue set --limit', and
jobs may name further ones. Changes take effect at once.`,
		Example: `  yardmaster limit set stripe --total 20 --per-key 2 --rate 100/s --burst 20
  yardmaster queue set mail --limit stripe --key params.customer --fair
  yardmaster limit show stripe`,
	}, limitList(env),
		limitVerb(env, "show", "Show a limit, the queues and keys that use it, and the jobs that hold its slots"),
		limitSet(env),
		limitVerb(env, "pause", "Pause a limit: no job that uses it starts; running jobs continue"),
		limitVerb(env, "resume", "Resume a paused limit"),
		limitRemove(env))
}

// limitList returns the verb 'limit list'.
func limitList(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all limits, and how much of each is used",
		Example: `  yardmaster limit list`,
		RunE: func(c *cobra.Command, _ []string) error {
			type page struct {
				Limits []json.RawMessage `json:"limits"`
				Next   string            `json:"next,omitempty"`
			}
			all := page{Limits: []json.RawMessage{}}
			err := command.Pages(c.Context(), env, api.Subject("limit-list"), func(p *page) (after string) {
				all.Limits = append(all.Limits, p.Limits...)
				return p.Next
			})
			if err != nil {
				return err
			}
			return command.PrintValue(env, all, limitsTable)
		},
	})
}

// limitVerb returns a verb that takes one limit, sends the request of the same name and shows
// the limit.
func limitVerb(env *command.Env, verb, short string) *cobra.Command {
	return command.Query(env, &cobra.Command{
		Use:     verb + " <limit>",
		Short:   short,
		Example: "  yardmaster limit " + verb + " stripe",
	}, limitText, func(args []string) (subject string, body any) { return api.Subject("limit-" + verb), named(args) })
}

// limitRemove returns the verb 'limit rm'.
func limitRemove(env *command.Env) *cobra.Command {
	var force bool
	c := env.WithJSON(&cobra.Command{
		Use:     "rm <limit>",
		Aliases: []string{"remove", "del", "delete"},
		Short:   "Remove a limit that no queue uses",
		Example: "  yardmaster limit rm stripe\n  yardmaster limit rm stripe --force",
		RunE: func(c *cobra.Command, args []string) error {
			request := named(args)
			if force {
				request["force"] = true
			}
			return command.Request(c.Context(), env, api.Subject("limit-remove"), request, func(w io.Writer, l *api.Removed) {
				command.Printf(w, "%s\tremoved\n", l.Name)
			})
		},
	})
	c.Flags().BoolVar(&force, "force", false, "remove it although queues use it, and take it from them")
	return c
}

// limitSet returns the verb 'limit set'.
func limitSet(env *command.Env) *cobra.Command {
	c := env.WithJSON(&cobra.Command{
		Use:   "set <limit>",
		Short: "Create a limit, or change settings of it; those that are not given stay",
		Long: `Creates a limit, or changes it. A lowered bound stops no job: none starts until enough
have ended. A rate counts starts; --burst is how many of them may come at once.

With --open-after, so many failures within the time of --within open the circuit: no job
starts until one that probes has completed.`,
		Example: `  yardmaster limit set stripe --total 20 --per-key 2 --rate 100/s --burst 20
  yardmaster limit set stripe --per-key none
  yardmaster limit set stripe --open-after 10 --within 1m --on http_503 --probe-after 30s`,
	})
	add := addSettings(c, []setting{
		{"total", "total", "`number` of jobs that run at the same time", number(1, job.MaxLimit)},
		{"per-key", "per_key", "`number` of jobs of each key that run at the same time", number(1, job.MaxLimit)},
		{"rate", "rate", "`starts` in a time, such as 100/s, 5/m or 3/10s", rateText},
		{"burst", "burst", "`number` of starts at once, after a pause (default those of a tenth of a second)", number(1, job.MaxBurst)},
		{"rate-per-key", "rate_per_key", "`starts` of each key in a time", rateText},
		{"burst-per-key", "burst_per_key", "`number` of starts of each key at once", number(1, job.MaxBurst)},
		{"open-after", "open_after", "`number` of failures that open the circuit", number(1, job.MaxOpenAfter)},
		{"within", "within_ms", "`time` in which the failures are counted", milliseconds},
		{"on", "on", "`types` or codes of the errors that count, separated by commas (default all)", func(text string) (any, error) { return strings.Split(text, ","), nil }},
		{"half-open", "half_open", "`number` of jobs that may probe at the same time (default 1)", number(1, job.MaxOpenAfter)},
		{"probe-after", "probe_after_ms", "`time` for which the circuit is open before the first probe (default as --within)", milliseconds},
	})
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := job.ValidLimit(args[0]); err != nil {
			return usererror.Usage(c, "%v", err)
		}
		request := named(args)
		if err := add(request); err != nil {
			return err
		}
		return command.Request(c.Context(), env, api.Subject("limit-set"), request, limitText)
	}
	return c
}

// rateText checks a rate.
func rateText(text string) (any, error) {
	if _, err := job.ParseRate(text); err != nil {
		return nil, fmt.Errorf("must be a number of starts and a time, such as 100/s, 5/m, 1/h or 3/10s, or none")
	}
	return text, nil
}

func limitsTable(w io.Writer, list *api.LimitList) {
	command.Titles(w, "LIMIT\tSTATE\tTOTAL\tPER KEY\tRATE\tRATE PER KEY\tRUNNING\tWAITING", "RATE PER KEY", "PER KEY", "RATE", "TOTAL")
	for i := range list.Limits {
		l := &list.Limits[i]
		command.Row(w, l.Name, limitState(l), slotsText(l.Total), slotsText(l.PerKey), command.OrDash(l.Rate), command.OrDash(l.RatePerKey), l.Running, l.Waiting)
	}
}

// limitState returns the state of a limit in a word.
func limitState(l *api.Limit) string {
	switch {
	case l.Paused:
		return "paused"
	case l.Circuit != nil && l.Circuit.State != "closed":
		return strings.ReplaceAll(l.Circuit.State, "_", "-")
	case l.FullSince != nil:
		return "full"
	}
	return "free"
}

func slotsText(slots *int64) string {
	if slots == nil {
		return "-"
	}
	return fmt.Sprint(*slots)
}

// limitText shows a limit, and who uses it.
func limitText(w io.Writer, l *api.LimitDetail) {
	limitsTable(w, &api.LimitList{Limits: []api.Limit{l.Limit}})
	command.Printf(w, "\n")
	if l.FullSince != nil {
		command.Printf(w, "full since %s\n", l.FullSince.Format(time.RFC3339))
	}
	if l.Tokens != nil {
		command.Printf(w, "rate %s, burst %d: %d may start now", l.Rate, l.Burst, *l.Tokens)
		if l.NextStart != nil {
			command.Printf(w, ", the next at %s", l.NextStart.Format(time.RFC3339Nano))
		}
		command.Printf(w, "\n")
	}
	if l.RatePerKey != "" {
		command.Printf(w, "rate of each key %s, burst %d\n", l.RatePerKey, l.BurstPerKey)
	}
	circuitText(w, l)
	if len(l.Queues) > 0 {
		command.Printf(w, "\nQUEUE\tWAITING\n")
		for _, q := range l.Queues {
			name := q.Queue
			if q.Jobs {
				name += " (jobs that name it)"
			}
			command.Row(w, name, q.Waiting)
		}
	}
	moreText(w, "queues", l.MoreQueues)
	if len(l.Keys) > 0 {
		command.Printf(w, "\n")
		command.Titles(w, "KEY\tRUNNING\tWAITING\tBLOCKED")
		for _, k := range l.Keys {
			command.Row(w, functionName(k.Key), k.Running, k.Waiting, command.YesNo(k.Blocked))
		}
	}
	moreText(w, "keys", l.MoreKeys)
	if l.Partial {
		command.Printf(w, "there are so many jobs and keys that only some were counted by key\n")
	}
	if len(l.Holders) > 0 {
		command.Printf(w, "\n")
		command.Titles(w, "RUNNING JOB\tQUEUE\tKEY\tNODE\tCHANNEL\tSINCE", "CHANNEL", "SINCE", "NODE")
		for i := range l.Holders {
			h := &l.Holders[i]
			command.Row(w, h.ID, h.Queue, functionName(h.LimitKey), h.Node, h.Channel, h.Since.Format(time.RFC3339))
		}
	}
	moreText(w, "running jobs", l.MoreHolders)
}

// moreText shows how many things a table left out.
func moreText(w io.Writer, things string, n int) {
	if n > 0 {
		command.Printf(w, "and %d more %s\n", n, things)
	}
}

// circuitText shows the circuit of a limit.
func circuitText(w io.Writer, l *api.LimitDetail) {
	c := l.Circuit
	if c == nil {
		return
	}
	milliseconds := func(ms int64) string { return duration.Format(time.Duration(ms) * time.Millisecond) }
	counts := "any error counts"
	if len(l.On) > 0 {
		counts = strings.Join(l.On, ", ") + " count"
	}
	command.Printf(w, "circuit opens after %d failures within %s (%s), and probes after %s\n", l.OpenAfter, milliseconds(l.Within), counts, milliseconds(l.ProbeAfter))
	if c.Since == nil {
		command.Printf(w, "circuit closed: %d failures count now\n", c.Failures)
		return
	}
	command.Printf(w, "circuit open since %s, probes from %s on, %d of %d run\n", c.Since.Format(time.RFC3339), c.ProbeAt.Format(time.RFC3339), c.Probes, l.HalfOpen)
}
