package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/durationflag"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/duration"

	"github.com/spf13/cobra"
)

// Drain returns the verb 'node drain'.
func Drain(env *command.Env) *cobra.Command {
	var limit time.Duration
	var waits func() bool
	c := env.WithJSON(&cobra.Command{
		Use:   "drain <member>",
		Short: "Drain a member before maintenance",
		Long: `Drains a member, for example before maintenance of its host: it starts no further
jobs, redirects its workers to other members, and transfers the authority and the
stream leaderships that it holds. Running jobs continue; the command shows them
and waits until none is left. The member still serves clients. 'yardmaster node
resume' or a restart of the node ends the drain.`,
		Example: `  yardmaster node drain n2
  yardmaster node drain n2 --for 30m && ssh n2 systemctl stop yardmaster`,
		RunE: func(c *cobra.Command, names []string) error {
			return drain(c.Context(), env, names[0], limit, waits())
		},
	})
	durationflag.Var(c.Flags(), &limit, "for", 10*time.Minute, "longest `time` to wait until nothing is left; then exit with 5")
	command.Renamed(c, "limit", "for")
	waits = addWait(c, "wait until nothing is left; with --wait=false show what is left")
	return c
}

// addWait adds the flag --wait to c, which is on by default, and --no-wait of earlier
// releases. It returns a function that reports whether the command waits.
func addWait(c *cobra.Command, usage string) func() bool {
	wait := c.Flags().Bool("wait", true, usage)
	noWait := c.Flags().Bool("no-wait", false, "")
	command.Deprecate(c, c.Flags().Lookup("no-wait"), "--wait=false")
	return func() bool { return *wait && !*noWait }
}

// Resume returns the verb 'node resume'.
func Resume(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:     "resume <member>",
		Short:   "End the drain of a member",
		Example: "  yardmaster node resume n2",
		RunE: func(c *cobra.Command, names []string) error {
			err := command.Request(c.Context(), env, api.NodeSubject(names[0], "resume"), struct{}{}, func(w io.Writer, r *api.Resumed) {
				command.Printf(w, "%s is resumed; it was drained since %s\n", r.Node, command.TimeText(&r.Drained))
			})
			return nodeRequestError(c.Context(), env, err, names[0])
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
	var parts []string
	if d.Authority {
		parts = append(parts, "it holds the authority")
	}
	if len(d.Leads) > 0 {
		parts = append(parts, "it leads "+strings.Join(d.Leads, ", "))
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
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// Timing of the requests that follow a drain.
const (
	drainInterval = time.Second
	drainTimeout  = 30 * time.Second // without a reply
)

// drain starts the drain of a member and shows its state. With wait it first
// waits until the drain is done, and reports on standard error what remains; it returns
// an error after limit, or if the member does not reply for drainTimeout.
func drain(ctx context.Context, env *command.Env, member string, limit time.Duration, wait bool) error {
	d, err := connect.Decode[drainReply](env.Send(ctx, api.NodeSubject(member, "drain"), struct{}{}))
	if err != nil {
		return nodeRequestError(ctx, env, err, member)
	}
	began, replied, lastReport := time.Now(), time.Now(), ""
	for !d.Done && wait {
		if report := d.remaining(); report != lastReport {
			lastReport = report
			command.Printf(env.Err, "%s\n", report)
		}
		if time.Since(began) > limit {
			return usererror.Timeout(fmt.Sprintf("the drain of %s did not finish within %s: %s", member, duration.Format(limit), d.remaining()),
				"wait longer, or stop the node: its running jobs are released and run on other members; 'yardmaster job cancel <job>' cancels one")
		}
		if backoff.Sleep(ctx, min(drainInterval, limit)) != nil {
			return usererror.New(member+" stays drained", "'yardmaster node resume "+member+"' ends the drain")
		}
		var status struct{ Drain *drainReply }
		reply, err := env.Send(ctx, api.NodeSubject(member, "status"), struct{}{})
		switch {
		case err == nil && json.Unmarshal(reply, &status) != nil:
			return connect.BadReply(errors.New("no status"))
		case err == nil && status.Drain == nil:
			return usererror.New(member+" is no longer drained: it was resumed or restarted", "")
		case err == nil:
			d, replied = *status.Drain, time.Now()
		case time.Since(replied) > drainTimeout:
			return nodeRequestError(ctx, env, err, member)
		}
	}
	return command.PrintValue(env, d, func(w io.Writer, d *drainReply) {
		if d.Done {
			command.Printf(w, "%s is drained and may be stopped; 'yardmaster node resume %s' or a restart ends the drain\n", member, member)
		} else {
			command.Printf(w, "%s is drained; left: %s\n", member, d.remaining())
		}
	})
}

// nodeRequestError returns the user error for a failed request to one member.
// The text of a conflict states its remedy.
func nodeRequestError(ctx context.Context, env *command.Env, err error, member string) error {
	switch refused := connect.Refused(err, api.CodeConflict); {
	case refused != nil:
		return usererror.Refused(refused, "")
	case errors.Is(err, cluster.ErrNoNodes) && isUnknown(ctx, env, member):
		return usererror.NotFound("there is no member "+member, "'yardmaster status' lists the members")
	case errors.Is(err, cluster.ErrNoNodes):
		return usererror.NotReady("node "+member+" did not reply", "'yardmaster status' lists the members and their state")
	}
	return err
}

// isUnknown reports whether the yard answers and has no member of a name.
func isUnknown(ctx context.Context, env *command.Env, name string) bool {
	s, err := connect.Decode[api.Status](env.Send(ctx, api.Subject("status"), struct{}{}))
	return err == nil && s.Node != name && !slices.ContainsFunc(s.Members, func(m api.MemberStatus) bool { return m.Name == name })
}
