package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/membership"

	"github.com/spf13/cobra"
)

// How a change of members is followed.
const (
	followEvery = 500 * time.Millisecond
	followDown  = 30 * time.Second // without an answer
)

func (a *app) clusterVerbs() *cobra.Command {
	return group(&cobra.Command{
		Use:   "cluster <verb>",
		Short: "Show, add, remove and replace members; hand the authority on",
		Long: `Changes who belongs to the yard, one member at a time. A change begins only while
all other members are well. It goes on by itself, also if the authority dies or
this command is ended: --no-wait only begins it, and 'cluster members' shows how
far it is.`,
		Example: `  yardmaster cluster members
  yardmaster cluster add n4 --route 10.0.0.4:6222 --raft 10.0.0.4:7222
  yardmaster cluster replace n3
  yardmaster cluster rm n4
  yardmaster cluster transfer --to n2`,
	}, a.clusterMembers(), a.clusterAdd(), a.clusterRemove(), a.clusterReplace(), a.clusterCancel(), a.clusterTransfer(), a.clusterScrub(), a.clusterRebuild())
}

func clusterSubject(verb string) string { return cluster.SubjectAPI + ".cluster." + verb }

func (a *app) clusterMembers() *cobra.Command {
	return a.takesJSON(&cobra.Command{
		Use:     "members",
		Aliases: []string{"list", "ls"},
		Short:   "List the members, how each stands, and how a change goes on",
		Long: `Lists the members: LAG is how many log entries one lacks, JETSTREAM how its server
stands in the group that decides about streams, STREAMS how many copies lie there
and how many of them it leads. Below stands what a change under way waits for.`,
		Example: "  yardmaster cluster members\n  yardmaster cluster members --json",
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			return show(c.Context(), a, clusterSubject("members"), struct{}{}, membersTable)
		},
	})
}

func membersTable(w io.Writer, v *membership.View) {
	fmt.Fprint(w, "MEMBER\tDIRECTORY\tSTATE\tHEARD\tVOTE\tLAG\tJETSTREAM\tSTREAMS\tRUNNING\tROUTE\tRAFT\tVERSION\n")
	for i := range v.Members {
		m := &v.Members[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%d, leads %d\t%d\t%s\t%s\t%s\n", m.Name, m.Directory, m.State, yes(m.Heard), yes(m.Voter),
			m.Lag, m.JetStream, m.Streams, m.Leads, m.Running, or(m.Route), or(m.Raft), or(m.Version))
	}
	for i := range v.Members {
		m := &v.Members[i]
		if len(m.Behind) > 0 {
			fmt.Fprintf(w, "%s is not current with %s\n", m.Name, strings.Join(m.Behind, ", "))
		}
		if m.Declares != "" {
			fmt.Fprintf(w, "%s's configuration lists %s; the yard's list counts\n", m.Name, m.Declares)
		}
	}
	if v.Change != "" {
		fmt.Fprintf(w, "\n%s: %s\n", v.Change, or(v.Step))
	} else if v.Outcome != "" {
		fmt.Fprintf(w, "\nthe last change came to nothing: %s\n", v.Outcome)
	}
	for _, s := range v.Skew {
		fmt.Fprintf(w, "%s\n", s)
	}
}

// change is a verb that begins a change of members and follows it.
type change struct {
	verb   string
	ask    map[string]string
	noWait bool
}

func (a *app) changes(c *cobra.Command, ch *change) *cobra.Command {
	c.Flags().BoolVar(&ch.noWait, "no-wait", false, "begin the change and leave it to the yard")
	c = a.takesJSON(c)
	c.RunE = func(c *cobra.Command, names []string) error {
		ask := map[string]string{}
		for key, value := range ch.ask {
			if value != "" {
				ask[key] = value
			}
		}
		if len(names) > 0 {
			ask["name"] = names[0]
		}
		return a.changeMembers(c.Context(), ch, ask)
	}
	return c
}

// changeMembers begins a change and tells of its steps until it is over.
func (a *app) changeMembers(ctx context.Context, ch *change, ask map[string]string) error {
	y, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	answer, err := y.ask(ctx, clusterSubject(ch.verb), ask)
	var refused *cluster.APIError
	switch {
	case errors.As(err, &refused) && refused.Code == "409": // says itself what would let it
		return &problem{what: refused.Text, do: "'yardmaster cluster members' shows how they stand"}
	case err != nil:
		return err
	case ch.noWait:
		return print(a, answer, membersTable)
	}
	told, answered := "", time.Now()
	for {
		var v membership.View
		if err == nil {
			answered = time.Now()
			if err := json.Unmarshal(answer, &v); err != nil {
				return unreadable(err)
			}
			if v.Change == "" {
				if v.Outcome != "" && ch.verb != "cancel" {
					return &problem{what: v.Outcome}
				}
				return print(a, answer, membersTable)
			}
			if step, _, _ := strings.Cut(v.Step, ":"); step != told && step != "" {
				told = step
				fmt.Fprintln(a.Err, v.Step)
			}
		} else if time.Since(answered) > followDown {
			return err
		}
		select {
		case <-time.After(followEvery):
		case <-ctx.Done():
			return &problem{what: "the change goes on without you", do: "'yardmaster cluster members' shows how far it is"}
		}
		answer, err = y.ask(ctx, clusterSubject("members"), struct{}{}) // fails while the authority changes hands
	}
}

func (a *app) clusterAdd() *cobra.Command {
	ch := &change{verb: "add", ask: map[string]string{}}
	var route, raft string
	c := a.changes(&cobra.Command{
		Use:   "add <member>",
		Short: "Let a node in that waits",
		Long: `Makes a node a member. Start it first, with an empty data directory and a
configuration that lists the yard's members and itself; it waits and says the
command to type. It is let in, catches up, and gets its vote at the end.`,
		Example: "  yardmaster cluster add n4 --route 10.0.0.4:6222 --raft 10.0.0.4:7222",
		Args:    args("member"),
	}, ch)
	addresses(c, &route, &raft, "")
	run := c.RunE
	c.RunE = func(c *cobra.Command, names []string) error {
		if route == "" || raft == "" {
			return usage(c, "name both addresses of the node, as the members reach it: --route HOST:PORT --raft HOST:PORT")
		}
		ch.ask["route"], ch.ask["raft"] = route, raft
		return run(c, names)
	}
	return c
}

func addresses(c *cobra.Command, route, raft *string, more string) {
	c.Flags().StringVar(route, "route", "", "its NATS route `address`, as the other members reach it"+more)
	c.Flags().StringVar(raft, "raft", "", "its Raft `address`, likewise"+more)
}

func (a *app) clusterRemove() *cobra.Command {
	return a.changes(&cobra.Command{
		Use:     "rm <member>",
		Aliases: []string{"remove"},
		Short:   "Take a member out",
		Long: `Takes a member out, alive or dead. One that lives finishes its jobs for up to a
minute, what lies on it is copied to others first, and its node ends. Its data
directory is never let in again. Three members are the fewest.`,
		Example: "  yardmaster cluster rm n4",
		Args:    args("member"),
	}, &change{verb: "rm"})
}

func (a *app) clusterReplace() *cobra.Command {
	ch := &change{verb: "replace", ask: map[string]string{}}
	var with, route, raft string
	c := a.changes(&cobra.Command{
		Use:   "replace <member>",
		Short: "Give a lost member's place to another data directory",
		Long: `Gives the place of a member that is lost to a node that waits with an empty data
directory, under the same name or another. It is refused while the old one is
heard.`,
		Example: `  yardmaster cluster replace n3
  yardmaster cluster replace n3 --with n6 --route 10.0.0.6:6222 --raft 10.0.0.6:7222`,
		Args: args("member"),
	}, ch)
	c.Flags().StringVar(&with, "with", "", "another `name` of the new member (default the same)")
	addresses(c, &route, &raft, " (default as before)")
	run := c.RunE
	c.RunE = func(c *cobra.Command, names []string) error {
		ch.ask["with"], ch.ask["route"], ch.ask["raft"] = with, route, raft
		return run(c, names)
	}
	return c
}

func (a *app) clusterCancel() *cobra.Command {
	return a.changes(&cobra.Command{
		Use:     "cancel",
		Short:   "Take back a change that lets somebody in",
		Long:    `Takes back an addition or a replacement whose new member has no vote yet.`,
		Example: "  yardmaster cluster cancel",
		Args:    args(),
	}, &change{verb: "cancel"})
}

func (a *app) clusterTransfer() *cobra.Command {
	var to string
	c := a.takesJSON(&cobra.Command{
		Use:     "transfer",
		Short:   "Hand the authority to another member",
		Example: "  yardmaster cluster transfer --to n2",
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			return show(c.Context(), a, clusterSubject("transfer"), map[string]string{"to": to}, transferLine)
		},
	})
	c.Flags().StringVar(&to, "to", "", "the `member` that is to have it (default the first that takes it)")
	return c
}

// transferAnswer says to whom the authority went.
type transferAnswer struct {
	From, To string
	Epoch    uint64
}

func transferLine(w io.Writer, t *transferAnswer) {
	fmt.Fprintf(w, "%s has the authority, from %s; epoch %d\n", t.To, t.From, t.Epoch)
}
