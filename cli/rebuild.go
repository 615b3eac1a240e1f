package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) clusterRebuild() *cobra.Command {
	var node string
	var noWait bool
	c := a.takesJSON(&cobra.Command{
		Use:   "rebuild <stream>",
		Short: "Have a member make its copy of a stream anew from the others",
		Long: `Has a member remove its copy of a stream and fill it anew from the others'. Those
are read first: they must be current, sound and alike, or nothing is removed. The
member leaves its work to the others, starts again in its process, and reads the
new copy when that is filled. 'cluster scrub' shows what each member has found.`,
		Example: "  yardmaster cluster rebuild YARD_JOBS_0 --node n2",
		Args:    args("stream"),
	})
	c.Flags().StringVar(&node, "node", "", "the `member` whose copy it is")
	c.Flags().BoolVar(&noWait, "no-wait", false, "begin and leave it to the member")
	c.RunE = func(c *cobra.Command, names []string) error {
		if node == "" {
			return usage(c, "name the member whose copy is to be made anew: --node n2")
		}
		return a.rebuild(c.Context(), names[0], node, noWait)
	}
	return c
}

// rebuild begins and tells of the steps until it is over.
func (a *app) rebuild(ctx context.Context, stream, node string, noWait bool) error {
	y, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	answer, err := y.ask(ctx, clusterSubject("rebuild"), map[string]string{"name": node, "stream": stream})
	if err != nil || noWait {
		if err == nil {
			err = print(a, answer, rebuildLine)
		}
		return err
	}
	for told, heard := "", time.Now(); ; {
		var s scrubsAnswer
		if answer, err = y.ask(ctx, clusterSubject("scrub"), struct{}{}); err == nil {
			if err := json.Unmarshal(answer, &s); err != nil {
				return unreadable(err)
			}
		}
		i := slices.IndexFunc(s.Reports, func(r scrubReport) bool { return r.Node == node && r.Rebuild != nil && r.Rebuild.Stream == stream })
		switch {
		case i < 0 && time.Since(heard) > rebuildSilence: // it starts again, which takes seconds
			return &problem{what: node + " is not heard any more", do: "'yardmaster cluster scrub' shows how far it is"}
		case i < 0:
		case s.Reports[i].Rebuild.Step == "":
			r := s.Reports[i].Rebuild
			if r.Failed {
				return &problem{what: r.Outcome, do: "'yardmaster cluster scrub' shows how the copies stand"}
			}
			text, err := json.Marshal(r)
			if err != nil {
				return err
			}
			return print(a, text, rebuildLine)
		default:
			if heard = time.Now(); told != s.Reports[i].Rebuild.Step {
				told = s.Reports[i].Rebuild.Step
				fmt.Fprintln(a.Err, told)
			}
		}
		select {
		case <-time.After(followEvery):
		case <-ctx.Done():
			return &problem{what: "it goes on without you", do: "'yardmaster cluster scrub' shows how far it is"}
		}
	}
}

// rebuildSilence is how long a member that starts again may not be heard.
const rebuildSilence = 2 * time.Minute

func rebuildLine(w io.Writer, r *rebuildState) {
	fmt.Fprintf(w, "%s: %s%s\n", r.Stream, r.Step, r.Outcome)
}
