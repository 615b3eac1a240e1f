package jobs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/durationflag"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"

	"github.com/spf13/cobra"
)

// CronVerbs returns the verb cron.
func CronVerbs(env *command.Env) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "cron <verb>",
		Short: "List, show, add, remove, pause, resume and run cron entries",
		Long: `Shows and changes cron entries. An entry makes one job at each of its times, once
in the whole yard, even if the authority changes. Entries that are declared in
the configuration are changed there.`,
		Example: `  yardmaster cron add nightly "0 0 3 * * *" reports build --zone Europe/Berlin
  yardmaster cron list
  yardmaster cron run nightly`,
	}, cronList(env),
		cronShow(env),
		cronAdd(env), cronRemove(env),
		cronVerb(env, "pause", "pause", "Pause a cron entry: it makes no more jobs", cronTable),
		cronVerb(env, "resume", "resume", "Resume a paused cron entry, from its next time on", cronTable),
		cronRun(env))
}

// cronVerb returns a verb that takes one cron entry, sends a request about it and shows
// the reply by table. endpoint is the last part of the endpoint's name.
func cronVerb(env *command.Env, verb, endpoint, short string, table func(io.Writer, *api.CronDetail)) *cobra.Command {
	return command.Query(env, &cobra.Command{
		Use:     verb + " <entry>",
		Short:   short,
		Example: "  yardmaster cron " + verb + " nightly",
	}, table, func(args []string) (string, any) { return api.Subject("cron-" + endpoint), named(args) })
}

// cronShow returns the verb 'cron show'.
func cronShow(env *command.Env) *cobra.Command {
	var next int
	c := command.Query(env, &cobra.Command{
		Use:   "show <entry>",
		Short: "Show a cron entry, its next times, its last job, and its last skipped time",
		Long: `Shows a cron entry. Its next times are in UTC and in the entry's time zone, with
what is done where that zone's clock is set: a time in a skipped hour comes right
after it, one in a double hour the first time.`,
		Example: `  yardmaster cron show nightly
  yardmaster cron show nightly --next 20`,
	}, cronRows, func(args []string) (string, any) {
		request := named(args)
		if next != 0 {
			request["next"] = next
		}
		return api.Subject("cron-show"), request
	})
	c.Flags().IntVar(&next, "next", 0, fmt.Sprintf("`number` of next times, up to %d (default %d)", api.MaxCronTicks, api.CronTicks))
	return c
}

func cronRemove(env *command.Env) *cobra.Command {
	c := cronVerb(env, "rm", "remove", "Remove a cron entry; jobs that it made stay", func(w io.Writer, c *api.CronDetail) { command.Printf(w, "%s\tremoved\n", c.Name) })
	c.Aliases = []string{"remove", "del", "delete"}
	return c
}

// cronRun returns the verb 'cron run'.
func cronRun(env *command.Env) *cobra.Command {
	var id string
	c := env.WithJSON(&cobra.Command{
		Use:   "run <entry>",
		Short: "Make a cron entry's job now",
		Long: `Makes a job as the entry does at its times, and shows the job's id. With --id,
repeating the command makes no second job. It works for a paused entry too, does
not move the next time, and ignores the overlap rule: it does not check whether
the previous job has ended, and the next time does not wait for this one.`,
		Example: `  yardmaster cron run nightly
  yardmaster cron run nightly --id nightly-by-hand-1`,
	})
	c.Flags().StringVar(&id, "id", "", "idempotency `key` of the job: a UUID or any text up to 128 bytes")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := checkKey(c, id); err != nil {
			return err
		}
		request := named(args)
		if id != "" {
			request["new_id"] = id
		}
		return command.Request(c.Context(), env, api.Subject("cron-run"), request, acceptedLine(env))
	}
	return c
}

func cronList(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all cron entries with their next times and counts",
		Example: `  yardmaster cron list --json`,
		RunE:    func(c *cobra.Command, _ []string) error { return listCrons(env, c) },
	})
}

// listCrons requests all pages of the list of cron entries and prints them as one reply.
func listCrons(env *command.Env, c *cobra.Command) error {
	type page struct {
		Entries []json.RawMessage `json:"entries"`
		More    bool              `json:"more,omitempty"`
	}
	all := page{Entries: []json.RawMessage{}}
	err := command.Pages(c.Context(), env, api.Subject("cron-list"), func(p *page) (after string) {
		all.Entries = append(all.Entries, p.Entries...)
		if !p.More || len(p.Entries) == 0 {
			return ""
		}
		last, _ := connect.Decode[api.Cron](p.Entries[len(p.Entries)-1], nil) // the table shows the error
		return last.Name
	})
	if err != nil {
		return err
	}
	return command.PrintValue(env, all, cronsTable)
}

// cronAdd returns the verb 'cron add'.
func cronAdd(env *command.Env) *cobra.Command {
	var (
		f                     enqueueFlags
		zone, missed, overlap string
		replace               bool
	)
	c := env.WithJSON(&cobra.Command{
		Use:   "add <entry> <schedule> <queue> [function]",
		Short: "Add a cron entry",
		Long: `Adds a cron entry, which makes a job for the queue at each time of the schedule.
A schedule has six fields: second, minute, hour, day of month, month and day of
week (SUN or 0 to SAT or 6; 7 is Sunday, too); or five, without the second. It may
also be @hourly, @daily, @weekly, @monthly, @yearly, or like "@every 90s" (whole
seconds).

A schedule that names hours, such as "0 30 2 * * *", "0 0 */2 * * *" or @daily, has
each of its times once on each day: if the zone's clock is set forward over it,
right after that; if it comes twice, the first time. A schedule of all hours,
such as "0 30 * * * *" or @hourly, goes by elapsed time. Adding an identical entry
again changes nothing.`,
		Example: `  yardmaster cron add nightly "0 0 3 * * *" reports build --zone Europe/Berlin
  yardmaster cron add poll "@every 30s" feeds fetch --params '{"feed":7}' --overlap skip`,
	})
	flags := c.Flags()
	flags.StringVar(&f.params, "params", "", "JSON object passed to the handler: `json`, @file, or - for standard input")
	flags.StringVar(&f.payload, "payload-file", "", "`file` with one MessagePack value instead of params; - for standard input")
	flags.Int64Var(&f.priority, "priority", job.DefaultPriority, "0 to 9; 9 starts first")
	flags.Int64Var(&f.maxAttempts, "max-attempts", 0, "total `number` of attempts of each job (default set by the yard)")
	durationflag.Var(flags, &f.timeout, "timeout", 0, "`time` limit of one attempt (default set by the yard); NATS_TIMEOUT limits the request itself")
	durationflag.Var(flags, &f.retryInterval, "retry-interval", 0, "fixed `time` between attempts (default increasing)")
	flags.BoolVar(&f.retryOnTimeout, "retry-on-timeout", false, retryOnTimeoutUsage)
	f.labels.add(c)
	flags.StringVar(&zone, "zone", "", "IANA time `zone` of the schedule (default UTC)")
	flags.StringVar(&missed, "missed", "skip", "what to do about times missed while there was no authority: the `policy` skip, or once to make one job for all of them")
	flags.StringVar(&overlap, "overlap", "allow", "what to do if the previous job has not ended: the `policy` allow, or skip")
	flags.BoolVar(&replace, "replace", false, "replace a different entry of this name")
	c.RunE = func(c *cobra.Command, args []string) error {
		spec, err := f.spec(env, c)
		if err != nil {
			return err
		}
		if len(args) > 3 {
			spec.Function = args[3]
		}
		if err := spec.Validate(); err != nil {
			return usererror.Usage(c, "%v", err)
		}
		err = command.Request(c.Context(), env, api.Subject("cron-add"), map[string]any{
			"name": args[0], "schedule": args[1], "queue": args[2], "job": spec,
			"time_zone": zone, "missed": missed, "overlap": overlap, "replace": replace,
		}, cronTable)
		if refused := connect.Refused(err); refused != nil && strings.Contains(refused.Text, ledger.ErrCronExists.Error()) {
			return usererror.New(fmt.Sprintf("a different cron entry %q exists", args[0]), "replace it with --replace")
		}
		return err
	}
	return c
}

// cronsTable shows cron entries, one per line.
func cronsTable(w io.Writer, s *api.CronPage) {
	command.Titles(w, "ENTRY\tSTATE\tSCHEDULE\tZONE\tQUEUE\tFUNCTION\tNEXT\tLAST\tFIRED\tSKIPPED\tMISSED\tFROM", "FROM", "SKIPPED", "MISSED", "FIRED", "FUNCTION", "LAST", "ZONE")
	for i := range s.Entries {
		c := &s.Entries[i]
		next, last := "-", "-"
		if len(c.Upcoming) > 0 {
			next = c.Upcoming[0].Format(time.RFC3339)
		}
		if c.Last != nil {
			last = c.Last.Format(time.RFC3339)
		}
		command.Row(w, c.Name, c.State, c.Schedule, c.Zone, c.Queue,
			command.OrDash(cronSpec(c).Function), next, last, c.Fired, c.Skipped, c.Overdue, cronOrigin(c))
	}
}

// cronTable shows one entry and its further times.
func cronTable(w io.Writer, c *api.CronDetail) {
	cronsTable(w, &api.CronPage{Entries: []api.Cron{c.Cron}})
	for i, at := range c.Upcoming {
		local := localText(&c.Cron, i)
		switch {
		case i > 0:
			command.Printf(w, "then %s%s\n", at.Format(time.RFC3339), local)
		case local != "":
			command.Printf(w, "next %s%s\n", at.Format(time.RFC3339), local)
		}
	}
}

// cronRows shows one entry in full, without empty fields.
func cronRows(w io.Writer, c *api.CronDetail) {
	row := command.Fields(w)
	row("entry", c.Name)
	row("state", c.State)
	row("from", cronOrigin(&c.Cron))
	row("schedule", c.Schedule+" in "+c.Zone)
	row("queue", c.Queue)
	spec := cronSpec(&c.Cron)
	row("function", spec.Function)
	row("params", valueText(spec.Params, spec.Payload))
	name := "next"
	for i, at := range c.Upcoming {
		row(name, command.TimeText(&at)+localText(&c.Cron, i))
		name = "then"
	}
	row("last", command.TimeText(c.Last))
	if c.Last != nil {
		row("last job", idText(c.LastJob)+", "+cmp.Or(c.LastState, "no longer in the ledger"))
	}
	row("fired", fmt.Sprint(c.Fired))
	row("skipped", fmt.Sprintf("%d (overlap: %s)", c.Skipped, c.Overlap))
	row("missed", fmt.Sprintf("%d (missed: %s)", c.Overdue, c.Missed))
	if l := c.LastSkipped; l != nil {
		reason := "and later times: there was no authority"
		if l.Job != nil {
			reason = "job " + l.Job.String() + " had not ended"
		}
		row("last skipped", command.TimeText(&l.At)+", "+reason)
	}
}

// localText returns the text that follows the next time number i of an entry: the time in the
// entry's time zone, if that is not UTC, and the note.
func localText(c *api.Cron, i int) (text string) {
	if i >= len(c.Ticks) { // the node is of an earlier build
		return ""
	}
	tick := &c.Ticks[i]
	if c.Zone != "UTC" {
		text = "  " + tick.Local
	}
	if tick.Note != "" {
		text += "  " + tick.Note
	}
	return text
}

// cronOrigin returns where a cron entry comes from: "configuration" or "command".
func cronOrigin(c *api.Cron) string {
	if c.Declared {
		return "configuration"
	}
	return "command"
}

// cronSpec returns the specification of the jobs that an entry makes.
func cronSpec(c *api.Cron) (spec job.Spec) {
	_ = json.Unmarshal(c.Job, &spec) // what a newer version adds is not shown
	return spec
}

// idText returns an id, "" for nil.
func idText(id *job.ID) string {
	if id == nil {
		return ""
	}
	return id.String()
}
