package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/statedir"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// The verbs in this file implement the runtime contract on a directory, without a
// yard. They replace another program, so they print the contract's error texts
// unchanged and always fail with exit code 1.

// stateDir is the flag --state-dir of a verb that otherwise contacts a node.
type stateDir struct {
	name string
	cmd  *cobra.Command
}

func (d *stateDir) addFlag(c *cobra.Command) {
	d.cmd = c
	c.Flags().StringVar(&d.name, "state-dir", "", "use the state in this `directory` instead of a yard")
}

// isSet reports whether the flag is given. Even if it is empty, no node may be
// contacted.
func (d *stateDir) isSet() bool { return d.cmd.Flags().Changed("state-dir") }

// lockTimeout is how long a command waits for the lock of the directory unless
// --timeout is given. Callers usually have a timeout of 10 s themselves.
const lockTimeout = 10 * time.Second

// lockContext returns the context for waiting for the lock.
func lockContext(env *command.Env, c *cobra.Command) (context.Context, context.CancelFunc) {
	wait := lockTimeout
	if c.Flags().Changed("timeout") {
		wait = env.Timeout
	}
	return context.WithTimeout(c.Context(), wait)
}

// verbatimError returns a user error with the text of err and no remedy; nil if
// err is nil.
func verbatimError(err error) error {
	if err == nil {
		return nil
	}
	return usererror.New(err.Error(), "")
}

func missingDirError(verb string) error {
	return usererror.New(verb+" requires a state directory path", "")
}

func execDir(env *command.Env, c *cobra.Command, dir, text string, compact bool) error {
	if dir == "" {
		return missingDirError("exec --state-dir")
	}
	ctx, cancel := lockContext(env, c)
	defer cancel()
	event, err := statedir.Exec(ctx, dir, []byte(text), compact)
	if err != nil {
		return verbatimError(err)
	}
	return showEvent(env, event)
}

func snapshotDir(env *command.Env, c *cobra.Command, dir string) error {
	if dir == "" {
		return missingDirError("snapshot --state-dir")
	}
	ctx, cancel := lockContext(env, c)
	defer cancel()
	snapshot, err := statedir.Snapshot(ctx, dir)
	if err != nil {
		return verbatimError(err)
	}
	if !env.JSON {
		snapshotLine(env.Out, &snapshot)
		return nil
	}
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(snapshot); err != nil {
		return err
	}
	return env.PrintJSON([]byte(out.String()))
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
		Args: func(c *cobra.Command, given []string) error {
			if len(given) == 0 || given[0] == "" {
				return missingDirError("init")
			}
			return command.CheckArgs(c, given)
		},
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := lockContext(env, c)
			defer cancel()
			if err := statedir.Init(ctx, args[0]); err != nil {
				return verbatimError(err)
			}
			_, err := fmt.Fprintln(env.Out, "initialized state directory:", args[0])
			return err
		},
	}
}
