// Package inspect has the verbs that show the state of a yard: status, health and
// events.
package inspect

import (
	"fmt"
	"io"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/spf13/cobra"
)

// Status returns the verb status.
func Status(env *command.Env) *cobra.Command {
	return command.Query(env, &cobra.Command{
		Use:   "status",
		Short: "Show members, authority, lanes, backlog and readiness",
		Long: `Shows the yard as the node that replies sees it: the members, the Raft leader, the
holder of the authority, how far each lane has been ingested, the numbers of
pending and running dispatches, and, if the yard is not ready, the reasons.`,
		Example: `  yardmaster status
  yardmaster status --json -s nats://10.0.0.2:4222`,
	}, statusTable, func([]string) (string, any) { return api.Subject("status"), struct{}{} })
}

// statusTable shows the state of the yard in named lines, followed by tables of the
// members, the lanes and the runner pools.
func statusTable(w io.Writer, s *api.Status) {
	command.Printf(w, "node\t%s, version %s, %s, up %s\n", s.Node, s.Version, s.Mode, duration.Format(time.Duration(s.Uptime)*time.Second))
	command.Printf(w, "ready\t%s\n", readiness(s))
	for _, reason := range s.Readiness.Reasons {
		command.Printf(w, "\t- %s\n", reason)
	}
	for _, warning := range s.Readiness.Warnings {
		command.Printf(w, "warning\t%s\n", warning)
	}
	if s.TimeZones != "" {
		command.Printf(w, "time zones\t%s\n", s.TimeZones)
	}
	command.Printf(w, "http\t%s\n", command.OrDash(s.HTTP))
	command.Printf(w, "authority\t%s\n", authority(s))
	command.Printf(w, "raft\t%s, leader %s, term %d, applied %d of %d\n",
		command.OrDash(s.Raft.State), command.OrDash(s.Raft.Leader), s.Raft.Term, s.Raft.Applied, s.Raft.Last)
	command.Printf(w, "backlog\t%d pending, %d notified, %d delivered, %d failed\n",
		s.Backlog.Pending, s.Backlog.Notified, s.Backlog.Delivered, s.Backlog.Failed)
	command.Printf(w, "jobs\t%d accepted, %d removed, imbalance %d\n", s.Balance.Accepted, s.Balance.Removed, s.Balance.Imbalance)
	command.Printf(w, "guards\t%d keys held\n", s.HeldKeys)
	command.Printf(w, "outbox\t%d bytes to publish; %d stale outcomes\n", s.OutboxBytes, s.StaleOutcomes)
	command.Printf(w, "workers\t%d connections here, %d registered, %d subscriptions\n",
		s.Workers.Connections, s.Workers.Registered, s.Workers.Subscriptions)
	command.Printf(w, "finished\t%s\n", finishedText(&s.Finished))
	memberTable(w, s)
	laneTable(w, s)
	streamTable(w, s)
	poolTable(w, s)
}

// memberTable shows the members, one per line, with what the status of each node reports.
// It shows "-" if a node reports no status.
func memberTable(w io.Writer, s *api.Status) {
	if len(s.Members) == 0 {
		return
	}
	statuses := make(map[string]api.NodeStatus, len(s.Nodes))
	for _, n := range s.Nodes {
		statuses[n.Name] = n
	}
	command.Printf(w, "\n")
	command.Titles(w, "MEMBER\tSTATE\tROLE\tRAFT ADDRESS\tRUNNING\tAVAILABLE\tLAST BEAT\tVERSION", "RAFT ADDRESS", "AVAILABLE", "LAST BEAT", "RUNNING")
	for _, m := range s.Members {
		running, available, beat := "-", "-", "-"
		if n, ok := statuses[m.Name]; ok {
			running, available = fmt.Sprint(n.Running), fmt.Sprint(n.Available)
			if n.BeatAgoMS >= 0 {
				beat = duration.Format(time.Duration(n.BeatAgoMS)*time.Millisecond) + " ago"
			}
		}
		command.Row(w, m.Name, m.State, voterText(m.Leader, m.Voter), command.OrDash(m.Address), running, available, beat, peerText(m.Version, m.TLS, m.Refused))
	}
}

// peerText returns a member's version, and whether the connection to it uses TLS or, if
// refused is not "", why it was refused.
func peerText(version string, secured bool, refused string) string {
	switch {
	case refused != "":
		return command.OrDash(version) + ", refused: " + refused
	case secured:
		return command.OrDash(version) + ", TLS"
	}
	return command.OrDash(version)
}

func voterText(leader, voter bool) string {
	switch {
	case leader:
		return "leader"
	case voter:
		return "voter"
	}
	return "learner"
}

func laneTable(w io.Writer, s *api.Status) {
	if len(s.Lanes) == 0 {
		return
	}
	command.Printf(w, "\n")
	command.Titles(w, "LANE\tSTREAM\tLEADER\tFIRST\tLAST\tINGESTED\tLAG", "FIRST", "STREAM")
	for _, l := range s.Lanes {
		command.Row(w, l.Lane, l.Stream, command.OrDash(l.Leader), l.First, l.Last, l.Cursor, l.Lag)
	}
}

// finishedText describes the records of finished jobs.
func finishedText(f *api.FinishedStatus) string {
	text := fmt.Sprintf("%d of at most %d records", f.Records, f.Limit)
	if f.Oldest != nil {
		text += ", the oldest ended " + command.TimeText(f.Oldest)
	}
	if f.Own > 0 {
		text += fmt.Sprintf("; %d of queues with their own retention", f.Own)
	}
	return text
}

// streamTable shows how full the streams are, one per line.
func streamTable(w io.Writer, s *api.Status) {
	if len(s.Streams) == 0 {
		return
	}
	command.Printf(w, "\n")
	command.Titles(w, "STREAM\tMESSAGES\tBYTES\tLIMIT\tFULL\tKEPT FOR\tWHEN FULL\tOLDEST", "OLDEST", "WHEN FULL", "KEPT FOR", "LIMIT", "MESSAGES")
	for i := range s.Streams {
		stream := &s.Streams[i]
		messages, limit, full, age := fmt.Sprint(stream.Messages), "-", "-", "-"
		if stream.LimitMessages > 0 {
			messages += fmt.Sprintf(" of %d", stream.LimitMessages)
		}
		if stream.LimitBytes > 0 {
			limit, full = job.FormatSize(int64(stream.LimitBytes)), fmt.Sprintf("%d %%", stream.Bytes*100/stream.LimitBytes)
		}
		if stream.MaxAgeMS > 0 {
			age = duration.Format(time.Duration(stream.MaxAgeMS) * time.Millisecond)
		}
		command.Row(w, stream.Stream, messages, job.FormatSize(int64(stream.Bytes)), limit, full, age, stream.WhenFull, command.OrDash(command.TimeText(stream.Oldest)))
	}
}

func poolTable(w io.Writer, s *api.Status) {
	if len(s.Pools) == 0 {
		return
	}
	command.Printf(w, "\n")
	command.Titles(w, "RUNNER\tUP\tRUNNING\tSLOTS\tPROBLEM")
	for _, p := range s.Pools {
		command.Row(w, p.Runner, fmt.Sprintf("%d of %d", p.Up, p.Size), p.InFlight, p.Slots, p.Reason)
	}
	for _, p := range s.Pools {
		if !p.Managed {
			command.Printf(w, "\n%s is external: this node cannot end a handler that ignores its cancel, even when the node's lease ends.\n", p.Runner)
		}
	}
}

func readiness(s *api.Status) string {
	r := s.Readiness
	if r.Ready {
		return "yes"
	}
	return fmt.Sprintf("no (accepting %s, dispatching %s)", command.YesNo(r.Accepting), command.YesNo(r.Dispatching))
}

// authority returns the holder of the authority, its epoch and when its lease ends, or
// "none".
func authority(s *api.Status) string {
	if s.Authority.Owner == "" {
		return "none"
	}
	lease := "leased until "
	if s.Authority.Expired {
		lease = "lease expired at "
	}
	return fmt.Sprintf("%s, epoch %d, %s%s", s.Authority.Owner, s.Authority.Epoch, lease, command.TimeText(&s.Authority.LeasedUntil))
}
