package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"time"

	"yardmaster/cluster"

	"github.com/spf13/cobra"
)

func (a *app) statusVerb() *cobra.Command {
	return a.takesJSON(&cobra.Command{
		Use:   "status",
		Short: "Show members, authority, lanes, backlog and readiness",
		Long: `Shows the yard as the node that answers sees it: who is a member, who leads the
Raft group and who holds the authority, how far each job lane has been folded,
what waits and runs, and, if the yard is not ready, why.`,
		Example: `  yardmaster status
  yardmaster status --json -s nats://10.0.0.2:4222`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error {
			return show(c.Context(), a, cluster.SubjectStatus, struct{}{}, statusTable)
		},
	})
}

func statusTable(w io.Writer, s *statusAnswer) {
	fmt.Fprintf(w, "node\t%s, version %s, %s, up %s\n", s.Node, s.Version, s.Mode, time.Duration(s.Uptime)*time.Second)
	fmt.Fprintf(w, "ready\t%s\n", readiness(s))
	for _, reason := range s.Readiness.Reasons {
		fmt.Fprintf(w, "\t- %s\n", reason)
	}
	for _, warning := range s.Readiness.Warnings {
		fmt.Fprintf(w, "warning\t%s\n", warning)
	}
	fmt.Fprintf(w, "http\t%s\n", or(s.HTTP))
	fmt.Fprintf(w, "authority\t%s\n", authority(s))
	fmt.Fprintf(w, "raft\t%s, leader %s, term %d, applied %d of %d\n",
		or(s.Raft.State), or(s.Raft.Leader), s.Raft.Term, s.Raft.Applied, s.Raft.Last)
	fmt.Fprintf(w, "backlog\t%d pending, %d notified, %d delivered, %d failed\n",
		s.Backlog.Pending, s.Backlog.Notified, s.Backlog.Delivered, s.Backlog.Failed)
	fmt.Fprintf(w, "guards\t%d keys held\n", s.HeldKeys)
	fmt.Fprintf(w, "outbox\t%d bytes to tell; %d stale outcomes\n", s.OutboxBytes, s.StaleOutcomes)
	fmt.Fprintf(w, "workers\t%d connections here, %d registered, %d subscriptions\n",
		s.Workers.Connections, s.Workers.Registered, s.Workers.Subscriptions)
	fmt.Fprintf(w, "scrub\t%s\n", scrubLine(&s.Scrub))
	memberTable(w, s)
	laneTable(w, s)
	poolTable(w, s)
}

func memberTable(w io.Writer, s *statusAnswer) {
	if len(s.Members) == 0 {
		return
	}
	heard := make(map[string]nodeAnswer, len(s.Nodes))
	for _, n := range s.Nodes {
		heard[n.Name] = n
	}
	fmt.Fprint(w, "\nMEMBER\tSTATE\tROLE\tRAFT ADDRESS\tRUNNING\tROOM\tLAST BEAT\tVERSION\n")
	for _, m := range s.Members {
		running, room, beat := "-", "-", "-"
		if n, ok := heard[m.Name]; ok {
			running, room = fmt.Sprint(n.Running), fmt.Sprint(n.Room)
			beat = (time.Duration(n.BeatAgoMS) * time.Millisecond).String() + " ago"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.Name, m.State, role(m.Leader, m.Voter), or(m.Address), running, room, beat, talk(m.Version, m.TLS, m.Refused))
	}
}

// talk is what the node that answers has heard of a member.
func talk(version string, secured bool, refused string) string {
	switch {
	case refused != "":
		return or(version) + ", refused: " + refused
	case secured:
		return or(version) + ", TLS"
	}
	return or(version)
}

func role(leader, voter bool) string {
	switch {
	case leader:
		return "leader"
	case voter:
		return "voter"
	}
	return "learner"
}

func laneTable(w io.Writer, s *statusAnswer) {
	if len(s.Lanes) == 0 {
		return
	}
	fmt.Fprint(w, "\nLANE\tSTREAM\tLEADER\tFIRST\tLAST\tFOLDED\tLAG\n")
	for _, l := range s.Lanes {
		fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%d\t%d\n", l.Lane, l.Stream, or(l.Leader), l.First, l.Last, l.Cursor, l.Lag)
	}
}

func poolTable(w io.Writer, s *statusAnswer) {
	if len(s.Pools) == 0 {
		return
	}
	fmt.Fprint(w, "\nRUNNER\tUP\tRUNNING\tSLOTS\tTROUBLE\n")
	for _, p := range s.Pools {
		fmt.Fprintf(w, "%s\t%d of %d\t%d\t%d\t%s\n", p.Runner, p.Up, p.Size, p.InFlight, p.Slots, or(p.Reason))
	}
}

func readiness(s *statusAnswer) string {
	r := s.Readiness
	if r.Ready {
		return "yes"
	}
	return fmt.Sprintf("no (accepting %s, dispatching %s)", yes(r.Accepting), yes(r.Dispatching))
}

func authority(s *statusAnswer) string {
	if s.Authority.Owner == "" {
		return "nobody"
	}
	lease := "leased until "
	if s.Authority.Expired {
		lease = "lease ran out at "
	}
	return fmt.Sprintf("%s, epoch %d, %s%s", s.Authority.Owner, s.Authority.Epoch, lease, moment(&s.Authority.LeasedUntil))
}

// or is what stands in a table for nothing.
func or(s string) string { return cmp.Or(s, "-") }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (a *app) versionVerb() *cobra.Command {
	return a.takesJSON(&cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program",
		Example: `  yardmaster version`,
		Args:    args(),
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{a.program.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if a.json {
				var out bytes.Buffer
				if err := json.NewEncoder(&out).Encode(v); err != nil {
					return err
				}
				return a.printJSON(out.Bytes())
			}
			_, err := fmt.Fprint(a.Out, a.versionLine())
			return err
		},
	})
}

// versionLine is what version says, and the flag of that name.
func (a *app) versionLine() string {
	return fmt.Sprintf("yardmaster %s (%s, %s/%s)\n", a.program.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
