package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Defaults of the global flags.
const (
	defaultServer  = "nats://127.0.0.1:4222"
	defaultTimeout = 5 * time.Second
)

// Streams are the standard input, output and error of the program.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Program describes the executable that calls [Run].
type Program struct {
	Version string
	// File is the path of the executable. A node starts it again as the warden
	// of its runners. If File is empty there is no warden, and processes that
	// runners forked survive a killed node until its next start.
	File string
}

// Run executes one command line, given without the program's name, and returns
// the exit code. Verbs that run until they are stopped end when ctx is done.
func Run(ctx context.Context, args []string, s Streams, p Program) int {
	a := &app{Streams: s, program: p, getenv: os.Getenv}
	root := a.root()
	root.SetArgs(append([]string{}, args...)) // not nil, which makes cobra use os.Args
	var err error
	if len(args) == 1 && args[0] == introspect {
		err = a.writeIntrospection(root)
	} else {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		return exitOK
	}
	if quiet, ok := err.(*exitError); ok {
		return quiet.code
	}
	err = a.asUserError(err)
	fmt.Fprintln(s.Err, "yardmaster:", err)
	if p, ok := err.(*userError); ok && p.usage {
		return exitUsage
	} else if ok && p.code != 0 {
		return p.code
	}
	return exitFailed
}

// app is one execution of a command line.
type app struct {
	Streams
	program Program
	getenv  func(string) string

	server  string        // --server
	login   userFlags     // --user, --password and --nkey
	context string        // --context
	tls     connSource    // --tlsca, --tlscert and --tlskey
	timeout time.Duration // --timeout, of one request
	json    bool          // --json of the verb
	target  *connTarget   // set by dial
}

// IDs of the groups of verbs in the help.
const (
	groupRun     = "run"
	groupManage  = "manage"
	groupInspect = "inspect"
)

// root returns the whole tree of commands.
func (a *app) root() *cobra.Command {
	root := group(&cobra.Command{
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
		Version:       a.program.Version,
	})
	root.SetVersionTemplate(a.versionLine())
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError(c, err.Error())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddGroup(&cobra.Group{ID: groupRun, Title: "Run:"},
		&cobra.Group{ID: groupManage, Title: "Manage:"},
		&cobra.Group{ID: groupInspect, Title: "Inspect:"})
	root.SetUsageTemplate(usageTemplate)
	flags := root.PersistentFlags()
	flags.BoolP("help", "h", false, "show this help")
	root.Flags().Bool("version", false, "show the version of this program")
	flags.StringVarP(&a.server, "server", "s", "", "`url` of a node, or several separated by commas (NATS_URL; default "+defaultServer+")")
	flags.StringVar(&a.login.user, "user", "", "user `name`, with --password or NATS_PASSWORD (NATS_USER)")
	flags.StringVar(&a.login.password, "password", "", "`password` of the user (NATS_PASSWORD)")
	flags.StringVar(&a.login.nkey, "nkey", "", "`file` with the user's NKey seed (NATS_NKEY)")
	flags.StringVar(&a.context, "context", "", "`name` or file of a nats CLI context (NATS_CONTEXT; default the selected context)")
	flags.StringVar(&a.tls.tls.CA, "tlsca", "", "`file` with the trusted CA certificates (NATS_CA)")
	flags.StringVar(&a.tls.tls.Cert, "tlscert", "", "`file` with the client certificate (NATS_CERT)")
	flags.StringVar(&a.tls.tls.Key, "tlskey", "", "`file` with its private key (NATS_KEY)")
	flags.DurationVar(&a.timeout, "timeout", a.envTimeout(), "longest `time` to wait for a reply (NATS_TIMEOUT)")
	a.add(root, groupRun, a.demoVerb(), a.nodeVerb(), a.workerVerb(), a.runnerVerb())
	root.AddCommand(a.wardenVerb(), movedVerb("drill"), movedVerb("bench"))
	a.add(root, groupManage, a.enqueueVerb(), a.jobVerbs(), a.queueVerbs(), a.dlqVerbs(), a.cronVerbs(), a.clusterVerbs(), a.execVerb(), a.initVerb(), a.certVerbs(), a.backupVerb(), a.restoreVerb())
	a.add(root, groupInspect, a.statusVerb(), a.healthVerb(), a.eventsVerb(), a.snapshotVerb(), a.schemaVerb(), a.versionVerb())
	return root
}

// add adds verbs to root under a group of the help.
func (a *app) add(root *cobra.Command, group string, verbs ...*cobra.Command) {
	for _, verb := range verbs {
		verb.GroupID = group
		root.AddCommand(verb)
	}
}

// envTimeout returns the value of NATS_TIMEOUT. It returns the default if the
// variable is not set or invalid, so that a wrong value does not make every
// verb fail.
func (a *app) envTimeout() time.Duration {
	if d, err := time.ParseDuration(a.getenv("NATS_TIMEOUT")); err == nil && d > 0 {
		return d
	}
	return defaultTimeout
}

// withJSONFlag adds the flag --json to c and returns c.
func (a *app) withJSONFlag(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVarP(&a.json, "json", "j", false, "show the reply as JSON")
	return c
}

// group turns c into a command that only has subcommands. Without an argument
// it shows its help.
func group(c *cobra.Command, verbs ...*cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.DisableFlagsInUseLine = true
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		return unknownCommandError(c, args[0])
	}
	c.AddCommand(verbs...)
	return c
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
