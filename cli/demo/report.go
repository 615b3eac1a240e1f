package demo

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Report is the result of a demo. It is good if nothing was lost, nothing ended
// twice, and only the jobs that should fail have failed.
type Report struct {
	Nodes            int     `json:"nodes"`
	Killed           bool    `json:"killed"`
	Accepted         int     `json:"accepted"`
	Completed        int     `json:"completed"`
	FailedAsIntended int     `json:"failed_as_intended"`
	FailedOtherwise  int     `json:"failed_otherwise"`
	Retried          int     `json:"retried"`            // jobs with more than one attempt
	RunAgain         int     `json:"run_again"`          // jobs that lost their worker, runner or node and ran again
	Lost             int     `json:"lost"`               // accepted jobs that the cluster does not have, or that ended without a witness
	Late             int     `json:"late"`               // accepted jobs that had not ended within the time limit
	Duplicates       int     `json:"duplicate_outcomes"` // dispatches that ended or ran more than once
	CallsRepeated    int     `json:"calls_repeated"`     // enqueue calls sent again after a failure
	Events           int     `json:"events"`
	EventGaps        int     `json:"event_gaps"`
	FailoverMS       int64   `json:"failover_ms"` // longest time without an end around the change of authority; 0 if there was none
	AcceptedPerS     float64 `json:"accepted_per_second"`
	EndedPerS        float64 `json:"ended_per_second"`
	Seconds          float64 `json:"seconds"` // from the first job to the last end

	// Missing describes the first jobs that are lost or late.
	Missing []string `json:"missing,omitempty"`

	// Kept is the directory with logs and data, kept if the report is not good.
	Kept string `json:"kept,omitempty"`
}

// Good reports whether the cluster kept its promises.
func (r *Report) Good() bool {
	return r.Lost == 0 && r.Late == 0 && r.Duplicates == 0 && r.FailedOtherwise == 0 && r.EventGaps == 0
}

// judge returns the report on the jobs that l has enqueued. For each job it compares the
// three sources of evidence: its state at the end, the attempts that workers and runners
// have recorded, and the events of its end in history.
func (c *demoCluster) judge(l *load, s evidence) Report {
	r := Report{
		Nodes: len(c.members), Killed: !c.killed.IsZero(), Accepted: len(l.ids), CallsRepeated: int(l.repeated.Load()),
		Events: s.history.events, EventGaps: s.history.gaps, Duplicates: s.history.duplicates,
	}
	for id, kind := range l.ids {
		end, known := s.states[id]
		attempts := s.witnesses[id]
		r.Duplicates += max(s.history.delivered[id]-1, 0) + repeats(attempts)
		switch {
		case !known:
			r.Lost++
			r.addMissing("lost: the cluster does not have it", id, &kind, attempts)
		case end.state != "completed" && end.state != "failed" && end.state != "cancelled":
			r.Late++
			r.addMissing("late: it is "+end.state, id, &kind, attempts)
		case len(attempts) == 0:
			r.Lost++
			r.addMissing("lost: it is "+end.state+" without a witness", id, &kind, attempts)
		case end.state == "completed" && !kind.fails:
			r.Completed++
		case end.state == "failed" && kind.fails:
			r.FailedAsIntended++
		default:
			r.FailedOtherwise++
		}
		if end.attempts > 1 {
			r.Retried++
		}
		if end.losses > 0 {
			r.RunAgain++
		}
	}
	r.FailoverMS = s.history.failoverTime(c.killed).Milliseconds()
	r.AcceptedPerS = rate(r.Accepted, l.took)
	if n := len(s.history.ends); n > 0 {
		took := s.history.ends[n-1].Sub(l.began)
		r.Seconds = took.Seconds()
		r.EndedPerS = rate(r.Completed+r.FailedAsIntended+r.FailedOtherwise, took)
	}
	return r
}

// maxMissing is how many lost or late jobs a report describes.
const maxMissing = 10

// addMissing adds the description of a job that is lost or late.
func (r *Report) addMissing(what string, id job.ID, kind *jobKind, attempts []witnessLine) {
	if len(r.Missing) < maxMissing {
		r.Missing = append(r.Missing, fmt.Sprintf("%s:%s, %s, %s; it ran %d times", kind.queue, id, kind.function, what, len(attempts)))
	}
}

// repeats counts the runs beyond the first of each dispatch of a job. Every
// dispatch has a different fence.
func repeats(seen []witnessLine) int {
	fences := make(map[string]bool, len(seen))
	for _, s := range seen {
		fences[s.fence] = true
	}
	return len(seen) - len(fences)
}

// rate returns n per second, 0 if no time has passed.
func rate(n int, in time.Duration) float64 {
	if in <= 0 {
		return 0
	}
	return float64(n) / in.Seconds()
}

// failoverTime returns for how long no dispatch ended around the last change of the authority: from the
// last end before the authority was acquired again to the first end after that. All of these
// times are the yard's. killed is when the node that held the authority was killed; if killed is zero, the
// authority was not acquired again, or nothing ended afterwards, failoverTime returns 0.
func (h *eventLog) failoverTime(killed time.Time) time.Duration {
	if killed.IsZero() || len(h.acquired) < 2 {
		return 0
	}
	acquired, lastEnd := h.acquired[len(h.acquired)-1], h.acquired[0]
	for _, end := range h.ends {
		if end.After(acquired) {
			return end.Sub(lastEnd)
		}
		lastEnd = end
	}
	return 0
}

// Write writes the report as a table.
func (r *Report) Write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	row := func(name string, value any, note string) { fmt.Fprintf(w, "%s\t%v\t%s\n", name, value, note) }
	row("accepted", r.Accepted, fmt.Sprintf("%.0f per second", r.AcceptedPerS))
	row("completed", r.Completed, fmt.Sprintf("%.0f ends per second over %.1f s", r.EndedPerS, r.Seconds))
	row("failed as intended", r.FailedAsIntended, "asked to fail")
	if r.FailedOtherwise > 0 {
		row("failed otherwise", r.FailedOtherwise, "should have completed")
	}
	row("retried", r.Retried, "took more than one attempt")
	row("lost", r.Lost, "accepted, but the cluster does not have it, or it ended without a witness")
	if r.Late > 0 {
		row("late", r.Late, "accepted, but not ended within the time limit")
	}
	row("duplicate outcomes", r.Duplicates, "ended twice, or one dispatch run twice")
	if r.Killed {
		row("run again", r.RunAgain, "had been running on the node that was killed")
		row("failover time", fmt.Sprintf("%.2f s", float64(r.FailoverMS)/1000), "longest time in which nothing ended, around the kill")
		row("calls repeated", r.CallsRepeated, "enqueue calls sent again under the same key")
	}
	row("history", r.Events, fmt.Sprintf("events, %d gaps", r.EventGaps))
	if err := w.Flush(); err != nil {
		return err
	}
	for _, text := range r.Missing {
		if _, err := fmt.Fprintln(out, text); err != nil {
			return err
		}
	}
	if r.Kept != "" {
		_, err := fmt.Fprintf(out, "logs and data are in %s\n", r.Kept)
		return err
	}
	return nil
}
