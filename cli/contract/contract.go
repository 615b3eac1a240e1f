// Package contract has the verbs of the runtime contract, which use a yard or a
// state directory.
package contract

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/ledger"

	"github.com/spf13/cobra"
)

// The verbs of the runtime contract.

// snapshotTransport is a label in the schema document. It is a constant of the
// contract, which callers may compare; it does not describe how commands and
// events are transported here.
const snapshotTransport = "tmux"

// Snapshot returns the verb snapshot.
func Snapshot(env *command.Env) *cobra.Command {
	var dir stateDir
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
			if dir.isSet() {
				return snapshotDir(env, c, dir.name)
			}
			return snapshot(c.Context(), env)
		},
	})
	dir.addFlag(c)
	return c
}

func snapshot(ctx context.Context, env *command.Env) error {
	cl, err := env.Dial(ctx)
	if err != nil {
		return err
	}
	answer, index, err := cl.RequestWithIndex(ctx, api.Subject("snapshot"), nil)
	if err != nil {
		return err
	}
	if err := command.Print(env, answer, snapshotLine); err != nil {
		return err
	}
	if index > 0 {
		fmt.Fprintf(env.Err, "index=%d\n", index)
	}
	return nil
}

func snapshotLine(w io.Writer, s *ledger.Snapshot) {
	readiness := "ready"
	if !s.Readiness.Ready {
		readiness = "blocked(" + strings.Join(s.Readiness.Reasons, ", ") + ")"
	}
	fmt.Fprintf(w, "schema=%d authority=owner=%s lease_id=%s leased_until=%s stale=%t stale_reason=%s",
		s.SchemaVersion, orNone(s.Authority.Owner), orNone(s.Authority.LeaseID), orNone(s.Authority.LeasedUntil),
		s.Authority.Stale, orNone(s.Authority.StaleReason))
	fmt.Fprintf(w, " backlog=pending=%d notified=%d delivered=%d failed=%d",
		s.Backlog.Pending, s.Backlog.Notified, s.Backlog.Delivered, s.Backlog.Failed)
	fmt.Fprintf(w, " replay=cursor=%s pending_events=%d last_replayed_event_id=%s deferred_leader_notification=%t",
		orNone(s.Replay.Cursor), s.Replay.PendingEvents, orNone(s.Replay.LastReplayedEventID), s.Replay.DeferredLeaderNotification)
	fmt.Fprintf(w, " readiness=%s\n", readiness)
}

func orNone(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}

// Exec returns the verb exec.
func Exec(env *command.Env) *cobra.Command {
	var dir stateDir
	compact := false
	c := &cobra.Command{
		Use:   "exec <command json>",
		Short: "Execute one command of the runtime contract and show its event",
		Long: `Executes one command of the runtime contract and shows the resulting event. The
dispatches that QueueDispatch adds count in the yard's backlog beside those of
jobs, but the yard does not run them: the program that queued one also marks it
as notified, delivered or failed.

With --state-dir no yard is used: the state is kept in the files of a directory
that 'yardmaster init' created.`,
		Example: `  yardmaster exec '{"command":"QueueDispatch","request_id":"r1","target":"anna"}'
  yardmaster exec '{"command":"MarkNotified","request_id":"r1","channel":"phone"}'
  yardmaster exec '{"command":"CaptureSnapshot"}' --state-dir=state --compact`,
		Args: func(c *cobra.Command, given []string) error {
			if len(given) == 0 {
				return usererror.New("exec requires a JSON command argument", "")
			}
			return command.CheckArgs(c, given)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if dir.isSet() {
				return execDir(env, c, dir.name, args[0], compact)
			}
			if compact {
				return usererror.Usage(c, "--compact requires --state-dir")
			}
			return exec(c.Context(), env, args[0])
		},
	}
	dir.addFlag(c)
	c.Flags().BoolVar(&compact, "compact", false, "afterwards drop the events of dispatches that have ended; requires --state-dir")
	return c
}

// exec executes a command of the contract and shows its event. An error is the
// contract's text without a remedy, because programs compare it.
func exec(ctx context.Context, env *command.Env, text string) error {
	parsed, err := ledger.ParseCommand([]byte(text))
	if err != nil {
		return usererror.New(err.Error(), "")
	}
	event, err := env.Send(ctx, api.Subject("exec-command", ledger.CommandTag(parsed)), []byte(text))
	if refused := connect.Refused(err); refused != nil {
		return usererror.New(refused.Text, "")
	}
	if err != nil {
		return err
	}
	return showEvent(env, event)
}

// showEvent writes the event of a command to standard output. If that fails the
// command is executed nevertheless, which the error states so that the caller
// does not repeat it.
func showEvent(env *command.Env, event []byte) error {
	if err := env.PrintJSON(event); err != nil {
		return usererror.New(fmt.Sprintf("the command was executed, but its event cannot be shown: %v", err), "")
	}
	return nil
}

// Schema returns the verb schema.
func Schema(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:   "schema",
		Short: "Show the commands and events of the runtime contract",
		Example: `  yardmaster schema
  yardmaster schema --json`,
		RunE: func(*cobra.Command, []string) error {
			if !env.JSON {
				return schemaText(env)
			}
			return command.PrintValue[struct{}](env, struct {
				Commands      []string `json:"commands"`
				Events        []string `json:"events"`
				SchemaVersion int      `json:"schema_version"`
				Transport     string   `json:"transport"`
			}{ledger.CommandNames, ledger.EventNames(), ledger.SchemaVersion, snapshotTransport}, nil)
		},
	})
}

func schemaText(env *command.Env) error {
	_, err := fmt.Fprintf(env.Out, `runtime-schema=%d
commands=%s
events=%s
transport=%s
queue-transition=notified
snapshot=authority, backlog, replay, readiness
`, ledger.SchemaVersion, strings.Join(ledger.CommandNames, ", "), strings.Join(ledger.EventNames(), ", "), snapshotTransport)
	return err
}
