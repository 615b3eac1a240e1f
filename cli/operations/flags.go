package operations

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/durationflag"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Flags are the flags with which a verb starts an operation instead of naming jobs.
type Flags struct {
	query     string
	rate      uint32
	wait, yes bool
	limit     time.Duration // longest time to wait; 0 means no limit
	dryRun    *bool
}

// Add adds the flags to a verb. dryRun is the value of its flag --dry-run; nil: it has none, and
// gets one.
func (f *Flags) Add(c *cobra.Command, dryRun *bool) {
	flags := c.Flags()
	flags.StringVar(&f.query, "query", "", "all jobs that match a `query`, such as 'queue:mail state:failed since:1h', instead of names")
	flags.Uint32Var(&f.rate, "rate", 0, "with --query: `jobs` per second (default as fast as the yard takes them beside its other work)")
	flags.BoolVar(&f.wait, "wait", false, "with --query: wait for the end, and exit with 1 if a job could not be changed")
	durationflag.Var(flags, &f.limit, "for", 0, "with --wait: longest `time` to wait; then exit with 5, and the operation goes on (default no limit)")
	flags.BoolVarP(&f.yes, "yes", "y", false, "with --query: start without a question")
	if f.dryRun = dryRun; dryRun == nil {
		f.dryRun = flags.BoolP("dry-run", "n", false, "with --query: show what would be done, without changing anything")
	}
}

// Start starts the operation, after it has shown what that would do and asked, or only shows it in
// a dry run. It reports false, and does nothing, without --query. names are the arguments of the
// verb c, request has what its other flags set; others are the names of those flags.
func (f *Flags) Start(c *cobra.Command, env *command.Env, names []string, request api.OperationStart, others ...string) (given bool, err error) {
	switch given = c.Flags().Changed("query"); {
	case !given:
		for _, name := range []string{"rate", "wait", "for", "yes"} {
			if c.Flags().Changed(name) {
				return true, usererror.Usage(c, "--%s is for --query", name)
			}
		}
		return false, nil
	case len(names) > 0:
		return true, usererror.Usage(c, "--query excludes names")
	case c.Flags().Changed("for") && (!f.wait || f.limit <= 0):
		return true, usererror.Usage(c, "--for needs --wait, and a time of more than 0")
	case strings.TrimSpace(f.query) == "":
		return true, usererror.Usage(c, "--query is empty: write what the jobs have in common, such as queue:mail, or id:* for all jobs")
	}
	others = append(others, "query", "rate", "wait", "for", "yes", "json", "dry-run")
	c.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && !slices.Contains(others, flag.Name) {
			err = usererror.Usage(c, "--query excludes --%s", flag.Name)
		}
	})
	if err != nil {
		return true, err
	}
	request.Query, request.Rate, request.Key = f.query, f.rate, uuid.NewString()
	return true, Underline(env, f.query, f.run(c.Context(), env, &request))
}

// run starts the operation, or shows what it would do.
func (f *Flags) run(ctx context.Context, env *command.Env, request *api.OperationStart) error {
	if *f.dryRun {
		return command.Request(ctx, env, api.Subject("operation-preview"), request, preview)
	}
	if !f.yes {
		if agreed, err := ask(ctx, env, request); err != nil || !agreed {
			return err
		}
	}
	reply, err := env.Send(ctx, api.Subject("operation-start"), request)
	if err != nil {
		return err
	}
	if !f.wait {
		return command.Print(env, reply, show)
	}
	started, err := connect.Decode[api.Operation](reply, nil)
	if err != nil {
		return err
	}
	return await(ctx, env, started.ID, f.limit)
}

var errNoTerminal = usererror.Invalid("nothing was changed: there is no terminal on which to ask", "give --dry-run to see what would be done, and --yes to do it")

// ask shows what an operation would do, and reports whether the answer on the terminal is yes.
func ask(ctx context.Context, env *command.Env, request *api.OperationStart) (agreed bool, err error) {
	file, ok := env.In.(*os.File)
	if ok {
		info, err := file.Stat()
		ok = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	if !ok {
		return false, errNoTerminal
	}
	p, err := connect.Decode[api.OperationPreview](env.Send(ctx, api.Subject("operation-preview"), request))
	if err != nil {
		return false, err
	}
	if err := command.Show(env, env.Err, &p, preview); err != nil {
		return false, err
	}
	if p.Applicable == 0 && !p.AtLeast {
		env.Note("nothing was changed: there are no such jobs")
		return false, nil
	}
	command.Printf(env.Err, "\n%s %s? [y/N] ", strings.ToUpper(p.Action[:1])+p.Action[1:], jobsText(&p))
	line, err := bufio.NewReader(file).ReadString('\n')
	if err != nil && line == "" { // such as that of /dev/null, which looks like a terminal
		return false, errNoTerminal
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		env.Note("nothing was changed")
		return false, nil
	}
	return true, nil
}

// jobsText returns to how many jobs an operation applies.
func jobsText(p *api.OperationPreview) string {
	switch {
	case p.AtLeast:
		return fmt.Sprintf("%d jobs or more", p.Applicable)
	case p.Applicable == 1:
		return "1 job"
	}
	return fmt.Sprintf("%d jobs", p.Applicable)
}

// preview writes what an operation would do.
func preview(w io.Writer, p *api.OperationPreview) {
	row := command.Fields(w)
	row("action", p.Action)
	row("query", p.Query)
	matched := fmt.Sprint(p.Matched)
	if p.AtLeast {
		matched += " or more: not all were counted"
	}
	row("matched", matched)
	applicable := fmt.Sprint(p.Applicable)
	if p.Unchecked > 0 {
		applicable += fmt.Sprintf(", or fewer: the dead letters of %d were not looked for", p.Unchecked)
	}
	row("applicable", applicable)
	row("states", command.Counts(p.States))
	for _, why := range command.SortedKeys(p.Skipped) {
		row("skipped", fmt.Sprintf("%d: %s", p.Skipped[why], why))
	}
	for _, advice := range p.Advice {
		row("advice", advice)
	}
	if len(p.Sample) == 0 {
		return
	}
	command.Printf(w, "\n")
	command.Titles(w, "JOB\tQUEUE\tSTATE\tCREATED\tFUNCTION\tNOTE", "CREATED", "FUNCTION", "STATE")
	for i := range p.Sample {
		s := &p.Sample[i]
		note := string(s.Params)
		switch {
		case s.Skipped != "":
			note = "skipped: " + s.Skipped
		case s.Refused != "":
			note = "refused: " + s.Refused
		case note == "" && s.Error != nil:
			note = s.Error.Message
		}
		command.Row(w, s.ID, s.Queue, s.State, command.TimeText(&s.Created), s.Function, note)
	}
}

// waitInterval is how often an operation is looked at that is waited for.
const waitInterval = 500 * time.Millisecond

// await waits for the end of an operation, writes its progress to standard error, and shows it. It
// returns [usererror.Failed] if the operation was cancelled, or could not change all jobs. A limit of 0
// means no limit.
func await(ctx context.Context, env *command.Env, id uint64, limit time.Duration) error {
	var over <-chan time.Time // nil: never
	if limit > 0 {
		over = time.After(limit)
	}
	remedy := fmt.Sprintf("'yardmaster operation show %d' shows it, and 'yardmaster operation cancel %d' ends it", id, id)
	last := ""
	for {
		reply, err := env.Send(ctx, api.Subject("operation-show"), map[string]any{"id": id})
		if err != nil {
			return err
		}
		o, err := connect.Decode[api.Operation](reply, nil)
		if err != nil {
			return err
		}
		if o.Ended != nil {
			if err := command.Print(env, reply, show); err != nil {
				return err
			}
			if o.Failed > 0 || o.State != "done" {
				return usererror.Failed
			}
			return nil
		}
		if line := progress(&o); line != last {
			env.Note("%s", line)
			last = line
		}
		select {
		case <-time.After(waitInterval):
		case <-over:
			return usererror.Timeout(fmt.Sprintf("operation %d goes on after %s", id, duration.Format(limit)), remedy)
		case <-ctx.Done():
			return usererror.New(fmt.Sprintf("interrupted; operation %d goes on", id), remedy)
		}
	}
}

// Underline shows the query with a line below that marks the part that an error is about, and
// returns the error without the position. It returns any other error unchanged.
func Underline(env *command.Env, query string, err error) error {
	refused, ok := errors.AsType[*api.Error](err)
	if !ok {
		return err
	}
	at := refused.QueryProblem()
	if at == nil || at.Offset < 0 || at.Length < 0 || at.Offset+at.Length > len(query) {
		return err
	}
	marks := strings.Repeat(" ", utf8.RuneCountInString(query[:at.Offset])) + strings.Repeat("^", max(1, utf8.RuneCountInString(query[at.Offset:at.Offset+at.Length])))
	env.Note("in the query\n  %s\n  %s", query, marks)
	shown := *refused
	shown.Text = at.Problem + "; " + at.Advice
	return &shown
}
