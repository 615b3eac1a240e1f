package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/contract"
	"github.com/yardmaster-dev/yardmaster/cli/dlq"
	"github.com/yardmaster-dev/yardmaster/cli/inspect"
	"github.com/yardmaster-dev/yardmaster/cli/jobs"
	"github.com/yardmaster-dev/yardmaster/cli/operate"
	"github.com/yardmaster-dev/yardmaster/cli/operations"
	"github.com/yardmaster-dev/yardmaster/cli/run"
	"github.com/yardmaster-dev/yardmaster/cli/top"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// Streams are the standard input, output and error of the program.
type Streams = command.Streams

// Program describes the executable that calls [Run].
type Program = command.Program

// Run executes one command line, given without the program's name, and returns
// the exit code. Verbs that run until they are stopped end when ctx is done.
func Run(ctx context.Context, args []string, s Streams, p Program) int {
	env := &command.Env{Streams: s, Program: p}
	env.Getenv, env.OnOutdated = os.Getenv, env.NoteOutdated
	defer env.Close()
	root := newRoot(env)
	root.SetArgs(append([]string{}, args...)) // not nil, which makes cobra use os.Args
	var err error
	if len(args) == 1 && args[0] == introspect {
		err = writeIntrospection(env, root)
	} else {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		return 0
	}
	if exit, ok := err.(*usererror.Exit); ok {
		return exit.Code
	}
	err = usererror.Explain(err, env.Target(), env.Timeout)
	env.Note("%s", usererror.Line(err))
	if explained, ok := err.(*usererror.Error); ok {
		return cmp.Or(explained.Code, usererror.CodeFailed)
	}
	return usererror.CodeFailed
}

// flagError returns the text of an error of a flag, without what package strconv says
// about a value that it cannot parse.
func flagError(err error) string {
	number, ok := errors.AsType[*strconv.NumError](err)
	if !ok {
		return err.Error()
	}
	must := "must be a whole number"
	switch {
	case number.Func == "ParseBool":
		must = "must be true or false"
	case errors.Is(number, strconv.ErrRange):
		must = "is out of range"
	}
	return strings.Replace(err.Error(), number.Error(), must, 1)
}

// newRoot returns the whole tree of commands.
func newRoot(env *command.Env) *cobra.Command {
	root := command.Group(&cobra.Command{
		Use:   "yardmaster <verb>",
		Short: "A job scheduler that loses no accepted job",
		Long: `Yardmaster accepts jobs and runs them on workers and runners written in any
language. It loses no accepted job, not even when a worker or the node that
holds the authority fails.`,
		Example: `  yardmaster demo                                   see it work in a few seconds
  yardmaster node                                   start a yard of one node
  yardmaster worker --queue mail                    run a worker for the queue "mail"
  yardmaster enqueue mail echo --params '{"to":"ann"}' --wait
  yardmaster status                                 show the members and whether the yard is ready`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       env.Program.Version,
	})
	root.SetVersionTemplate(versionLine(env))
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usererror.Usage(c, "%s", flagError(err)) })
	root.SetUsageTemplate(usageTemplate)
	root.PersistentPreRun = env.NoteRenamed
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().BoolP("help", "h", false, "show this help")
	root.Flags().Bool("version", false, "show the version of this program")
	env.AddFlags(root.PersistentFlags())
	node := run.Node(env)
	node.AddCommand(operate.Drain(env), operate.Resume(env))
	worker := run.Worker(env)
	worker.AddCommand(operate.DrainWorker(env), operate.ResumeWorker(env))
	root.AddCommand(run.Warden(env), contract.MuxContract(), movedVerb("drill"), movedVerb("bench"))
	addGroup(root, "Run", run.Demo(env), node, worker, run.Runner(env))
	addGroup(root, "Manage", jobs.Enqueue(env), jobs.Verbs(env), jobs.QueueVerbs(env), dlq.Verbs(env), jobs.CronVerbs(env), jobs.LimitVerbs(env), operations.Verbs(env), operate.RetentionVerbs(env), operate.ClusterVerbs(env),
		contract.Exec(env), contract.Init(env), operate.CertVerbs(env), operate.Backup(env), operate.Restore(env))
	addGroup(root, "Inspect", inspect.Status(env), top.Top(env), inspect.Workers(env), inspect.Health(env), inspect.Events(env), inspect.State(env), inspect.Diff(env), contract.Snapshot(env), contract.Schema(env, jobs.SchemaVerbs(env)...), versionVerb(env), completionVerb(env, root), manVerb(root))
	checkArgs(root)
	addCompletion(env, root)
	return root
}

// addGroup adds verbs to root under a title of the help.
func addGroup(root *cobra.Command, title string, verbs ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title + ":"})
	for _, verb := range verbs {
		verb.GroupID = title
		root.AddCommand(verb)
	}
}

// checkArgs makes every verb below c check its arguments.
func checkArgs(c *cobra.Command) {
	if c.Args == nil {
		c.Args = command.CheckArgs
	}
	for _, verb := range c.Commands() {
		checkArgs(verb)
	}
}

// versionVerb returns the verb version.
func versionVerb(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program",
		Example: `  yardmaster version`,
		RunE: func(*cobra.Command, []string) error {
			return command.PrintValue(env, struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{env.Program.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH},
				func(w io.Writer, _ *struct{}) { fmt.Fprint(w, versionLine(env)) })
		},
	})
}

// versionLine returns the output of the verb version and of --version.
func versionLine(env *command.Env) string {
	return fmt.Sprintf("yardmaster %s (%s, %s/%s)\n", env.Program.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// movedVerb returns a hidden verb of earlier versions that is now a separate command
// below test/cmd. The verb fails with an error that names that command.
func movedVerb(name string) *cobra.Command {
	return &cobra.Command{
		Use: name, Hidden: true, DisableFlagParsing: true, Args: cobra.ArbitraryArgs, Short: fmt.Sprintf("Moved: see 'make %s'", name),
		RunE: func(*cobra.Command, []string) error {
			return usererror.New(fmt.Sprintf("%s is not part of this program any more, nothing was done", name),
				fmt.Sprintf("in a checkout of the source run 'make %s' or 'go run ./test/cmd/%s'", name, name))
		},
	}
}

const usageTemplate = `Usage:
  {{.UseLine}}
{{if .HasAvailableSubCommands}}{{$verbs := .Commands}}{{if .Groups}}{{range $group := .Groups}}
{{$group.Title}}{{range $verbs}}{{if and .IsAvailableCommand (eq .GroupID $group.ID)}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}
{{end}}{{else}}
Verbs:{{range $verbs}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}
{{end}}{{end}}{{if .HasExample}}
Examples:
{{.Example}}
{{end}}{{if .HasAvailableLocalFlags}}
Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
{{end}}{{if .HasAvailableInheritedFlags}}
Flags of every verb:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}
{{end}}{{if .HasAvailableSubCommands}}
Run '{{.CommandPath}} <verb> --help' for the details of a verb.
{{end}}`
