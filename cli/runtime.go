package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"yardmaster/cluster"
	"yardmaster/ledger"

	"github.com/spf13/cobra"
)

// The verbs of the runtime contract.

// transport is a label of the schema document. Callers may compare it, so it
// is the contract's own word, whatever commands and events travel by here.
const transport = "tmux"

func (a *app) snapshotVerb() *cobra.Command {
	var dir stateDir
	c := a.takesJSON(&cobra.Command{
		Use:   "snapshot",
		Short: "Show the runtime's snapshot: authority, backlog, replay, readiness",
		Long: `Shows the runtime's snapshot, as one line or with --json as the object of the
runtime contract. Standard error tells, as index=<n>, up to which entry of the
ledger it goes. With --state-dir it is that of a directory, and goes up to its
last command.`,
		Example: `  yardmaster snapshot
  yardmaster snapshot --json
  yardmaster snapshot --json --state-dir=state`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if dir.named() {
				return a.snapshotDir(c, dir.name)
			}
			return a.snapshot(c.Context())
		},
	})
	dir.flag(c)
	return c
}

func (a *app) snapshot(ctx context.Context) error {
	y, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	ctx, cancel := context.WithTimeout(ctx, y.timeout)
	defer cancel()
	answer, index, err := y.RequestShown(ctx, cluster.SubjectSnapshot, nil)
	if err != nil {
		return err
	}
	if err := print(a, answer, snapshotLine); err != nil {
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
		Short: "Carry out one command of the runtime contract and show its event",
		Long: `Carries out one command of the runtime contract and shows the event that follows
from it. Own dispatches made this way stand in the yard's backlog beside those of
jobs, but nobody runs them: whoever queued them marks them.

With --state-dir there is no yard: the state is files in a directory, which
'yardmaster init' makes.`,
		Example: `  yardmaster exec '{"command":"QueueDispatch","request_id":"r1","target":"anna"}'
  yardmaster exec '{"command":"MarkNotified","request_id":"r1","channel":"phone"}'
  yardmaster exec '{"command":"CaptureSnapshot"}' --state-dir=state --compact`,
		Args: func(c *cobra.Command, given []string) error {
			if len(given) == 0 {
				return &problem{what: "exec requires a JSON command argument"}
			}
			return args("command json")(c, given)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if dir.named() {
				return a.execDir(c, dir.name, args[0], compact)
			}
			if compact {
				return usage(c, "--compact means nothing without --state-dir")
			}
			return a.exec(c.Context(), args[0])
		},
	}
	dir.flag(c)
	c.Flags().BoolVar(&compact, "compact", false, "then drop the events of dispatches that have ended; with --state-dir")
	return c
}

// exec shows the event, or else the contract's own words of refusal and nothing
// beside them: programs compare them.
func (a *app) exec(ctx context.Context, command string) error {
	parsed, err := ledger.ParseCommand([]byte(command))
	if err != nil {
		return &problem{what: err.Error()}
	}
	y, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	ctx, cancel := context.WithTimeout(ctx, y.timeout)
	defer cancel()
	event, err := y.Request(ctx, cluster.SubjectExec+"."+ledger.CommandTag(parsed), []byte(command))
	var refused *cluster.APIError
	if errors.As(err, &refused) {
		return &problem{what: refused.Text}
	}
	if err != nil {
		return err
	}
	return a.showEvent(event)
}

// showEvent shows what a command has led to. Where nobody can read it, the
// command is done all the same, and to repeat it may be wrong.
func (a *app) showEvent(event []byte) error {
	if err := a.printJSON(event); err != nil {
		return &problem{what: fmt.Sprintf("the command is done, but its event cannot be shown: %v", err)}
	}
	return nil
}

func (a *app) schemaVerb() *cobra.Command {
	return a.takesJSON(&cobra.Command{
		Use:   "schema",
		Short: "Show the commands and events of the runtime contract",
		Example: `  yardmaster schema
  yardmaster schema --json`,
		Args: args(),
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
			}{ledger.CommandNames, ledger.EventNames(), ledger.SchemaVersion, transport})
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
`, ledger.SchemaVersion, strings.Join(ledger.CommandNames, ", "), strings.Join(ledger.EventNames(), ", "), transport)
	return err
}
