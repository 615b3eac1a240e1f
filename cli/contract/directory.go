package contract

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/statedir"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/ledger"

	"github.com/spf13/cobra"
)

// The functions in this file implement the runtime contract on a directory,
// without a yard. They replace another program, so they print the contract's error
// texts unchanged and always fail with exit code 1.

// stateDir is a flag of verbs that otherwise contact a node. If it is given, even
// empty, no node may be contacted.
const stateDir = "state-dir"

func addStateDir(c *cobra.Command, dir *string) {
	c.Flags().StringVar(dir, stateDir, "", "use the state in this `directory` instead of a yard")
}

// lockTimeout is how long a command waits for the lock of the directory unless
// --timeout is given. Callers usually have a timeout of 10 s themselves.
const lockTimeout = 10 * time.Second

// useDir calls use with a context that limits the wait for the lock of dir.
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
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(snapshot); err != nil {
		return err
	}
	return env.PrintJSON(out.Bytes())
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
			err := useDir(env, c, "init", args[0], func(ctx context.Context) error { return statedir.Init(ctx, args[0]) })
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(env.Out, "initialized state directory:", args[0])
			return err
		},
	}
}
