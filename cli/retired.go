package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// retired returns the verbs of earlier versions that compared and rebuilt replicas
// of single streams. They fail with an error that names their replacement.
func (a *app) retired() []*cobra.Command {
	fails := func(p *userError) func(*cobra.Command, []string) error {
		return func(*cobra.Command, []string) error { return p }
	}
	scrub := a.withJSONFlag(&cobra.Command{
		Use: "scrub", Hidden: true, Args: takeArgs(), Short: "Retired: see 'yardmaster status'",
		RunE: fails(&userError{
			msg:    "this verb was removed: members no longer verify their replicas on disk",
			remedy: "'yardmaster status' names a member with a damaged or lagging replica, and 'yardmaster cluster replace <member>' replaces a damaged member",
		}),
	})
	rebuild := a.withJSONFlag(&cobra.Command{
		Use: "rebuild <stream>", Hidden: true, Args: takeArgs("stream"), Short: "Retired: see 'yardmaster cluster replace'",
		RunE: fails(&userError{
			msg:    "this verb was removed, nothing was done: a replica of a single stream is not rebuilt",
			remedy: "replace the member that has it: stop it, move its data directory away, start it with an empty one, and run 'yardmaster cluster replace <member>'",
		}),
	})
	rebuild.Flags().String("node", "", "`member` that has the replica")
	rebuild.Flags().Bool("no-wait", false, "has no effect")
	return []*cobra.Command{scrub, rebuild}
}

// movedVerb returns a verb of earlier versions that is a command of its own, below
// test/cmd. It fails with an error that names that command.
func movedVerb(name string) *cobra.Command {
	return &cobra.Command{
		Use: name, Hidden: true, DisableFlagParsing: true, Short: fmt.Sprintf("Moved: see 'make %s'", name),
		RunE: func(*cobra.Command, []string) error {
			return &userError{
				msg:    fmt.Sprintf("%s is not part of this program any more, nothing was done", name),
				remedy: fmt.Sprintf("in a checkout of the source run 'make %s' or 'go run ./test/cmd/%s'", name, name),
			}
		},
	}
}
