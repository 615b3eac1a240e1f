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
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// Defaults of the global flags.
const (
	defaultServer  = "nats://127.0.0.1:4222"
	defaultTimeout = 5 * time.Second
)

// Streams are the program's three.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Program says whose command line it is.
type Program struct {
	Version string
	// File is the program's own, and carries out whatever [Run] does: a node
	// starts it once more, as the warden of its runners. "": it has no warden,
	// and what runners forked outlives a killed node until its next start.
	File string
}

// Run carries out one command line, without the program's name, and gives the
// exit code. Verbs that run until they are stopped stop when ctx ends.
func Run(ctx context.Context, args []string, s Streams, p Program) int {
	a := &app{Streams: s, program: p, getenv: os.Getenv}
	root := a.root()
	root.SetArgs(append([]string{}, args...)) // never nil: cobra would take the program's own
	var err error
	if len(args) == 1 && args[0] == introspect {
		err = a.describe(root)
	} else {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		return exitDone
	}
	if quiet, ok := err.(*exitError); ok {
		return quiet.code
	}
	err = a.explain(err)
	fmt.Fprintln(s.Err, "yardmaster:", err)
	if p, ok := err.(*problem); ok && p.usage {
		return exitUsage
	} else if ok && p.code != 0 {
		return p.code
	}
	return exitFailed
}

// app is one run of the program.
type app struct {
	Streams
	program Program
	getenv  func(string) string

	server  string        // of the yard, if the flag names it
	login   login         // as the flags name it
	context string        // of NATS' own tools, if the flag names one
	tls     source        // what the flags --tlsca, --tlscert and --tlskey name
	timeout time.Duration // of a request
	json    bool          // the verb's --json
	dialled *destination  // once there is a yard to be asked
}

// Groups of verbs in the help.
const (
	groupRun  = "run"
	groupWork = "work"
	groupLook = "look"
)

func (a *app) root() *cobra.Command {
	root := group(&cobra.Command{
		Use:   "yardmaster <verb>",
		Short: "Accept jobs, run them on workers in any language, and lose none",
		Long: `Yardmaster accepts jobs, hands them to workers and runners in any language, and
loses none of them: not when a worker dies, and not when the node in charge does.`,
		Example: `  yardmaster demo                                   see it work, in seconds
  yardmaster node                                   start a yard of one node
  yardmaster worker --queue mail                    serve its queue "mail"
  yardmaster enqueue mail echo --params '{"to":"ann"}' --wait
  yardmaster status                                 who is in charge, and is all well`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       a.program.Version,
	})
	root.SetVersionTemplate(a.versionLine())
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage(c, err.Error())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddGroup(&cobra.Group{ID: groupRun, Title: "Run something until it is stopped:"},
		&cobra.Group{ID: groupWork, Title: "Give work and change it:"},
		&cobra.Group{ID: groupLook, Title: "Look:"})
	root.SetUsageTemplate(usageTemplate)
	flags := root.PersistentFlags()
	flags.BoolP("help", "h", false, "show this help")
	root.Flags().Bool("version", false, "show the version of this program")
	flags.StringVarP(&a.server, "server", "s", "", "`url` of a node, or of several between commas (NATS_URL; else "+defaultServer+")")
	flags.StringVar(&a.login.user, "user", "", "`name` of a user of the yard, with --password or NATS_PASSWORD (NATS_USER)")
	flags.StringVar(&a.login.password, "password", "", "its `password` (NATS_PASSWORD)")
	flags.StringVar(&a.login.nkey, "nkey", "", "`file` of a user's nkey seed (NATS_NKEY)")
	flags.StringVar(&a.context, "context", "", "`name` of a context of the nats command line, or its file (NATS_CONTEXT; else the selected one)")
	flags.StringVar(&a.tls.tls.CA, "tlsca", "", "`file` of the authorities to believe (NATS_CA)")
	flags.StringVar(&a.tls.tls.Cert, "tlscert", "", "`file` of the certificate to show (NATS_CERT)")
	flags.StringVar(&a.tls.tls.Key, "tlskey", "", "`file` of its private key (NATS_KEY)")
	flags.DurationVar(&a.timeout, "timeout", a.envTimeout(), "longest `time` to wait for an answer (NATS_TIMEOUT)")
	a.add(root, groupRun, a.demoVerb(), a.drillVerbs(), a.benchVerb(), a.nodeVerb(), a.workerVerb(), a.runnerVerb())
	root.AddCommand(a.benchPeerVerb(), a.wardenVerb())
	a.add(root, groupWork, a.enqueueVerb(), a.jobVerbs(), a.queueVerbs(), a.dlqVerbs(), a.cronVerbs(), a.clusterVerbs(), a.execVerb(), a.initVerb(), a.certVerbs(), a.backupVerb(), a.restoreVerb())
	a.add(root, groupLook, a.statusVerb(), a.healthVerb(), a.eventsVerb(), a.snapshotVerb(), a.schemaVerb(), a.versionVerb())
	return root
}

func (a *app) add(root *cobra.Command, group string, verbs ...*cobra.Command) {
	for _, verb := range verbs {
		verb.GroupID = group
		root.AddCommand(verb)
	}
}

// envTimeout takes NATS_TIMEOUT if it can be read: a wrong value must not make
// every verb fail, the flag is there.
func (a *app) envTimeout() time.Duration {
	if d, err := time.ParseDuration(a.getenv("NATS_TIMEOUT")); err == nil && d > 0 {
		return d
	}
	return defaultTimeout
}

// takesJSON gives a verb the flag --json.
func (a *app) takesJSON(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVarP(&a.json, "json", "j", false, "show the yard's own JSON")
	return c
}

// group makes a command that only holds others: alone it shows its help.
func group(c *cobra.Command, verbs ...*cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.DisableFlagsInUseLine = true
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		return unknownVerb(c, args[0])
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
'{{.CommandPath}} <verb> --help' tells more about a verb.
{{end}}`
