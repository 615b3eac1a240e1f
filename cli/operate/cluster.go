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
	"github.com/yardmaster-dev/yardmaster/internal/backoff"

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
or this command is interrupted. --wait=false only starts it; 'cluster members'
shows its progress.`,
		Example: `  yardmaster cluster members
  yardmaster cluster add n4 --route 10.0.0.4:6222 --raft 10.0.0.4:7222
  yardmaster cluster replace n3
  yardmaster cluster rm n4
  yardmaster cluster transfer --to n2`,
	}, append(retiredVerbs(env), clusterMembers(env), clusterAdd(env), clusterRemove(env), clusterReplace(env), clusterCancel(env), clusterTransfer(env))...)
}

// clusterMembers returns the verb 'cluster members'.
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

// membersTable shows the members of the yard, one per line, followed by what is wrong
// with them and by the change in progress.
func membersTable(w io.Writer, membership *api.Membership) {
	command.Titles(w, "MEMBER\tDIRECTORY\tSTATE\tREACHABLE\tVOTE\tLAG\tJETSTREAM\tSTREAMS\tRUNNING\tROUTE\tRAFT\tVERSION", "RAFT", "ROUTE", "VERSION", "JETSTREAM", "STREAMS", "DIRECTORY", "RUNNING")
	for i := range membership.Members {
		m := &membership.Members[i]
		streams := "-" // after a member's death no stream may have a leader for a moment
		if membership.Uncounted == "" || m.Streams > 0 {
			streams = fmt.Sprintf("%d, leads %d", m.Streams, m.Leads)
		}
		command.Row(w, m.Name, m.Directory, m.State, command.YesNo(m.Answers), command.YesNo(m.Voter),
			m.Lag, m.JetStream, streams, m.Running, command.OrDash(m.Route), command.OrDash(m.Raft), command.OrDash(m.Version))
	}
	for i := range membership.Members {
		m := &membership.Members[i]
		if len(m.Behind) > 0 {
			command.Printf(w, "%s lags on %s\n", m.Name, strings.Join(m.Behind, ", "))
		}
		if m.Declares != "" {
			command.Printf(w, "the configuration of %s lists %s, which is ignored: the member list in the ledger applies\n", m.Name, m.Declares)
		}
	}
	if membership.Uncounted != "" {
		command.Printf(w, "not counted: %s; try again\n", membership.Uncounted)
	}
	if membership.Change != "" {
		command.Printf(w, "\n%s: %s\n", membership.Change, command.OrDash(membership.Step))
	} else if membership.Outcome != "" {
		command.Printf(w, "\nthe last change failed: %s\n", membership.Outcome)
	}
	for _, warning := range membership.Skew {
		command.Printf(w, "%s\n", warning)
	}
}

// memberChange is a verb that starts a change of members and follows it to its
// end, and the values of its flags.
type memberChange struct {
	endpoint      string      // last part of the endpoint's name
	newMember     string      // name of the replacement; "": the same name
	route, raft   string      // "" if not given
	waits         func() bool // whether to wait for the end of the change
	needAddresses bool        // --route and --raft are required
}

// addTo makes c the command that requests the change ch, and returns c: it sets RunE
// and adds the flags --wait and --json. The command's only argument, if it has one,
// is the name of the member to change.
func (ch *memberChange) addTo(env *command.Env, c *cobra.Command) *cobra.Command {
	ch.waits = addWait(c, "wait until the change has ended; --wait=false only starts it")
	c.RunE = func(_ *cobra.Command, args []string) error {
		if ch.needAddresses && (ch.route == "" || ch.raft == "") {
			return usererror.Usage(c, "give both addresses of the node, as the members reach them: --route HOST:PORT --raft HOST:PORT")
		}
		request := map[string]string{"with": ch.newMember, "route": ch.route, "raft": ch.raft}
		if len(args) > 0 {
			request["name"] = args[0]
		}
		maps.DeleteFunc(request, func(_, value string) bool { return value == "" }) // what is not given is not sent
		return ch.run(c.Context(), env, request)
	}
	return env.WithJSON(c)
}

// addAddressFlags adds --route and --raft to c; note is appended to their usage.
func (ch *memberChange) addAddressFlags(c *cobra.Command, note string) {
	c.Flags().StringVar(&ch.route, "route", "", "NATS route `address` of the node, as the members reach it"+note)
	c.Flags().StringVar(&ch.raft, "raft", "", "Raft `address` of the node, as the members reach it"+note)
}

// run sends request, which starts the change. With --wait it writes each
// step of the change to standard error until the change has ended. Then it shows the
// members. It returns an error if the change is refused or fails; cancelling a change
// does not fail because the cancelled change has.
func (ch *memberChange) run(ctx context.Context, env *command.Env, request map[string]string) error {
	reply, err := env.Send(ctx, api.Subject("cluster-"+ch.endpoint), request)
	if refused := connect.Refused(err, api.CodeConflict); refused != nil { // the text states the precondition
		return usererror.Refused(refused, "'yardmaster cluster members' shows their state")
	}
	if err != nil {
		return err
	}
	if !ch.waits() {
		return command.Print(env, reply, membersTable)
	}

	lastStep := ""
	for {
		members, err := connect.Decode[api.Membership](reply, nil)
		if err != nil {
			return err
		}
		if members.Change == "" {
			if members.Outcome != "" && ch.endpoint != "cancel" {
				return usererror.New(members.Outcome, "")
			}
			return command.Print(env, reply, membersTable)
		}
		if step, _, _ := strings.Cut(members.Step, ":"); step != lastStep && step != "" {
			lastStep = step
			command.Printf(env.Err, "%s\n", members.Step)
		}
		if reply, err = pollMembers(ctx, env); err != nil {
			return err
		}
	}
}

// pollMembers waits for followInterval, requests the list of members and returns the
// reply. It repeats this until a node replies, because requests may fail while the
// authority changes; after followTimeout it returns the error of the last request.
func pollMembers(ctx context.Context, env *command.Env) ([]byte, error) {
	for began := time.Now(); ; {
		if backoff.Sleep(ctx, followInterval) != nil {
			return nil, usererror.New("interrupted; the change continues", "'yardmaster cluster members' shows its progress")
		}
		reply, err := env.Send(ctx, api.Subject("cluster-members"), struct{}{})
		if err == nil || time.Since(began) > followTimeout {
			return reply, err
		}
	}
}

// clusterAdd returns the verb 'cluster add'.
func clusterAdd(env *command.Env) *cobra.Command {
	ch := &memberChange{endpoint: "add", needAddresses: true}
	c := ch.addTo(env, &cobra.Command{
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

// clusterRemove returns the verb 'cluster rm'.
func clusterRemove(env *command.Env) *cobra.Command {
	return (&memberChange{endpoint: "rm"}).addTo(env, &cobra.Command{
		Use:     "rm <member>",
		Aliases: []string{"remove"},
		Short:   "Remove a member",
		Long: `Removes a member, alive or dead. A live member first gets up to a minute to finish
its jobs, its stream replicas are moved to other members, and its node exits. Its
data directory is never admitted again. A yard keeps at least three members.`,
		Example: "  yardmaster cluster rm n4",
	})
}

// clusterReplace returns the verb 'cluster replace'.
func clusterReplace(env *command.Env) *cobra.Command {
	ch := &memberChange{endpoint: "replace"}
	c := ch.addTo(env, &cobra.Command{
		Use:   "replace <member>",
		Short: "Replace a lost member by a node with an empty data directory",
		Long: `Replaces a lost member by a node that waits with an empty data directory, under
the same name or another. It is refused while the old member is reachable.`,
		Example: `  yardmaster cluster replace n3
  yardmaster cluster replace n3 --with n6 --route 10.0.0.6:6222 --raft 10.0.0.6:7222`,
	})
	c.Flags().StringVar(&ch.newMember, "with", "", "`name` of the new member (default the same)")
	ch.addAddressFlags(c, " (default unchanged)")
	return c
}

func clusterCancel(env *command.Env) *cobra.Command {
	return (&memberChange{endpoint: "cancel"}).addTo(env, &cobra.Command{
		Use:     "cancel",
		Short:   "Cancel an addition or a replacement",
		Long:    `Cancels an addition or a replacement whose new member has no vote yet.`,
		Example: "  yardmaster cluster cancel",
	})
}

// clusterTransfer returns the verb 'cluster transfer'.
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
	command.Printf(w, "authority transferred to %s from %s; epoch %d\n", t.To, t.From, t.Epoch)
}

// retiredVerbs returns the hidden verbs of earlier versions that compared and rebuilt
// replicas of single streams. They fail with an error that names their replacement.
func retiredVerbs(env *command.Env) []*cobra.Command {
	scrub := env.WithJSON(&cobra.Command{
		Use: "scrub", Hidden: true, Short: "Retired: see 'yardmaster status'",
		RunE: func(*cobra.Command, []string) error {
			return usererror.New("this verb was removed: members no longer verify their replicas on disk",
				"'yardmaster status' names a member with a damaged or lagging replica, and 'yardmaster cluster replace <member>' replaces a damaged member")
		},
	})
	rebuild := env.WithJSON(&cobra.Command{
		Use: "rebuild <stream>", Hidden: true, Short: "Retired: see 'yardmaster cluster replace'",
		RunE: func(*cobra.Command, []string) error {
			return usererror.New("this verb was removed, nothing was done: a replica of a single stream is not rebuilt",
				"replace the member that has it: stop it, move its data directory away, start it with an empty one, and run 'yardmaster cluster replace <member>'")
		},
	})
	rebuild.Flags().String("node", "", "`member` that has the replica")
	rebuild.Flags().Bool("no-wait", false, "has no effect")
	return []*cobra.Command{scrub, rebuild}
}
