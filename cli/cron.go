package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"

	"github.com/spf13/cobra"
)

// cronAnswer is a cron entry as the yard tells it.
type cronAnswer struct {
	Name     string      `json:"name"`
	Schedule string      `json:"schedule"`
	Zone     string      `json:"time_zone"`
	Queue    string      `json:"queue"`
	Job      job.Spec    `json:"job"`
	Declared bool        `json:"declared"`
	State    string      `json:"state"`
	Upcoming []time.Time `json:"upcoming"`
	Missed   string      `json:"missed"`
	Overlap  string      `json:"overlap"`
	Last     *time.Time  `json:"last"`
	LastJob  string      `json:"last_job"`
	Standing string      `json:"last_job_state"`
	Left     *leftAnswer `json:"last_left_out"`
	Fired    uint64      `json:"fired"`
	Skipped  uint64      `json:"skipped"`
	Overdue  uint64      `json:"missed_count"`
}

// leftAnswer is a time that made no job.
type leftAnswer struct {
	At  *time.Time `json:"at"`
	Why string     `json:"why"`
	Job string     `json:"job"`
}

type cronsAnswer struct {
	Entries []cronAnswer `json:"entries"`
}

func (a *app) cronVerbs() *cobra.Command {
	return group(&cobra.Command{
		Use:   "cron <verb>",
		Short: "List, show, add, remove, pause, resume and run cron entries",
		Long: `Looks at cron entries and changes them. An entry makes a job at each of its
times, once for the whole yard, whichever node is in charge. Entries may also be
declared in the configuration; those are changed there.`,
		Example: `  yardmaster cron add nightly "0 0 3 * * *" reports build --zone Europe/Berlin
  yardmaster cron list
  yardmaster cron run nightly`,
	}, a.cronList(), a.cronVerb("show", "Show a cron entry, what it did last, and why a time made no job", cronRows), a.cronAdd(),
		a.cronVerb("rm", "Remove a cron entry; jobs that it made stay", cronRemovedLine),
		a.cronVerb("pause", "Let a cron entry make no more jobs", cronTable),
		a.cronVerb("resume", "Let a paused cron entry make jobs again, from its next time on", cronTable),
		a.cronRun())
}

func (a *app) cronVerb(verb, short string, table func(io.Writer, *cronAnswer)) *cobra.Command {
	c := a.takesJSON(&cobra.Command{
		Use:     verb + " <entry>",
		Short:   short,
		Example: "  yardmaster cron " + verb + " nightly",
		Args:    args("entry"),
	})
	endpoint := verb
	if verb == "rm" {
		endpoint = "remove"
		c.Aliases = []string{"remove", "del", "delete"}
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return show(c.Context(), a, cluster.SubjectAPI+".cron."+endpoint, map[string]any{"name": args[0]}, table)
	}
	return c
}

func (a *app) cronRun() *cobra.Command {
	var id string
	c := a.takesJSON(&cobra.Command{
		Use:   "run <entry>",
		Short: "Make a cron entry's job now, beside those of its times",
		Long: `Makes a job as the entry's times do, and shows its id; with --id, one job however
often the command is repeated. It works on a paused entry too, does not move the
next time, and overlaps: it does not ask whether the last time's job has ended,
and the next time does not ask about it.`,
		Example: `  yardmaster cron run nightly
  yardmaster cron run nightly --id nightly-by-hand-1`,
		Args: args("entry"),
	})
	c.Flags().StringVar(&id, "id", "", "idempotency `key` of the job: a UUID or any text up to 128 bytes")
	c.RunE = func(c *cobra.Command, args []string) error {
		request := map[string]any{"name": args[0]}
		if len(id) > job.MaxKeyLen {
			return usage(c, "--id: "+job.ErrKeyTooLong.Error())
		}
		if id != "" {
			request["new_id"] = id
		}
		return show(c.Context(), a, cluster.SubjectAPI+".cron.run", request, a.acceptedLine)
	}
	return c
}

func (a *app) cronList() *cobra.Command {
	return a.takesJSON(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all cron entries, when they come next and what they did",
		Example: `  yardmaster cron list --json`,
		Args:    args(),
		RunE:    func(c *cobra.Command, _ []string) error { return a.listCrons(c) },
	})
}

// listCrons asks page by page; --json shows all of them as one answer.
func (a *app) listCrons(c *cobra.Command) error {
	y, err := a.dial(c.Context())
	if err != nil {
		return err
	}
	defer y.Close()
	all := []json.RawMessage{}
	for after, more := "", true; more; {
		answer, err := y.ask(c.Context(), cluster.SubjectAPI+".cron.list", map[string]any{"after": after})
		if err != nil {
			return err
		}
		var page struct {
			Entries []json.RawMessage `json:"entries"`
			More    bool              `json:"more"`
		}
		if err := json.Unmarshal(answer, &page); err != nil {
			return unreadable(err)
		}
		all = append(all, page.Entries...)
		if more = page.More && len(page.Entries) > 0; more {
			var last cronAnswer
			if err := json.Unmarshal(page.Entries[len(page.Entries)-1], &last); err != nil {
				return unreadable(err)
			}
			after = last.Name
		}
	}
	whole, err := json.Marshal(map[string]any{"entries": all})
	if err != nil {
		return unreadable(err)
	}
	return print(a, whole, cronsTable)
}

func (a *app) cronAdd() *cobra.Command {
	var (
		f                     enqueueFlags
		zone, missed, overlap string
		replace               bool
	)
	c := a.takesJSON(&cobra.Command{
		Use:   "add <entry> <schedule> <queue> [function]",
		Short: "Add a cron entry",
		Long: `Adds a cron entry: a job for the queue at each time that the schedule names. It
has six fields, second, minute, hour, day of month, month and day of week (SUN or
0 to SAT or 6); or five, without the second; or is @hourly, @daily, @weekly,
@monthly, @yearly, "@every 90s".

Where a clock is put forward, times that do not exist are left out; where it is
put back, times that come twice count twice. The same entry again changes nothing.`,
		Example: `  yardmaster cron add nightly "0 0 3 * * *" reports build --zone Europe/Berlin
  yardmaster cron add poll "@every 30s" feeds fetch --params '{"feed":7}' --overlap skip`,
		Args: args("entry", "schedule", "queue", "[function]"),
	})
	flags := c.Flags()
	flags.StringVar(&f.params, "params", "", "JSON object given to the handler: `json`, @file, or - for standard input")
	flags.StringVar(&f.payload, "payload-file", "", "`file` with one MessagePack value instead of params; - for standard input")
	flags.Int64Var(&f.priority, "priority", job.DefaultPriority, "0 to 9, 9 starts first")
	flags.Int64Var(&f.maxAttempts, "max-attempts", 0, "total `number` of attempts of each job (default the yard's)")
	flags.DurationVar(&f.timeout, "timeout", 0, "hard `time` limit of one attempt (default the yard's); NATS_TIMEOUT is the request's")
	flags.DurationVar(&f.retryInterval, "retry-interval", 0, "fixed `time` between attempts (default growing)")
	flags.StringVar(&zone, "zone", "", "IANA time `zone` of the schedule (default UTC)")
	flags.StringVar(&missed, "missed", "skip", "times missed while no node was in charge: skip, or `once` for one job in their place")
	flags.StringVar(&overlap, "overlap", "allow", "a time while the last one's job has not ended: `allow` it, or skip")
	flags.BoolVar(&replace, "replace", false, "replace an entry of this name that says something else")
	c.RunE = func(c *cobra.Command, args []string) error {
		spec, err := a.spec(c, &f)
		if err != nil {
			return err
		}
		if len(args) > 3 {
			spec.Function = args[3]
		}
		if err := spec.Validate(); err != nil {
			return usage(c, err.Error())
		}
		return show(c.Context(), a, cluster.SubjectAPI+".cron.add", map[string]any{
			"name": args[0], "schedule": args[1], "queue": args[2], "job": spec,
			"time_zone": zone, "missed": missed, "overlap": overlap, "replace": replace,
		}, cronTable)
	}
	return c
}

func cronsTable(w io.Writer, s *cronsAnswer) {
	fmt.Fprint(w, "ENTRY\tSTATE\tSCHEDULE\tZONE\tQUEUE\tFUNCTION\tNEXT\tLAST\tFIRED\tSKIPPED\tMISSED\tFROM\n")
	for i := range s.Entries {
		c := &s.Entries[i]
		next, last, from := "-", "-", "command"
		if len(c.Upcoming) > 0 {
			next = c.Upcoming[0].Format(time.RFC3339)
		}
		if c.Last != nil {
			last = c.Last.Format(time.RFC3339)
		}
		if c.Declared {
			from = "configuration"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", c.Name, c.State, c.Schedule, c.Zone, c.Queue,
			cmp.Or(c.Job.Function, "-"), next, last, c.Fired, c.Skipped, c.Overdue, from)
	}
}

// cronTable is one entry, and when it comes after its next time.
func cronTable(w io.Writer, c *cronAnswer) {
	cronsTable(w, &cronsAnswer{Entries: []cronAnswer{*c}})
	for i, at := range c.Upcoming {
		if i > 0 {
			fmt.Fprintln(w, "then", at.Format(time.RFC3339))
		}
	}
}

// cronRows show all there is to know of one entry, leaving out what it has not.
func cronRows(w io.Writer, c *cronAnswer) {
	row := func(name, value string) {
		if value != "" && value != "-" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	row("entry", c.Name)
	row("state", c.State)
	row("from", map[bool]string{true: "configuration", false: "command"}[c.Declared])
	row("schedule", c.Schedule+" in "+c.Zone)
	row("queue", c.Queue)
	row("function", c.Job.Function)
	row("params", value(c.Job.Params, c.Job.Payload))
	for i, at := range c.Upcoming {
		row(map[bool]string{true: "next", false: "then"}[i == 0], moment(&at))
	}
	row("last", moment(c.Last))
	if c.Last != nil {
		row("last job", c.LastJob+", "+cmp.Or(c.Standing, "forgotten by the yard"))
	}
	row("fired", fmt.Sprint(c.Fired))
	row("skipped", fmt.Sprintf("%d (overlap: %s)", c.Skipped, c.Overlap))
	row("missed", fmt.Sprintf("%d (missed: %s)", c.Overdue, c.Missed))
	if l := c.Left; l != nil {
		why := "and after it: no node was in charge"
		if l.Job != "" {
			why = "job " + l.Job + " had not ended"
		}
		row("left out last", moment(l.At)+", "+why)
	}
}

func cronRemovedLine(w io.Writer, c *cronAnswer) { fmt.Fprintf(w, "%s\tremoved\n", c.Name) }
