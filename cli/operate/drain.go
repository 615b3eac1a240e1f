package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/cluster"

	"github.com/spf13/cobra"
)

// Drain returns the verb 'node drain'.
func Drain(env *command.Env) *cobra.Command {
	var limit time.Duration
	var noWait bool
	c := env.WithJSON(&cobra.Command{
		Use:   "drain <member>",
		Short: "Drain a member before maintenance",
		Long: `Drains a member, for example before maintenance of its host: it starts no further
jobs, redirects its workers to other members, and transfers the authority and the
stream leaderships that it holds. Running jobs continue; the command shows them
and waits until none is left. The member still serves clients. 'yardmaster node
resume' or a restart of the node ends the drain.`,
		Example: `  yardmaster node drain n2
  yardmaster node drain n2 --limit 30m && ssh n2 systemctl stop yardmaster`,
		RunE: func(c *cobra.Command, names []string) error { return drain(c.Context(), env, names[0], limit, noWait) },
	})
	c.Flags().DurationVar(&limit, "limit", 10*time.Minute, "longest `time` to wait until nothing is left")
	c.Flags().BoolVar(&noWait, "no-wait", false, "start the drain, show what is left, and do not wait")
	return c
}

// Resume returns the verb 'node resume'.
func Resume(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:     "resume <member>",
		Short:   "End the drain of a member",
		Example: "  yardmaster node resume n2",
		RunE: func(c *cobra.Command, names []string) error {
			err := command.Request(c.Context(), env, api.NodeSubject(names[0], "resume"), struct{}{}, func(w io.Writer, r *api.Resumed) {
				fmt.Fprintf(w, "%s is resumed; it was drained since %s\n", r.Node, command.TimeText(&r.Drained))
			})
			return nodeRequestError(err, names[0])
		},
	})
}

// drainReply is the part of an [api.DrainStatus] that 'node drain --json' prints.
type drainReply struct {
	Done      bool     `json:"done"`
	Running   int      `json:"running"`
	Leads     []string `json:"leads"`
	Authority bool     `json:"authority"`
	Jobs      []struct {
		ID      string    `json:"id"`
		Channel string    `json:"channel"`
		Since   time.Time `json:"since"`
	} `json:"jobs"`
}

// remaining describes what a drained member still holds or runs; "" if nothing.
func (d *drainReply) remaining() string {
	var all []string
	if d.Authority {
		all = append(all, "it holds the authority")
	}
	if len(d.Leads) > 0 {
		all = append(all, "it leads "+strings.Join(d.Leads, ", "))
	}
	if d.Running > 0 {
		text := fmt.Sprintf("running jobs: %d", d.Running)
		for i, j := range d.Jobs {
			if i == 3 {
				text += ", …"
				break
			}
			text += fmt.Sprintf(", %s by %s since %s", j.ID, j.Channel, command.TimeText(&j.Since))
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// Timing of the requests that follow a drain.
const (
	drainInterval = time.Second
	drainTimeout  = 30 * time.Second // without a reply
)

// drain starts the drain of a member and, unless noWait is set, waits up to
// limit until it is done.
func drain(ctx context.Context, env *command.Env, member string, limit time.Duration, noWait bool) error {
	d, err := connect.Decode[drainReply](env.Send(ctx, api.NodeSubject(member, "drain"), struct{}{}))
	if err != nil {
		return nodeRequestError(err, member)
	}
	began, answered, lastText := time.Now(), time.Now(), ""
	for !d.Done && !noWait {
		if left := d.remaining(); left != lastText {
			lastText = left
			fmt.Fprintln(env.Err, left)
		}
		if time.Since(began) > limit {
			return usererror.New(fmt.Sprintf("the drain of %s did not finish within %s: %s", member, limit, d.remaining()),
				"wait longer, or stop the node: its running jobs are released and run on other members; 'yardmaster job cancel <job>' cancels one")
		}
		select {
		case <-time.After(min(drainInterval, limit)):
		case <-ctx.Done():
			return usererror.New(member+" stays drained", "'yardmaster node resume "+member+"' ends the drain")
		}
		var s struct{ Drain *drainReply }
		answer, err := env.Send(ctx, api.NodeSubject(member, "status"), struct{}{})
		switch {
		case err == nil && json.Unmarshal(answer, &s) != nil:
			return connect.BadReply(errors.New("no status"))
		case err == nil && s.Drain == nil:
			return usererror.New(member+" is no longer drained: it was resumed or restarted", "")
		case err == nil:
			d, answered = *s.Drain, time.Now()
		case time.Since(answered) > drainTimeout:
			return nodeRequestError(err, member)
		}
	}
	return drained(env, member, &d)
}

// drained prints the final state of a drain.
func drained(env *command.Env, member string, d *drainReply) error {
	if env.JSON {
		return command.PrintValue[drainReply](env, d, nil)
	}
	if left := d.remaining(); !d.Done {
		_, err := fmt.Fprintf(env.Out, "%s is drained; left: %s\n", member, left)
		return err
	}
	_, err := fmt.Fprintf(env.Out, "%s is drained and may be stopped; 'yardmaster node resume %s' or a restart ends the drain\n", member, member)
	return err
}

// nodeRequestError returns the user error for a failed request to one member.
// The text of a conflict states its remedy.
func nodeRequestError(err error, member string) error {
	switch refused := connect.Refused(err, api.CodeConflict); {
	case refused != nil:
		return usererror.New(refused.Text, "")
	case errors.Is(err, cluster.ErrNoNodes):
		return usererror.New("node "+member+" did not reply", "'yardmaster status' lists the members and their state")
	}
	return err
}
