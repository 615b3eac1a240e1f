package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"

	"github.com/spf13/cobra"
)

// Timing of the requests that follow a change of members.
const (
	followInterval = 500 * time.Millisecond
	followTimeout  = 30 * time.Second // without a reply
)

func (a *app) clusterVerbs() *cobra.Command {
	return group(&cobra.Command{
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
	}, append(a.retired(), a.clusterMembers(), a.clusterAdd(), a.clusterRemove(), a.clusterReplace(), a.clusterCancel(), a.clusterTransfer())...)
}

func clusterSubject(verb string) string { return api.Subject("cluster-" + verb) }

func (a *app) clusterMembers() *cobra.Command {
	return a.withJSONFlag(&cobra.Command{
		Use:     "members",
		Aliases: []string{"list", "ls"},
		Short:   "List the members, their state, and the progress of a change",
		Long: `Lists the members. REACHABLE is whether the authority receives a member's status,
LAG the number of Raft log entries it lacks, JETSTREAM the role of its server in
the JetStream meta group, STREAMS how many stream replicas it has and how many of
them it leads. A change in progress is shown below with the step it waits for.`,
		Example: "  yardmaster cluster members\n  yardmaster cluster members --json",
		Args:    takeArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			return requestAndPrint(c.Context(), a, clusterSubject("members"), struct{}{}, membersTable)
		},
	})
}

func membersTable(w io.Writer, v *api.Membership) {
	fmt.Fprint(w, "MEMBER\tDIRECTORY\tSTATE\tREACHABLE\tVOTE\tLAG\tJETSTREAM\tSTREAMS\tRUNNING\tROUTE\tRAFT\tVERSION\n")
	for i := range v.Members {
		m := &v.Members[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%d, leads %d\t%d\t%s\t%s\t%s\n", m.Name, m.Directory, m.State, yesNo(m.Answers), yesNo(m.Voter),
			m.Lag, m.JetStream, m.Streams, m.Leads, m.Running, orDash(m.Route), orDash(m.Raft), orDash(m.Version))
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
		fmt.Fprintf(w, "\n%s: %s\n", v.Change, orDash(v.Step))
	} else if v.Outcome != "" {
		fmt.Fprintf(w, "\nthe last change failed: %s\n", v.Outcome)
	}
	for _, s := range v.Skew {
		fmt.Fprintf(w, "%s\n", s)
	}
}

// memberChange describes a verb that starts a change of members and follows it
// to its end.
type memberChange struct {
	verb    string
	request map[string]string
	noWait  bool
}

// memberChangeCommand adds to c the flags and the action of a member change,
// and returns c.
func (a *app) memberChangeCommand(c *cobra.Command, ch *memberChange) *cobra.Command {
	c.Flags().BoolVar(&ch.noWait, "no-wait", false, "start the change and do not wait for its end")
	c = a.withJSONFlag(c)
	c.RunE = func(c *cobra.Command, names []string) error {
		req := map[string]string{}
		for key, value := range ch.request {
			if value != "" {
				req[key] = value
			}
		}
		if len(names) > 0 {
			req["name"] = names[0]
		}
		return a.changeMembers(c.Context(), ch, req)
	}
	return c
}

// changeMembers starts a change and reports its steps on standard error until
// it has ended.
func (a *app) changeMembers(ctx context.Context, ch *memberChange, req map[string]string) error {
	cl, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	answer, err := cl.request(ctx, clusterSubject(ch.verb), req)
	var refused *api.Error
	switch {
	case errors.As(err, &refused) && refused.Code == api.CodeConflict: // the text states the precondition
		return &userError{msg: refused.Text, remedy: "'yardmaster cluster members' shows their state"}
	case err != nil:
		return err
	case ch.noWait:
		return printReply(a, answer, membersTable)
	}
	lastStep, answered := "", time.Now()
	for {
		var v api.Membership
		if err == nil {
			answered = time.Now()
			if err := json.Unmarshal(answer, &v); err != nil {
				return badReplyError(err)
			}
			if v.Change == "" {
				if v.Outcome != "" && ch.verb != "cancel" {
					return &userError{msg: v.Outcome}
				}
				return printReply(a, answer, membersTable)
			}
			if step, _, _ := strings.Cut(v.Step, ":"); step != lastStep && step != "" {
				lastStep = step
				fmt.Fprintln(a.Err, v.Step)
			}
		} else if time.Since(answered) > followTimeout {
			return err
		}
		select {
		case <-time.After(followInterval):
		case <-ctx.Done():
			return &userError{msg: "interrupted; the change continues", remedy: "'yardmaster cluster members' shows its progress"}
		}
		answer, err = cl.request(ctx, clusterSubject("members"), struct{}{}) // may fail while the authority changes
	}
}

func (a *app) clusterAdd() *cobra.Command {
	ch := &memberChange{verb: "add", request: map[string]string{}}
	var route, raft string
	c := a.memberChangeCommand(&cobra.Command{
		Use:   "add <member>",
		Short: "Admit a waiting node",
		Long: `Makes a node a member. Start the node first, with an empty data directory and a
configuration that lists the members and itself; it waits and logs the command
to run. After it is admitted it catches up, and gets its vote at the end.`,
		Example: "  yardmaster cluster add n4 --route 10.0.0.4:6222 --raft 10.0.0.4:7222",
		Args:    takeArgs("member"),
	}, ch)
	addAddressFlags(c, &route, &raft, "")
	run := c.RunE
	c.RunE = func(c *cobra.Command, names []string) error {
		if route == "" || raft == "" {
			return usageError(c, "give both addresses of the node, as the members reach them: --route HOST:PORT --raft HOST:PORT")
		}
		ch.request["route"], ch.request["raft"] = route, raft
		return run(c, names)
	}
	return c
}

// addAddressFlags adds --route and --raft to c; note is appended to their usage.
func addAddressFlags(c *cobra.Command, route, raft *string, note string) {
	c.Flags().StringVar(route, "route", "", "NATS route `address` of the node, as the members reach it"+note)
	c.Flags().StringVar(raft, "raft", "", "Raft `address` of the node, as the members reach it"+note)
}

func (a *app) clusterRemove() *cobra.Command {
	return a.memberChangeCommand(&cobra.Command{
		Use:     "rm <member>",
		Aliases: []string{"remove"},
		Short:   "Remove a member",
		Long: `Removes a member, alive or dead. A live member first gets up to a minute to finish
its jobs, its stream replicas are moved to other members, and its node exits. Its
data directory is never admitted again. A yard keeps at least three members.`,
		Example: "  yardmaster cluster rm n4",
		Args:    takeArgs("member"),
	}, &memberChange{verb: "rm"})
}

func (a *app) clusterReplace() *cobra.Command {
	ch := &memberChange{verb: "replace", request: map[string]string{}}
	var with, route, raft string
	c := a.memberChangeCommand(&cobra.Command{
		Use:   "replace <member>",
		Short: "Replace a lost member by a node with an empty data directory",
		Long: `Replaces a lost member by a node that waits with an empty data directory, under
the same name or another. It is refused while the old member is reachable.`,
		Example: `  yardmaster cluster replace n3
  yardmaster cluster replace n3 --with n6 --route 10.0.0.6:6222 --raft 10.0.0.6:7222`,
		Args: takeArgs("member"),
	}, ch)
	c.Flags().StringVar(&with, "with", "", "`name` of the new member (default the same)")
	addAddressFlags(c, &route, &raft, " (default unchanged)")
	run := c.RunE
	c.RunE = func(c *cobra.Command, names []string) error {
		ch.request["with"], ch.request["route"], ch.request["raft"] = with, route, raft
		return run(c, names)
	}
	return c
}

func (a *app) clusterCancel() *cobra.Command {
	return a.memberChangeCommand(&cobra.Command{
		Use:     "cancel",
		Short:   "Cancel an addition or a replacement",
		Long:    `Cancels an addition or a replacement whose new member has no vote yet.`,
		Example: "  yardmaster cluster cancel",
		Args:    takeArgs(),
	}, &memberChange{verb: "cancel"})
}

func (a *app) clusterTransfer() *cobra.Command {
	var to string
	c := a.withJSONFlag(&cobra.Command{
		Use:     "transfer",
		Short:   "Transfer the authority to another member",
		Example: "  yardmaster cluster transfer --to n2",
		Args:    takeArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			return requestAndPrint(c.Context(), a, clusterSubject("transfer"), map[string]string{"to": to}, transferLine)
		},
	})
	c.Flags().StringVar(&to, "to", "", "`member` to transfer it to (default the first that accepts it)")
	return c
}

func transferLine(w io.Writer, t *api.Transfer) {
	fmt.Fprintf(w, "authority transferred to %s from %s; epoch %d\n", t.To, t.From, t.Epoch)
}
