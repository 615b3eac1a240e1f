package drill

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill/disk"
	"github.com/yardmaster-dev/yardmaster/test/drill/hosts"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// Drill is a fault, or a sequence of faults, and what is promised nevertheless.
type Drill struct {
	Number        int    // of the kind of fault; reports use it
	Name          string // lower case, with dashes
	Breaks        string // one line: the fault
	Promises      string // one line: what must hold nevertheless
	Plan          Layout
	StartsStopped bool          // Run starts the cluster itself
	Timeout       time.Duration // for the whole drill; 0 means 5 minutes

	// Run injects the faults. It ends with package must if the drill cannot be
	// completed; broken promises are reported with [Harness.Require]. After it returns, the
	// harness heals all faults, restarts nodes, stops the loads, waits for their
	// jobs to end and judges the result.
	Run func(s *Harness)
}

// missing returns why the drill cannot run on this machine, or "" if it can.
func (d *Drill) missing() string {
	needsHosts := d.Plan.SeparateHosts || d.Plan.SlowLinks
	if reason := hosts.Missing(); needsHosts && reason != "" {
		return "network namespaces: " + reason
	}
	if reason := disk.Missing(); d.Plan.Disk > 0 && reason != "" {
		return "disks to mount: " + reason
	}
	return ""
}

// Options configures a series of drills.
type Options struct {
	Binary  string    // path of the program
	Version string    // version of the program
	Dir     string    // where drills keep their files; those of drills that kept their promises are removed
	Seed    uint64    // of all schedules of faults
	Quick   bool      // fewer repetitions
	Out     io.Writer // receives the timelines; may be nil
}

// Run plays drills one after the other. It returns an error if ctx ends; the result
// of each drill is in the summary.
func Run(ctx context.Context, o Options, drills ...Drill) (Summary, error) {
	sum := Summary{Machine: machine(), Version: o.Version, Began: time.Now().UTC().Format(time.DateTime + " UTC"), Seed: o.Seed}
	for _, d := range drills {
		if ctx.Err() != nil {
			return sum, ctx.Err()
		}
		sum.Drills = append(sum.Drills, Play(ctx, o, d))
	}
	return sum, nil
}

// Play runs one drill and judges the result.
func Play(ctx context.Context, o Options, d Drill) (r Report) {
	r = Report{Number: d.Number, Drill: d.Name, Breaks: d.Breaks, Promises: d.Promises, Seed: o.Seed, Quick: o.Quick}
	h := &Harness{Seed: o.Seed, Rand: rand.New(rand.NewPCG(o.Seed, uint64(d.Number))), Quick: o.Quick,
		progress: o.Out, began: time.Now(), report: &r, targets: make(map[string]Limits), stopObservers: func() {}}
	if o.Out != nil {
		fmt.Fprintf(o.Out, "\n%d %s (seed %d): %s\n", d.Number, d.Name, o.Seed, d.Breaks)
	}
	if r.Skipped = d.missing(); r.Skipped != "" {
		r.Ended = Skipped
		h.Logf("skipped: %s", r.Skipped)
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(d.Timeout, 5*time.Minute))
	defer cancel()
	err := h.play(ctx, o, d)
	r.Seconds = time.Since(h.began).Seconds()
	switch {
	case err != nil:
		r.Ended, r.Unplayed = NotRun, err.Error()
	case len(r.Broken) > 0:
		r.Ended = Broken
	case len(r.Untried) > 0:
		r.Ended = NotTried
	default:
		r.Ended = Kept
	}
	h.Logf("%s %s", r.Ended, r.Unplayed)
	if r.Ended == Kept && r.Kept != "" {
		if err := os.RemoveAll(r.Kept); err == nil {
			r.Kept = ""
		}
	} else if r.Kept != "" {
		h.Logf("logs, data and witness files are in %s", r.Kept)
	}
	return r
}

// play prepares the cluster, runs the drill and removes the cluster.
func (h *Harness) play(ctx context.Context, o Options, d Drill) (err error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.Dir, fmt.Sprintf("%02d-%s-", d.Number, d.Name))
	if err != nil {
		return err
	}
	h.report.Kept = dir
	if h.Cluster, err = New(dir, o.Binary, d.Plan); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	// A drill that ends early must not leave publishers running.
	ctx, stop := context.WithCancel(ctx)
	defer func() { stop(); _ = h.StopLoads() }()
	h.Ctx = ctx
	return must.Try(func() { h.run(d) })
}

// run runs the drill, heals all faults and checks the result.
func (h *Harness) run(d Drill) {
	if !d.StartsStopped {
		h.StartNodes()
		h.Logf("%d nodes are ready", len(h.Nodes))
		h.recordUsage()
	}
	d.Run(h)
	h.Heal()
	h.Logf("healed; %d jobs acknowledged", h.Acked())
	if err := h.StopLoads(); err != nil {
		h.Require(false, "%v", err)
	}
	h.check()
}

// machine describes the machine in one line.
func machine() string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // "" where there is none
	return fmt.Sprintf("%d processors for nodes, load and checks, one disk, %s %s, %s", runtime.NumCPU(), runtime.GOOS, strings.TrimSpace(string(kernel)), runtime.Version())
}

// Report is the result of one drill.
type Report struct {
	Number   int      `json:"number"`
	Drill    string   `json:"drill"`
	Breaks   string   `json:"breaks"`
	Promises string   `json:"promises"`
	Seed     uint64   `json:"seed"`
	Quick    bool     `json:"quick,omitempty"`
	Ended    string   `json:"ended"`             // one of the values below
	Skipped  string   `json:"skipped,omitempty"` // reason
	Unplayed string   `json:"unplayed,omitempty"`
	Broken   []string `json:"broken,omitempty"`  // broken promises
	Untried  []string `json:"untried,omitempty"` // faults whose moment did not come, see [Harness.RequireTried]
	Missed   []string `json:"missed,omitempty"`  // missed targets
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
	Kept     = "kept"      // all promises were kept
	Broken   = "broken"    // a promise was broken
	NotTried = "not tried" // no promise was broken, but a fault was not injected
	Skipped  = "skipped"   // the machine lacks a requirement
	NotRun   = "unplayed"  // the drill could not be completed
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

// spread computes percentiles. With fewer than 100 values, P99 is the maximum.
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

// Good reports whether no drill broke a promise or could not be completed. Drills that were
// skipped or not tried do not count.
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

// row writes the drill's row of the table.
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

// notes writes what the drill broke and promised, and its broken promises, missed
// targets and figures.
func (r *Report) notes(b *strings.Builder) {
	list := func(what string, lines []string) {
		for _, l := range lines {
			fmt.Fprintf(b, "- %s: %s\n", what, l)
		}
	}
	fmt.Fprintf(b, "\n**%d %s** (seed %d). Broken: %s. Promised: %s.\n\n", r.Number, r.Drill, r.Seed, r.Breaks, r.Promises)
	list("PROMISE BROKEN", r.Broken)
	list("not tried", r.Untried)
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
