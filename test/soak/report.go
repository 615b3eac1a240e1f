package soak

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what a run has seen.
type Report struct {
	Options     Options        `json:"-"`
	Interrupted bool           `json:"interrupted"`
	Length      time.Duration  `json:"length_ns"` // of the load
	Sums        jobSums        `json:"jobs"`
	Paused      int64          `json:"jobs_paused"`
	Repeats     int64          `json:"calls_repeated"`
	Pauses      int64          `json:"load_paused_times"` // because too many jobs were not acknowledged
	Events      uint64         `json:"events"`
	Letters     uint64         `json:"dead_letters"`
	Refusals    []refusalGroup `json:"refusals"`
	Shown       map[string]int `json:"reasons_shown"`
	Levels      []Level        `json:"levels"`
	Passes      []Passes       `json:"bounds"`
	Failures    []string       `json:"failures"`

	out *recorder
}

// tableColumns are the series of the table per minute: a heading, and the series whose
// sum or maximum it shows.
var tableColumns = []struct {
	heading, panel, series string
	sum                    bool
}{
	{heading: "sent", series: "Jobs submitted"}, {heading: "accepted", series: "Jobs accepted"}, {heading: "ended", series: "Jobs ended"},
	{heading: "accept p50", series: "Due to accepted p50"}, {heading: "p99", series: "Due to accepted p99"},
	{heading: "start p50", series: "Due to started p50"}, {heading: "p99", series: "Due to started p99"},
	{heading: "lag", series: "Records not ingested"}, {heading: "not ended", series: "Jobs not ended"},
	{heading: "memory", panel: "Resident memory"}, {heading: "heap", panel: "Go heap in use"}, {heading: "goroutines", panel: "Goroutines"},
	{heading: "files", panel: "Open files"}, {heading: "raft", panel: "Raft log and snapshots"}, {heading: "disk", panel: "Disk"}, {heading: "streams", series: "All streams"},
}

// WriteText writes the report as text: tables and the failures.
func (r *Report) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "Load of %s at %d jobs/s: submitted %d, accepted %d (%.0f/s), of which %d as another job with their unique key; completed %d, dead letters %d, not ended %d\n",
		r.Length.Round(time.Second), r.Options.Rate, r.Sums.Submitted, r.Sums.Accepted, float64(r.Sums.Accepted)/r.Length.Seconds(), r.Sums.Merged, r.Sums.Completed, r.Sums.Dead, r.Sums.Open)
	fmt.Fprintf(w, "Runs of handlers %d, %d of them again; %d calls repeated; %d events, %d dead letters read; %d jobs stayed in the paused queue;\n"+
		"%d jobs were answered as another one and created nevertheless, by an earlier call that was not answered in time\n\n",
		r.Sums.Runs, r.Sums.Reruns, r.Repeats, r.Events, r.Letters, r.Paused, r.Sums.Late)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	r.writeMinutes(t)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprint(w, "Latencies count from when a job was due. Rates and latencies are medians of a minute's samples, the rest are peaks, of nodes those of the largest.\n\n")
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	r.writeBounds(t)
	r.writeLevels(t)
	r.writeRefusals(t)
	if err := t.Flush(); err != nil {
		return err
	}
	for _, f := range r.Failures {
		fmt.Fprintf(w, "FAILED: %s\n", f)
	}
	if r.Interrupted {
		fmt.Fprintln(w, "interrupted: the load ended early")
	}
	_, err := fmt.Fprintf(w, "%d failures\n", len(r.Failures))
	return err
}

// writeMinutes writes a row per minute.
func (r *Report) writeMinutes(w io.Writer) {
	fmt.Fprint(w, "minute\t")
	for _, c := range tableColumns {
		fmt.Fprint(w, c.heading, "\t")
	}
	fmt.Fprintln(w)
	for from := 0; from < len(r.out.times); {
		minute := r.out.times[from] / time.Minute
		to := from
		for to < len(r.out.times) && r.out.times[to]/time.Minute == minute {
			to++
		}
		fmt.Fprintf(w, "%d\t", minute+1)
		for _, c := range tableColumns {
			series := r.out.of(c.panel)
			if c.panel == "" {
				series = slices.DeleteFunc(slices.Clone(r.out.series), func(s *Series) bool { return s.Name != c.series })
			}
			fmt.Fprint(w, cell(series, from, to), "\t")
		}
		fmt.Fprintln(w)
		from = to
	}
}

// cell returns the text of the samples of series from one index to another: the median of
// a rate or a latency, else the largest value.
func cell(series []*Series, from, to int) string {
	largest := math.Inf(-1)
	for _, s := range series {
		values := slices.DeleteFunc(slices.Clone(s.Values[from:to]), math.IsNaN)
		if len(values) == 0 {
			continue
		}
		value := slices.Max(values)
		if s.rule.typical {
			value = quantileOf(values, 0.5)
		}
		largest = max(largest, value)
	}
	if math.IsInf(largest, -1) {
		return "–"
	}
	return series[0].text(largest)
}

// writeBounds writes how often each bound was passed.
func (r *Report) writeBounds(w io.Writer) {
	fmt.Fprintf(w, "bound of\tbound\twritten\ttimes passed\t\n")
	for _, p := range r.Passes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\t%s\n", p.What, p.Bound, p.Written, p.Times, exemption(p.Exempt))
	}
	fmt.Fprintln(w)
}

func exemption(reason string) string {
	if reason == "" {
		return ""
	}
	return "n/a: " + reason
}

// writeLevels writes the judgement of each series.
func (r *Report) writeLevels(w io.Writer) {
	fmt.Fprintf(w, "series after the warm-up\tfrom\tto\tgrowth\ttrend\n")
	for _, l := range r.Levels {
		s := r.out.byName[l.Series]
		if !l.Judged {
			fmt.Fprintf(w, "%s\t\t\t\t\tnot judged: %s\n", l.Series, l.Note)
			continue
		}
		verdict := "level"
		if l.Grows {
			verdict = "GROWS"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%+.0f %%\t%+.2f\t%s\n", l.Series, s.text(l.From), s.text(l.To), 100*l.Growth, l.Trend, verdict)
	}
	fmt.Fprintln(w)
}

// writeRefusals writes the calls that were not acknowledged, and the reasons that nodes
// showed.
func (r *Report) writeRefusals(w io.Writer) {
	fmt.Fprintf(w, "not acknowledged\tcalls\twithout a visible reason\t\n")
	for _, g := range r.Refusals {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", g.Code, g.Count, g.Hidden, g.Text)
	}
	fmt.Fprintf(w, "\nreasons shown by nodes\tstatuses\n")
	for reason, count := range r.Shown {
		fmt.Fprintf(w, "%s\t%d\n", reason[:min(len(reason), 160)], count)
	}
	fmt.Fprintln(w)
}

// WriteFiles writes report.txt, report.json, samples.csv and soak.svg to the directory of
// the report.
func (r *Report) WriteFiles() error {
	if err := os.MkdirAll(r.Options.Report, 0o755); err != nil {
		return fmt.Errorf("create the directory of the report: %w", err)
	}
	for name, write := range map[string]func(io.Writer) error{
		"report.txt": r.WriteText, "report.json": r.writeJSON, "samples.csv": r.writeCSV,
		"soak.svg": func(w io.Writer) error { return writeSVG(w, r.out, r.title()) },
	} {
		file, err := os.Create(r.Options.path(name))
		if err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
		if err := errors.Join(write(file), file.Close()); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}
	r.Options.clean(len(r.Failures) > 0)
	return nil
}

// title describes the run in one line.
func (r *Report) title() string {
	return fmt.Sprintf("Yardmaster %s, three nodes, %d jobs/s for %s, %d queues, %d node kills", r.Options.Version, r.Options.Rate, r.Length.Round(time.Second), r.Options.Queues, len(r.out.kills))
}

func (r *Report) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// writeCSV writes one row per sample, with empty cells for missing values.
func (r *Report) writeCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	header := []string{"seconds"}
	for _, s := range r.out.series {
		header = append(header, strings.TrimSpace(s.Name+" "+s.Unit))
	}
	_ = out.Write(header) // Flush keeps the error
	for i, at := range r.out.times {
		row := []string{strconv.FormatFloat(at.Seconds(), 'f', 1, 64)}
		for _, s := range r.out.series {
			text := ""
			if v := s.Values[i]; !math.IsNaN(v) {
				text = strconv.FormatFloat(v, 'g', 8, 64)
			}
			row = append(row, text)
		}
		_ = out.Write(row)
	}
	out.Flush()
	return out.Error()
}
