package operate

import (
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// retired returns the verbs of earlier versions that compared and rebuilt replicas
// of single streams. They fail with an error that names their replacement.
func retired(env *command.Env) []*cobra.Command {
	fails := func(err error) func(*cobra.Command, []string) error {
		return func(*cobra.Command, []string) error { return err }
	}
	scrub := env.WithJSON(&cobra.Command{
		Use: "scrub", Hidden: true, Short: "Retired: see 'yardmaster status'",
		RunE: fails(usererror.New("this verb was removed: members no longer verify their replicas on disk",
			"'yardmaster status' names a member with a damaged or lagging replica, and 'yardmaster cluster replace <member>' replaces a damaged member")),
	})
	rebuild := env.WithJSON(&cobra.Command{
		Use: "rebuild <stream>", Hidden: true, Short: "Retired: see 'yardmaster cluster replace'",
		RunE: fails(usererror.New("this verb was removed, nothing was done: a replica of a single stream is not rebuilt",
			"replace the member that has it: stop it, move its data directory away, start it with an empty one, and run 'yardmaster cluster replace <member>'")),
	})
	rebuild.Flags().String("node", "", "`member` that has the replica")
	rebuild.Flags().Bool("no-wait", false, "has no effect")
	return []*cobra.Command{scrub, rebuild}
}
