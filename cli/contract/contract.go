// Package contract has the verbs of the runtime contract, which use a yard or a
// state directory.
package contract

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/statedir"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/ledger"

	"github.com/spf13/cobra"
)

// snapshotTransport is a label in the schema document. It is a constant of the
// contract, which callers may compare; it does not describe how commands and
// events are transported here.
const snapshotTransport = "tmux"

// Snapshot returns the verb snapshot.
func Snapshot(env *command.Env) *cobra.Command {
	var dir string
	c := env.WithJSON(&cobra.Command{
		Use:   "snapshot",
		Short: "Show the runtime snapshot: authority, backlog, replay, readiness",
		Long: `Shows the runtime snapshot, as one line or with --json as the object of the
runtime contract. The index of the last ledger entry in it goes to standard
error as index=<n>. With --state-dir it shows the state in that directory.`,
		Example: `  yardmaster snapshot
  yardmaster snapshot --json
  yardmaster snapshot --json --state-dir=state`,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed(stateDir) {
				return snapshotDir(env, c, dir)
			}
			return snapshotOfYard(c.Context(), env)
		},
	})
	addStateDir(c, &dir)
	return c
}

// snapshotOfYard shows the snapshot of a yard, and on standard error the index of the
// last ledger entry in it.
func snapshotOfYard(ctx context.Context, env *command.Env) error {
	client, err := env.Dial(ctx)
	if err != nil {
		return err
	}
	reply, index, err := client.RequestWithIndex(ctx, api.Subject("snapshot"), nil)
	if err != nil {
		return err
	}
	if err := command.Print(env, reply, snapshotLine); err != nil {
		return err
	}
	if index > 0 {
		command.Printf(env.Err, "index=%d\n", index)
	}
	return nil
}

// snapshotLine writes a snapshot as one line of names and values.
func snapshotLine(w io.Writer, s *ledger.Snapshot) {
	readiness := "ready"
	if !s.Readiness.Ready {
		readiness = "blocked(" + strings.Join(s.Readiness.Reasons, ", ") + ")"
	}
	command.Printf(w, "schema=%d authority=owner=%s lease_id=%s leased_until=%s stale=%t stale_reason=%s",
		s.SchemaVersion, orNone(s.Authority.Owner), orNone(s.Authority.LeaseID), orNone(s.Authority.LeasedUntil),
		s.Authority.Stale, orNone(s.Authority.StaleReason))
	command.Printf(w, " backlog=pending=%d notified=%d delivered=%d failed=%d",
		s.Backlog.Pending, s.Backlog.Notified, s.Backlog.Delivered, s.Backlog.Failed)
	command.Printf(w, " replay=cursor=%s pending_events=%d last_replayed_event_id=%s deferred_leader_notification=%t",
		orNone(s.Replay.Cursor), s.Replay.PendingEvents, orNone(s.Replay.LastReplayedEventID), s.Replay.DeferredLeaderNotification)
	command.Printf(w, " readiness=%s\n", readiness)
}

func orNone(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}

// Exec returns the verb exec.
func Exec(env *command.Env) *cobra.Command {
	var dir string
	compact := false
	c := &cobra.Command{
		Use:   "exec <command json>",
		Short: "Execute one command of the runtime contract and show its event",
		Long: `Executes one command of the runtime contract and shows the resulting event. The
dispatches that QueueDispatch adds count in the yard's backlog beside those of
jobs, but the yard does not run them: the program that queued one also marks it
as notified, delivered or failed.

With --state-dir no yard is used: the state is kept in the files of a directory,
which is created if it does not exist. Otherwise --server, NATS_URL or a context
must name the yard.`,
		Example: `  yardmaster exec '{"command":"QueueDispatch","request_id":"r1","target":"anna"}' -s localhost:4222
  yardmaster exec '{"command":"MarkNotified","request_id":"r1","channel":"phone"}' -s localhost:4222
  yardmaster exec '{"command":"CaptureSnapshot"}' --state-dir=state --compact`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usererror.New("exec requires a JSON command argument", "")
			}
			return command.CheckArgs(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			event, err := exec(env, c, dir, []byte(args[0]), compact)
			if err != nil {
				return err
			}
			if err := env.PrintJSON(event); err != nil { // the caller must not repeat the command
				return usererror.New(fmt.Sprintf("the command was executed, but its event cannot be shown: %v", err), "")
			}
			return nil
		},
	}
	addStateDir(c, &dir)
	c.Flags().BoolVar(&compact, "compact", false, "afterwards drop the events of dispatches that have ended; requires --state-dir")
	return c
}

// exec executes a command of the contract, in a yard or with --state-dir in dir, and
// returns its event. compact is the flag of the verb. An error is the contract's text
// without a remedy, because programs compare it.
func exec(env *command.Env, c *cobra.Command, dir string, text []byte, compact bool) (event []byte, err error) {
	if c.Flags().Changed(stateDir) {
		err = useDir(env, c, "exec --state-dir", dir, func(ctx context.Context) (err error) {
			event, err = statedir.Exec(ctx, dir, text, compact)
			return err
		})
		return event, err
	}
	if compact {
		return nil, usererror.Usage(c, "--compact requires --state-dir")
	}
	parsed, err := ledger.ParseCommand(text)
	if err != nil {
		return nil, usererror.New(err.Error(), "")
	}
	if named, err := env.NamesServer(); err != nil || !named {
		return nil, cmp.Or(err, errNoYard)
	}
	event, err = env.Send(c.Context(), api.Subject("exec-command", ledger.CommandTag(parsed)), text)
	if refused := connect.Refused(err); refused != nil {
		return nil, usererror.New(refused.Text, "")
	}
	return event, err
}

// errNoYard refuses to change a yard that was not named: exec may stand in for a program
// that, without a directory, changes nothing.
var errNoYard = usererror.New("exec needs to know what to change", "name a directory with --state-dir, or a yard with --server or NATS_URL")

// Schema returns the verb schema, which has the given verbs about the schemas of payloads. By
// itself it is about the runtime contract.
func Schema(env *command.Env, verbs ...*cobra.Command) *cobra.Command {
	c := env.WithJSON(&cobra.Command{
		Use:   "schema",
		Short: "Show the commands and events of the runtime contract; set the schemas of payloads",
		Long: `Without a verb, shows the commands and events of the runtime contract. Its verbs set,
show, list and remove the JSON Schemas that the payloads of jobs must match.`,
		Example: `  yardmaster schema
  yardmaster schema --json
  yardmaster schema set mail send --file send.json`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usererror.UnknownVerb(c, args[0])
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			return command.PrintValue(env, struct {
				Commands      []string `json:"commands"`
				Events        []string `json:"events"`
				SchemaVersion int      `json:"schema_version"`
				Transport     string   `json:"transport"`
			}{commandNames(), eventNames(), ledger.SchemaVersion, snapshotTransport}, schemaText)
		},
	})
	c.AddCommand(verbs...)
	return c
}

// MuxContract returns the hidden verb mux-contract, by which other implementations of the
// contract show how they type into a terminal multiplexer. It fails with what to use instead.
func MuxContract() *cobra.Command {
	return &cobra.Command{
		Use: "mux", Aliases: []string{"mux-contract"}, Hidden: true, // the columns of the help are as wide as the longest Use
		DisableFlagParsing: true, Args: cobra.ArbitraryArgs, Short: "Not offered: see 'yardmaster schema'",
		RunE: func(*cobra.Command, []string) error {
			return usererror.New("there is no mux-contract: this program controls no terminal multiplexer",
				"'yardmaster schema --json' shows the commands and events; the program that notifies a target marks its dispatch with 'yardmaster exec'")
		},
	}
}

// commandNames returns the names of the contract's commands, also of those that only a
// state directory carries out.
func commandNames() []string { return slices.Concat(ledger.CommandNames, ledger.MailboxCommandNames) }

// eventNames returns the names of the events that commandNames and a yard may cause.
func eventNames() []string { return slices.Concat(ledger.EventNames(), ledger.MailboxEventNames) }

func schemaText(w io.Writer, _ *struct{}) {
	command.Printf(w, `runtime-schema=%d
commands=%s
events=%s
transport=%s
queue-transition=notified
snapshot=authority, backlog, replay, readiness
`, ledger.SchemaVersion, strings.Join(commandNames(), ", "), strings.Join(eventNames(), ", "), snapshotTransport)
}

// The functions below implement the runtime contract on a directory, without a yard.
// They replace another program, so they print the contract's error texts unchanged and
// always fail with exit code 1.

// stateDir is a flag of verbs that otherwise contact a node. If it is given, even
// empty, no node may be contacted.
const stateDir = "state-dir"

func addStateDir(c *cobra.Command, dir *string) {
	c.Flags().StringVar(dir, stateDir, "", "use the state in this `directory` instead of a yard")
}

// lockTimeout is how long a command waits for the lock of the directory unless
// --timeout is given. Callers usually have a timeout of 10 s themselves.
const lockTimeout = 10 * time.Second

// useDir calls use, which works on the state directory dir. The context of use ends
// when the wait for the directory's lock has lasted --timeout, or lockTimeout if that
// flag is not given. verb names the caller in the error for a dir that is "".
func useDir(env *command.Env, c *cobra.Command, verb, dir string, use func(context.Context) error) error {
	if dir == "" {
		return missingDirError(verb)
	}
	wait := lockTimeout
	if c.Flags().Changed("timeout") {
		wait = env.Timeout
	}
	ctx, cancel := context.WithTimeout(c.Context(), wait)
	defer cancel()
	if err := use(ctx); err != nil {
		return usererror.New(err.Error(), "")
	}
	return nil
}

func missingDirError(verb string) error {
	return usererror.New(verb+" requires a state directory path", "")
}

// snapshotDir shows the snapshot of a state directory.
func snapshotDir(env *command.Env, c *cobra.Command, dir string) error {
	var snapshot ledger.Snapshot
	err := useDir(env, c, "snapshot --state-dir", dir, func(ctx context.Context) (err error) {
		snapshot, err = statedir.Snapshot(ctx, dir)
		return err
	})
	if err != nil {
		return err
	}
	if !env.JSON {
		snapshotLine(env.Out, &snapshot)
		return nil
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(snapshot); err != nil {
		return err
	}
	return env.PrintJSON(text.Bytes())
}

// Init returns the verb init.
func Init(env *command.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "init <directory>",
		Short: "Create a state directory for the runtime contract",
		Long: `Creates a directory for the --state-dir of exec and snapshot. An existing state
directory is reset: the files of the state are replaced, and the previous ones are
kept under names that end in .old. Other files stay.`,
		Example: `  yardmaster init state
  yardmaster exec '{"command":"QueueDispatch","request_id":"r1","target":"anna"}' --state-dir=state`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return missingDirError("init")
			}
			return command.CheckArgs(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			err := useDir(env, c, "init", args[0], func(ctx context.Context) error { return statedir.Init(ctx, args[0]) })
			if err != nil {
				return err
			}
			err = command.Printf(env.Out, "initialized state directory: %s\n", args[0])
			return err
		},
	}
}
