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
	"github.com/yardmaster-dev/yardmaster/cli/statedir"
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
			cl, err := env.Dial(c.Context())
			if err != nil {
				return err
			}
			answer, index, err := cl.RequestWithIndex(c.Context(), api.Subject("snapshot"), nil)
			if err == nil {
				err = command.Print(env, answer, snapshotLine)
			}
			if err == nil && index > 0 {
				fmt.Fprintf(env.Err, "index=%d\n", index)
			}
			return err
		},
	})
	addStateDir(c, &dir)
	return c
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
	var dir string
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

// exec executes a command of the contract and returns its event. An error is the
// contract's text without a remedy, because programs compare it.
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
	event, err = env.Send(c.Context(), api.Subject("exec-command", ledger.CommandTag(parsed)), text)
	if refused := connect.Refused(err); refused != nil {
		return nil, usererror.New(refused.Text, "")
	}
	return event, err
}

// Schema returns the verb schema.
func Schema(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:   "schema",
		Short: "Show the commands and events of the runtime contract",
		Example: `  yardmaster schema
  yardmaster schema --json`,
		RunE: func(*cobra.Command, []string) error {
			return command.PrintValue(env, struct {
				Commands      []string `json:"commands"`
				Events        []string `json:"events"`
				SchemaVersion int      `json:"schema_version"`
				Transport     string   `json:"transport"`
			}{ledger.CommandNames, ledger.EventNames(), ledger.SchemaVersion, snapshotTransport}, schemaText)
		},
	})
}

func schemaText(w io.Writer, _ *struct{}) {
	fmt.Fprintf(w, `runtime-schema=%d
commands=%s
events=%s
transport=%s
queue-transition=notified
snapshot=authority, backlog, replay, readiness
`, ledger.SchemaVersion, strings.Join(ledger.CommandNames, ", "), strings.Join(ledger.EventNames(), ", "), snapshotTransport)
}
