package drill

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Report is the result of one drill.
type Report struct {
	Number   int      `json:"number"`
	Drill    string   `json:"drill"`
	Breaks   string   `json:"breaks"`
	Promises string   `json:"promises"`
	Seed     uint64   `json:"seed"`
	Quick    bool     `json:"quick,omitempty"`
	Ended    string   `json:"ended"`             // kept, broken, skipped or unplayed
	Skipped  string   `json:"skipped,omitempty"` // reason
	Unplayed string   `json:"unplayed,omitempty"`
	Broken   []string `json:"broken,omitempty"` // broken promises
	Missed   []string `json:"missed,omitempty"` // missed targets
	Seconds  float64  `json:"seconds"`

	Verdict  *Verdict       `json:"verdict,omitempty"`
	Gaps     []Gaps         `json:"gaps,omitempty"`
	Figures  []Figure       `json:"figures,omitempty"`
	Refusals map[string]int `json:"refusals,omitempty"` // number of failed publishes by error
	Timeline []string       `json:"timeline,omitempty"`
	Kept     string         `json:"dir,omitempty"` // directory with logs, data and witness files, unless removed
}

// The values of [Report.Ended].
const (
	Kept    = "kept"     // all promises were kept
	Broken  = "broken"   // a promise was broken
	Skipped = "skipped"  // the machine lacks a requirement
	NotRun  = "unplayed" // the drill could not be completed
)

// Figure is a measurement of a drill, with its unit.
type Figure struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Gaps summarizes the times without progress around one kind of fault.
type Gaps struct {
	Fault    string  `json:"fault"`
	Times    int     `json:"times"`
	Dispatch Spread  `json:"dispatch_ms"` // in which no job began, as recorded by workers
	Ack      Spread  `json:"ack_ms"`      // in which no job was acknowledged
	Limits   *Limits `json:"limits,omitempty"`
}

// Spread holds percentiles of durations, in milliseconds.
type Spread struct {
	P50 int64 `json:"p50"`
	P99 int64 `json:"p99"`
	Max int64 `json:"max"`
}

func spread(times []time.Duration) (s Spread) {
	if len(times) == 0 {
		return s
	}
	times = slices.Sorted(slices.Values(times))
	at := func(percent int) int64 { return times[(len(times)-1)*percent/100].Milliseconds() }
	s.P50, s.P99, s.Max = at(50), at(99), at(100)
	if len(times) < 100 { // too few for a 99th percentile: use the maximum
		s.P99 = s.Max
	}
	return s
}

// Summary is the result of a series of drills.
type Summary struct {
	Machine string   `json:"machine"`
	Version string   `json:"version"`
	Began   string   `json:"began"`
	Seed    uint64   `json:"seed"`
	Drills  []Report `json:"drills"`
}

// Good reports whether every drill was completed or skipped, and kept its promises.
func (s *Summary) Good() bool {
	return !slices.ContainsFunc(s.Drills, func(r Report) bool { return r.Ended == Broken || r.Ended == NotRun })
}

// WriteJSON writes the summary as JSON.
func (s *Summary) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

// WriteMarkdown writes the summary as a Markdown table, followed by the figures and
// broken promises of each drill.
func (s *Summary) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; version %s; %s; seed %d.\n", s.Machine, s.Version, s.Began, s.Seed)
	b.WriteString("Gaps are in milliseconds, p50 / p99; with fewer than 100 samples, p99 is the maximum.\n\n")
	b.WriteString("| # | drill | acknowledged | completed | failed as intended | lost | twice | history gaps | overlaps, unjustified | dispatch gap | ack gap | s | verdict |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for i := range s.Drills {
		s.Drills[i].row(&b)
	}
	for _, r := range s.Drills {
		r.notes(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) row(b *strings.Builder) {
	v := r.Verdict
	if v == nil {
		fmt.Fprintf(b, "| %d | %s | | | | | | | | | | %.0f | %s |\n", r.Number, r.Drill, r.Seconds, r.Ended)
		return
	}
	var dispatch, ack []string
	for _, g := range r.Gaps {
		name := ""
		if len(r.Gaps) > 1 {
			name = g.Fault + " "
		}
		dispatch = append(dispatch, fmt.Sprintf("%s%d / %d (%d×)", name, g.Dispatch.P50, g.Dispatch.P99, g.Times))
		ack = append(ack, fmt.Sprintf("%s%d / %d", name, g.Ack.P50, g.Ack.P99))
	}
	fmt.Fprintf(b, "| %d | %s | %d | %d | %d | %d | %d | %d | %d, %d | %s | %s | %.0f | %s |\n", r.Number, r.Drill, v.Acknowledged, v.Completed, v.Failed,
		v.Lost, v.Duplicates, v.HistoryGaps, v.Overlaps, v.Unjustified, strings.Join(dispatch, "<br>"), strings.Join(ack, "<br>"), r.Seconds, r.Ended)
}

func (r *Report) notes(b *strings.Builder) {
	list := func(what string, lines []string) {
		for _, l := range lines {
			fmt.Fprintf(b, "- %s: %s\n", what, l)
		}
	}
	fmt.Fprintf(b, "\n**%d %s** (seed %d). Broken: %s. Promised: %s.\n\n", r.Number, r.Drill, r.Seed, r.Breaks, r.Promises)
	list("PROMISE BROKEN", r.Broken)
	list("target missed", r.Missed)
	if r.Skipped != "" {
		list("skipped", []string{r.Skipped})
	}
	if r.Unplayed != "" {
		list("could not be completed", []string{r.Unplayed})
	}
	for _, f := range r.Figures {
		fmt.Fprintf(b, "- %s: %s\n", f.Name, f.Value)
	}
}
