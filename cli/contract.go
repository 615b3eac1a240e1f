package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger"

	"github.com/spf13/cobra"
)

// The verbs of the runtime contract.

// snapshotTransport is a label in the schema document. It is a constant of the
// contract, which callers may compare; it does not describe how commands and
// events are transported here.
const snapshotTransport = "tmux"

func (a *app) snapshotVerb() *cobra.Command {
	var dir stateDir
	c := a.withJSONFlag(&cobra.Command{
		Use:   "snapshot",
		Short: "Show the runtime snapshot: authority, backlog, replay, readiness",
		Long: `Shows the runtime snapshot, as one line or with --json as the object of the
runtime contract. The index of the last ledger entry in it goes to standard
error as index=<n>. With --state-dir it shows the state in that directory.`,
		Example: `  yardmaster snapshot
  yardmaster snapshot --json
  yardmaster snapshot --json --state-dir=state`,
		Args: takeArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			if dir.isSet() {
				return a.snapshotDir(c, dir.name)
			}
			return a.snapshot(c.Context())
		},
	})
	dir.addFlag(c)
	return c
}

func (a *app) snapshot(ctx context.Context) error {
	cl, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, cl.timeout)
	defer cancel()
	answer, index, err := cl.RequestWithIndex(ctx, api.Subject("snapshot"), nil)
	if err != nil {
		return err
	}
	if err := printReply(a, answer, snapshotLine); err != nil {
		return err
	}
	if index > 0 {
		fmt.Fprintf(a.Err, "index=%d\n", index)
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

func (a *app) execVerb() *cobra.Command {
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
				return &userError{msg: "exec requires a JSON command argument"}
			}
			return takeArgs("command json")(c, given)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if dir.isSet() {
				return a.execDir(c, dir.name, args[0], compact)
			}
			if compact {
				return usageError(c, "--compact requires --state-dir")
			}
			return a.exec(c.Context(), args[0])
		},
	}
	dir.addFlag(c)
	c.Flags().BoolVar(&compact, "compact", false, "afterwards drop the events of dispatches that have ended; requires --state-dir")
	return c
}

// exec executes a command of the contract and shows its event. An error is the
// contract's text without a remedy, because programs compare it.
func (a *app) exec(ctx context.Context, command string) error {
	parsed, err := ledger.ParseCommand([]byte(command))
	if err != nil {
		return &userError{msg: err.Error()}
	}
	cl, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, cl.timeout)
	defer cancel()
	event, err := cl.Request(ctx, api.Subject("exec-command", ledger.CommandTag(parsed)), []byte(command))
	var refused *api.Error
	if errors.As(err, &refused) {
		return &userError{msg: refused.Text}
	}
	if err != nil {
		return err
	}
	return a.showEvent(event)
}

// showEvent writes the event of a command to standard output. If that fails the
// command is executed nevertheless, which the error states so that the caller
// does not repeat it.
func (a *app) showEvent(event []byte) error {
	if err := a.printJSON(event); err != nil {
		return &userError{msg: fmt.Sprintf("the command was executed, but its event cannot be shown: %v", err)}
	}
	return nil
}

func (a *app) schemaVerb() *cobra.Command {
	return a.withJSONFlag(&cobra.Command{
		Use:   "schema",
		Short: "Show the commands and events of the runtime contract",
		Example: `  yardmaster schema
  yardmaster schema --json`,
		Args: takeArgs(),
		RunE: func(*cobra.Command, []string) error {
			if !a.json {
				return a.schemaText()
			}
			var out bytes.Buffer
			err := json.NewEncoder(&out).Encode(struct {
				Commands      []string `json:"commands"`
				Events        []string `json:"events"`
				SchemaVersion int      `json:"schema_version"`
				Transport     string   `json:"transport"`
			}{ledger.CommandNames, ledger.EventNames(), ledger.SchemaVersion, snapshotTransport})
			if err != nil {
				return err
			}
			return a.printJSON(out.Bytes())
		},
	})
}

func (a *app) schemaText() error {
	_, err := fmt.Fprintf(a.Out, `runtime-schema=%d
commands=%s
events=%s
transport=%s
queue-transition=notified
snapshot=authority, backlog, replay, readiness
`, ledger.SchemaVersion, strings.Join(ledger.CommandNames, ", "), strings.Join(ledger.EventNames(), ", "), snapshotTransport)
	return err
}
