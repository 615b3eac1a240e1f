package demo

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Report is what came out. It is good if nothing was lost, nothing ended
// twice, and all that failed was meant to.
type Report struct {
	Nodes            int     `json:"nodes"`
	Killed           bool    `json:"killed"`
	Accepted         int     `json:"accepted"`
	Completed        int     `json:"completed"`
	FailedAsIntended int     `json:"failed_as_intended"`
	FailedOtherwise  int     `json:"failed_otherwise"`
	Retried          int     `json:"retried"`            // jobs that took more than one attempt
	RunAgain         int     `json:"run_again"`          // jobs that lost their worker, runner or node and ran again
	Lost             int     `json:"lost"`               // accepted, but without an end, or ended without a witness
	Duplicates       int     `json:"duplicate_outcomes"` // ends told twice, and dispatches run twice
	CallsRepeated    int     `json:"calls_repeated"`     // enqueue calls that a node did not answer
	Events           int     `json:"events"`
	EventGaps        int     `json:"event_gaps"`
	FailoverMS       int64   `json:"failover_ms"` // longest time without an end around the change of authority; 0: none
	AcceptedPerS     float64 `json:"accepted_per_second"`
	EndedPerS        float64 `json:"ended_per_second"`
	Seconds          float64 `json:"seconds"` // from the first job to the last end

	// Kept is where everything was left to look at, because the report is bad.
	Kept string `json:"kept,omitempty"`
}

// Good tells that the yard kept its promises.
func (r *Report) Good() bool {
	return r.Lost == 0 && r.Duplicates == 0 && r.FailedOtherwise == 0 && r.EventGaps == 0
}

// judge lets the three sides speak against each other.
func (y *yard) judge(l *load, s stock) Report {
	r := Report{
		Nodes: len(y.members), Killed: !y.killed.IsZero(), Accepted: len(l.ids), CallsRepeated: int(l.again.Load()),
		Events: s.history.events, EventGaps: s.history.gaps, Duplicates: s.history.twice,
	}
	for id, e := range l.ids {
		end, ended := s.ends[id]
		seen := s.witnesses[id]
		r.Duplicates += max(s.history.delivered[id]-1, 0) + repeats(seen)
		switch {
		case !ended || len(seen) == 0:
			r.Lost++
		case end.state == "completed" && !e.fails:
			r.Completed++
		case end.state == "failed" && e.fails:
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
	r.FailoverMS = s.history.failover(y.killed).Milliseconds()
	r.AcceptedPerS = rate(r.Accepted, l.took)
	if n := len(s.history.ends); n > 0 {
		took := s.history.ends[n-1].Sub(l.began)
		r.Seconds = took.Seconds()
		r.EndedPerS = rate(r.Completed+r.FailedAsIntended+r.FailedOtherwise, took)
	}
	return r
}

// repeats counts the dispatches of a job that were run more than once: each
// has a fence of its own.
func repeats(seen []sighting) int {
	fences := make(map[string]bool, len(seen))
	for _, s := range seen {
		fences[s.fence] = true
	}
	return len(seen) - len(fences)
}

func rate(n int, in time.Duration) float64 {
	if in <= 0 {
		return 0
	}
	return float64(n) / in.Seconds()
}

// failover is the time without an end around the first change of authority
// after the kill.
func (h *told) failover(killed time.Time) time.Duration {
	if killed.IsZero() {
		return 0
	}
	for _, acquired := range h.acquired {
		if acquired.Before(killed) {
			continue
		}
		before := killed
		for _, end := range h.ends {
			if end.After(acquired) {
				return end.Sub(before)
			}
			before = end
		}
	}
	return 0
}

// Write shows the report as a table.
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
	row("lost", r.Lost, "accepted, but no end or no witness of it")
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
	if r.Kept != "" {
		_, err := fmt.Fprintf(out, "everything is left to look at in %s\n", r.Kept)
		return err
	}
	return nil
}
