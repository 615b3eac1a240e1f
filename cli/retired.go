package cli

import (
	"fmt"

	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// movedVerb returns a verb of earlier versions that is a command of its own, below
// test/cmd. It fails with an error that names that command.
func movedVerb(name string) *cobra.Command {
	return &cobra.Command{
		Use: name, Hidden: true, DisableFlagParsing: true, Args: cobra.ArbitraryArgs, Short: fmt.Sprintf("Moved: see 'make %s'", name),
		RunE: func(*cobra.Command, []string) error {
			return usererror.New(fmt.Sprintf("%s is not part of this program any more, nothing was done", name),
				fmt.Sprintf("in a checkout of the source run 'make %s' or 'go run ./test/cmd/%s'", name, name))
		},
	}
}
