// Package operate has the verbs of an operator: members, drains, backups and
// certificates.
package operate

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// Timing of the requests that follow a change of members.
const (
	followInterval = 500 * time.Millisecond
	followTimeout  = 30 * time.Second // without a reply
)

// ClusterVerbs returns the verb cluster.
func ClusterVerbs(env *command.Env) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "cluster <verb>",
		Short: "Show, add, remove and replace members; transfer the authority",
		Long: `Changes the members of the yard, one at a time. A change starts only while all
other members are healthy. It continues on its own, even if the authority fails
or this command is interrupted. --no-wait only starts it; 'cluster members'
shows its progress.`,
		Example: `  yardmaster cluster members
  yardmaster cluster add n4 --route 10.0.0.4:6222 --raft 10.0.0.4:7222
  yardmaster cluster replace n3
  yardmaster cluster rm n4
  yardmaster cluster transfer --to n2`,
	}, append(retired(env), clusterMembers(env), clusterAdd(env), clusterRemove(env), clusterReplace(env), clusterCancel(env), clusterTransfer(env))...)
}

func clusterMembers(env *command.Env) *cobra.Command {
	return command.Query(env, &cobra.Command{
		Use:     "members",
		Aliases: []string{"list", "ls"},
		Short:   "List the members, their state, and the progress of a change",
		Long: `Lists the members. REACHABLE is whether the authority receives a member's status,
LAG the number of Raft log entries it lacks, JETSTREAM the role of its server in
the JetStream meta group, STREAMS how many stream replicas it has and how many of
them it leads. A change in progress is shown below with the step it waits for.`,
		Example: "  yardmaster cluster members\n  yardmaster cluster members --json",
	}, membersTable, func([]string) (string, any) { return api.Subject("cluster-members"), struct{}{} })
}

func membersTable(w io.Writer, v *api.Membership) {
	fmt.Fprint(w, "MEMBER\tDIRECTORY\tSTATE\tREACHABLE\tVOTE\tLAG\tJETSTREAM\tSTREAMS\tRUNNING\tROUTE\tRAFT\tVERSION\n")
	for i := range v.Members {
		m := &v.Members[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%d, leads %d\t%d\t%s\t%s\t%s\n", m.Name, m.Directory, m.State, command.YesNo(m.Answers), command.YesNo(m.Voter),
			m.Lag, m.JetStream, m.Streams, m.Leads, m.Running, command.OrDash(m.Route), command.OrDash(m.Raft), command.OrDash(m.Version))
	}
	for i := range v.Members {
		m := &v.Members[i]
		if len(m.Behind) > 0 {
			fmt.Fprintf(w, "%s lags on %s\n", m.Name, strings.Join(m.Behind, ", "))
		}
		if m.Declares != "" {
			fmt.Fprintf(w, "the configuration of %s lists %s, which is ignored: the member list in the ledger applies\n", m.Name, m.Declares)
		}
	}
	if v.Change != "" {
		fmt.Fprintf(w, "\n%s: %s\n", v.Change, command.OrDash(v.Step))
	} else if v.Outcome != "" {
		fmt.Fprintf(w, "\nthe last change failed: %s\n", v.Outcome)
	}
	for _, s := range v.Skew {
		fmt.Fprintf(w, "%s\n", s)
	}
}

// memberChange is a verb that starts a change of members and follows it to its
// end, and its flags.
type memberChange struct {
	verb                  string
	with, route, raft     string
	noWait, needAddresses bool
}

// command adds the flags and the action of the change to c, and returns c.
func (ch *memberChange) command(env *command.Env, c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&ch.noWait, "no-wait", false, "start the change and do not wait for its end")
	c.RunE = func(c *cobra.Command, names []string) error {
		if ch.needAddresses && (ch.route == "" || ch.raft == "") {
			return usererror.Usage(c, "give both addresses of the node, as the members reach them: --route HOST:PORT --raft HOST:PORT")
		}
		req := map[string]string{"with": ch.with, "route": ch.route, "raft": ch.raft}
		if len(names) > 0 {
			req["name"] = names[0]
		}
		maps.DeleteFunc(req, func(_, value string) bool { return value == "" })
		return ch.run(c.Context(), env, req)
	}
	return env.WithJSON(c)
}

// addAddressFlags adds --route and --raft to c; note is appended to their usage.
func (ch *memberChange) addAddressFlags(c *cobra.Command, note string) {
	c.Flags().StringVar(&ch.route, "route", "", "NATS route `address` of the node, as the members reach it"+note)
	c.Flags().StringVar(&ch.raft, "raft", "", "Raft `address` of the node, as the members reach it"+note)
}

// run starts a change and reports its steps on standard error until
// it has ended.
func (ch *memberChange) run(ctx context.Context, env *command.Env, req map[string]string) error {
	answer, err := env.Send(ctx, api.Subject("cluster-"+ch.verb), req)
	switch refused := connect.Refused(err, api.CodeConflict); {
	case refused != nil: // the text states the precondition
		return usererror.New(refused.Text, "'yardmaster cluster members' shows their state")
	case err != nil:
		return err
	case ch.noWait:
		return command.Print(env, answer, membersTable)
	}
	lastStep, answered := "", time.Now()
	for {
		if err == nil {
			answered = time.Now()
			v, err := connect.Decode[api.Membership](answer, nil)
			if err != nil {
				return err
			}
			if v.Change == "" {
				if v.Outcome != "" && ch.verb != "cancel" {
					return usererror.New(v.Outcome, "")
				}
				return command.Print(env, answer, membersTable)
			}
			if step, _, _ := strings.Cut(v.Step, ":"); step != lastStep && step != "" {
				lastStep = step
				fmt.Fprintln(env.Err, v.Step)
			}
		} else if time.Since(answered) > followTimeout {
			return err
		}
		select {
		case <-time.After(followInterval):
		case <-ctx.Done():
			return usererror.New("interrupted; the change continues", "'yardmaster cluster members' shows its progress")
		}
		answer, err = env.Send(ctx, api.Subject("cluster-members"), struct{}{}) // may fail while the authority changes
	}
}

func clusterAdd(env *command.Env) *cobra.Command {
	ch := &memberChange{verb: "add", needAddresses: true}
	c := ch.command(env, &cobra.Command{
		Use:   "add <member>",
		Short: "Admit a waiting node",
		Long: `Makes a node a member. Start the node first, with an empty data directory and a
configuration that lists the members and itself; it waits and logs the command
to run. After it is admitted it catches up, and gets its vote at the end.`,
		Example: "  yardmaster cluster add n4 --route 10.0.0.4:6222 --raft 10.0.0.4:7222",
	})
	ch.addAddressFlags(c, "")
	return c
}

func clusterRemove(env *command.Env) *cobra.Command {
	return (&memberChange{verb: "rm"}).command(env, &cobra.Command{
		Use:     "rm <member>",
		Aliases: []string{"remove"},
		Short:   "Remove a member",
		Long: `Removes a member, alive or dead. A live member first gets up to a minute to finish
its jobs, its stream replicas are moved to other members, and its node exits. Its
data directory is never admitted again. A yard keeps at least three members.`,
		Example: "  yardmaster cluster rm n4",
	})
}

func clusterReplace(env *command.Env) *cobra.Command {
	ch := &memberChange{verb: "replace"}
	c := ch.command(env, &cobra.Command{
		Use:   "replace <member>",
		Short: "Replace a lost member by a node with an empty data directory",
		Long: `Replaces a lost member by a node that waits with an empty data directory, under
the same name or another. It is refused while the old member is reachable.`,
		Example: `  yardmaster cluster replace n3
  yardmaster cluster replace n3 --with n6 --route 10.0.0.6:6222 --raft 10.0.0.6:7222`,
	})
	c.Flags().StringVar(&ch.with, "with", "", "`name` of the new member (default the same)")
	ch.addAddressFlags(c, " (default unchanged)")
	return c
}

func clusterCancel(env *command.Env) *cobra.Command {
	return (&memberChange{verb: "cancel"}).command(env, &cobra.Command{
		Use:     "cancel",
		Short:   "Cancel an addition or a replacement",
		Long:    `Cancels an addition or a replacement whose new member has no vote yet.`,
		Example: "  yardmaster cluster cancel",
	})
}

func clusterTransfer(env *command.Env) *cobra.Command {
	var to string
	c := command.Query(env, &cobra.Command{
		Use:     "transfer",
		Short:   "Transfer the authority to another member",
		Example: "  yardmaster cluster transfer --to n2",
	}, transferLine, func([]string) (string, any) { return api.Subject("cluster-transfer"), map[string]string{"to": to} })
	c.Flags().StringVar(&to, "to", "", "`member` to transfer it to (default the first that accepts it)")
	return c
}

func transferLine(w io.Writer, t *api.Transfer) {
	fmt.Fprintf(w, "authority transferred to %s from %s; epoch %d\n", t.To, t.From, t.Epoch)
}
