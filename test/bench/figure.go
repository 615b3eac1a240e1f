package bench

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// Figure is a measured value, written as one line of JSON.
type Figure struct {
	Name  string  `json:"figure"`
	Value float64 `json:"value"` // median of Rounds
	Unit  string  `json:"unit"`
	// P99 is the 99th percentile of a latency; its Value is the median.
	P99 float64 `json:"p99,omitempty"`
	// Rounds are the values of the rounds, in order, and P99Rounds their P99s.
	Rounds    []float64 `json:"rounds,omitempty"`
	P99Rounds []float64 `json:"p99_rounds,omitempty"`

	Jobs    int `json:"jobs,omitempty"`    // accepted in all rounds
	Settled int `json:"settled,omitempty"` // jobs settled
	// Repeated counts calls sent again because they were not answered.
	Repeated int `json:"repeated,omitempty"`
	// Accepted is the rate of accepted jobs if Value is the rate of settled
	// jobs. Acceptance may be ahead for the length of a round.
	Accepted float64 `json:"accepted_per_s,omitempty"`
	Cores    float64 `json:"cores,omitempty"`      // processors used by nodes or peers
	Load     float64 `json:"load_cores,omitempty"` // processors used by the measuring process
	// Machine is the number of processors used by all programs. If it is far
	// above Cores and Load, other work disturbed the measurement.
	Machine float64 `json:"machine_cores,omitempty"`

	// Micros is the processor time of nodes or peers and of this process for one job, in
	// microseconds.
	Micros float64 `json:"cpu_us_per_job,omitempty"`

	Floor string  `json:"floor,omitempty"` // the figure it is compared with
	Ratio float64 `json:"ratio,omitempty"` // to the floor; the median of Ratios if there are some
	// Ratios are the ratios of the rounds, in order, if the rounds of both figures take turns.
	Ratios []float64 `json:"ratios,omitempty"`
	// Target describes the target, and Reached reports whether it was reached.
	// Both are absent without a target.
	Target  string `json:"target,omitempty"`
	Reached *bool  `json:"reached,omitempty"`
	Note    string `json:"note,omitempty"`
	// Skipped is why the figure could not be measured on this machine.
	Skipped string `json:"skipped,omitempty"`
}

// add adds a round. Accepted, Cores, Load, Machine and Micros are sums until finish.
func (f *Figure) add(r round) {
	f.Rounds = append(f.Rounds, r.value)
	if r.p99 > 0 {
		f.P99Rounds = append(f.P99Rounds, r.p99)
	}
	f.Jobs += r.jobs
	f.Settled += r.settled
	f.Repeated += r.repeated
	f.Accepted += r.accepted
	f.Cores += r.cores
	f.Load += r.load
	f.Machine += r.machine
	f.Micros += float64(r.cpu.Nanoseconds()) / 1e3
}

// finish computes the figure from the rounds that were added.
func (f *Figure) finish() {
	for _, sum := range []*float64{&f.Accepted, &f.Cores, &f.Load, &f.Machine} {
		*sum /= max(1, float64(len(f.Rounds)))
	}
	f.Micros /= float64(f.Settled)
	if f.Settled == 0 { // a floor without jobs
		f.Micros = 0
	}
	f.Value, f.P99 = median(f.Rounds), median(f.P99Rounds)
}

// median returns the median of values without reordering them, or 0 if values is empty.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	if middle := len(sorted) / 2; len(sorted)%2 == 1 {
		return sorted[middle]
	} else {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
}

// quantile sorts values and returns their quantile q, 0 ≤ q ≤ 1: the smallest value
// that is not below a share q of them. It returns 0 if values is empty.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}

// target is what a figure should reach, in itself and relative to its floor.
type target struct {
	floor           string
	atLeast         float64 // minimum; 0 means none
	atMost, p99     float64 // maximum of value and P99; 0 means none
	ratio, maxRatio float64 // minimum and maximum ratio to the floor; 0 means none
}

// compare compares the figure with its target and with its floor, if that is among
// measured. inTurn is whether the rounds of both were measured in turn.
func (f *Figure) compare(t target, measured []Figure, inTurn bool) {
	reached, words := true, []string{}
	check := func(ok bool, format string, v ...any) {
		reached = reached && ok
		words = append(words, fmt.Sprintf(format, v...))
	}
	if i := slices.IndexFunc(measured, func(other Figure) bool { return other.Name == t.floor }); i >= 0 && measured[i].Value > 0 {
		floor := &measured[i]
		f.Floor, f.Ratio = floor.Name, f.Value/floor.Value
		if inTurn && len(f.Rounds) == len(floor.Rounds) && !slices.Contains(floor.Rounds, 0) {
			f.Ratios = ratiosOfRounds(f, floor)
			f.Ratio = median(f.Ratios)
		}
		if t.ratio > 0 {
			check(f.Ratio >= t.ratio, "≥ %g of %s", t.ratio, t.floor)
		}
		if t.maxRatio > 0 {
			check(f.Ratio <= t.maxRatio && (f.P99 == 0 || f.P99 <= floor.P99*t.maxRatio), "≤ %g of %s", t.maxRatio, t.floor)
		}
	}
	if t.atLeast > 0 {
		check(f.Value >= t.atLeast, "≥ %g", t.atLeast)
	}
	if t.atMost > 0 {
		check(f.Value <= t.atMost, "≤ %g", t.atMost)
	}
	if t.p99 > 0 {
		check(f.P99 <= t.p99, "p99 ≤ %g", t.p99)
	}
	if len(words) > 0 {
		f.Target, f.Reached = strings.Join(words, ", "), &reached
	}
}

// ratiosOfRounds returns the ratios of the rounds of f to those of its floor, which has as many.
func ratiosOfRounds(f, floor *Figure) []float64 {
	ratios := make([]float64, len(f.Rounds))
	for i := range ratios {
		ratios[i] = f.Rounds[i] / floor.Rounds[i]
	}
	return ratios
}

// WriteReport writes figures as a table for people, after a line that describes the
// machine and before the notes and the reasons why figures were skipped.
func WriteReport(w io.Writer, figures []Figure) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(table, "%d processors, %s, %s/%s\n\n", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintln(table, "FIGURE\tVALUE\tROUNDS\tOF FLOOR\tTARGET\tREACHED\tCORES\tOF ALL\tµS/JOB")
	for _, f := range figures {
		reached := ""
		if f.Reached != nil {
			reached = map[bool]string{true: "yes", false: "no"}[*f.Reached]
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			f.Name, f.value(), spread(f.Rounds), f.ratio(), f.Target, reached, orBlank("%.2f", f.Cores), orBlank("%.2f", f.Machine), orBlank("%.0f", f.Micros))
	}
	fmt.Fprintln(table)
	for _, f := range figures {
		if f.Note != "" {
			fmt.Fprintf(table, "%s\t%s\n", f.Name, f.Note)
		}
		if f.Skipped != "" {
			fmt.Fprintf(table, "%s\tskipped: %s\n", f.Name, f.Skipped)
		}
	}
	return table.Flush()
}

func (f *Figure) value() string {
	if f.Skipped != "" {
		return "skipped"
	}
	if f.P99 > 0 {
		return fmt.Sprintf("%s / %s %s", digits(f.Value), digits(f.P99), f.Unit)
	}
	return digits(f.Value) + " " + f.Unit
}

// ratio formats the ratio to the floor, with the lowest and the highest of the rounds.
func (f *Figure) ratio() string {
	if len(f.Ratios) < 2 {
		return orBlank("%.2f", f.Ratio)
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", f.Ratio, slices.Min(f.Ratios), slices.Max(f.Ratios))
}

// spread formats the lowest and the highest round, or returns "" for a single one.
func spread(rounds []float64) string {
	if len(rounds) < 2 {
		return ""
	}
	return digits(slices.Min(rounds)) + " to " + digits(slices.Max(rounds))
}

// digits formats v with three significant digits, or more before the point.
func digits(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// orBlank formats v, as "" if it is 0.
func orBlank(format string, v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf(format, v)
}
