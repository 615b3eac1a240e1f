package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"yardmaster/cli/statedir"

	"github.com/spf13/cobra"
)

// The runtime contract without a yard: its state in the files of a directory.
// Programs call these verbs in the place of another binary, so their words and
// exit codes are that one's: errors are the contract's texts as they are, and
// the code is 1.

// stateDir is the flag --state-dir of a verb that has a yard otherwise.
type stateDir struct {
	name string
	cmd  *cobra.Command
}

func (d *stateDir) flag(c *cobra.Command) {
	d.cmd = c
	c.Flags().StringVar(&d.name, "state-dir", "", "do without a yard: the state is in this `directory`")
}

// named tells that the flag is given: an empty one must not reach a yard.
func (d *stateDir) named() bool { return d.cmd.Flags().Changed("state-dir") }

// lockWait is how long a command waits for others in the same directory, unless
// --timeout says otherwise. Callers' own patience usually ends here.
const lockWait = 10 * time.Second

func (a *app) lockContext(c *cobra.Command) (context.Context, context.CancelFunc) {
	wait := lockWait
	if c.Flags().Changed("timeout") {
		wait = a.timeout
	}
	return context.WithTimeout(c.Context(), wait)
}

// exactly keeps an error's text as it is.
func exactly(err error) error {
	if err == nil {
		return nil
	}
	return &problem{what: err.Error()}
}

func noName(verb string) error {
	return &problem{what: verb + " requires a state directory path"}
}

func (a *app) execDir(c *cobra.Command, dir, command string, compact bool) error {
	if dir == "" {
		return noName("exec --state-dir")
	}
	ctx, cancel := a.lockContext(c)
	defer cancel()
	event, err := statedir.Exec(ctx, dir, []byte(command), compact)
	if err != nil {
		return exactly(err)
	}
	return a.showEvent(event)
}

func (a *app) snapshotDir(c *cobra.Command, dir string) error {
	if dir == "" {
		return noName("snapshot --state-dir")
	}
	ctx, cancel := a.lockContext(c)
	defer cancel()
	snapshot, err := statedir.Snapshot(ctx, dir)
	if err != nil {
		return exactly(err)
	}
	if !a.json {
		snapshotLine(a.Out, &snapshot)
		return nil
	}
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(snapshot); err != nil {
		return err
	}
	return a.printJSON([]byte(out.String()))
}

func (a *app) initVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "init <directory>",
		Short: "Make a directory for the runtime contract without a yard",
		Long: `Makes a directory that exec and snapshot work in with --state-dir. One that is
there already begins anew: the files of the state are replaced, and what they
said is kept beside them under names that end in .old. Other files stay.`,
		Example: `  yardmaster init state
  yardmaster exec '{"command":"QueueDispatch","request_id":"r1","target":"anna"}' --state-dir=state`,
		Args: func(c *cobra.Command, given []string) error {
			if len(given) == 0 || given[0] == "" {
				return noName("init")
			}
			return args("directory")(c, given)
		},
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := a.lockContext(c)
			defer cancel()
			if err := statedir.Init(ctx, args[0]); err != nil {
				return exactly(err)
			}
			_, err := fmt.Fprintln(a.Out, "initialized state directory:", args[0])
			return err
		},
	}
}
