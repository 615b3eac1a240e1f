package soak

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Series is one quantity over time.
type Series struct {
	Name   string    `json:"name"`
	Panel  string    `json:"panel"` // of the picture, which shows all series of it together
	Unit   string    `json:"unit"`
	Bound  float64   `json:"bound,omitempty"` // 0 means none
	Values []float64 `json:"-"`               // one per sample; NaN means none

	rule levelRule
}

// levelRule is how a series is judged.
type levelRule struct {
	judged  bool
	typical bool    // medians are what counts instead of peaks, see [Judge]
	floor   float64 // growth below it does not count
	withIDs bool    // it contains the ids of finished jobs, and grows until the first are forgotten
}

// The rules of all series. A floor is the growth that a change of circumstances, such as
// another distribution of leaders, may cause.
var (
	notJudged   = levelRule{typical: true}
	ofOneNode   = levelRule{} // not judged: it follows the leaders and clients that a node has
	judgeMemory = levelRule{judged: true, withIDs: true, floor: 24 << 20}
	judgeLedger = levelRule{judged: true, withIDs: true, floor: 8 << 20}
	judgeDisk   = levelRule{judged: true, floor: 8 << 20}
	judgeCount  = levelRule{judged: true, floor: 64}
	judgeFast   = levelRule{judged: true, typical: true, floor: 25}  // milliseconds, medians
	judgeSlow   = levelRule{judged: true, typical: true, floor: 250} // milliseconds, 99th percentiles
	judgeLag    = levelRule{judged: true, typical: true, floor: 500} // records or jobs
)

// recorder holds the samples of all series.
type recorder struct {
	times  []time.Duration // of the samples, after the begin of the load
	series []*Series
	byName map[string]*Series
	kills  []time.Duration
}

func newRecorder() *recorder { return &recorder{byName: make(map[string]*Series)} }

// start begins a sample.
func (r *recorder) start(at time.Duration) { r.times = append(r.times, at) }

// set stores the value of a series in the current sample.
func (r *recorder) set(panel, name, unit string, rule levelRule, value float64) *Series {
	s := r.byName[name]
	if s == nil {
		s = &Series{Name: name, Panel: panel, Unit: unit, rule: rule}
		r.byName[name] = s
		r.series = append(r.series, s)
	}
	for len(s.Values) < len(r.times) {
		s.Values = append(s.Values, math.NaN())
	}
	s.Values[len(r.times)-1] = value
	return s
}

// finish gives all series the same length.
func (r *recorder) finish() {
	for _, s := range r.series {
		for len(s.Values) < len(r.times) {
			s.Values = append(s.Values, math.NaN())
		}
	}
}

// after returns the values of a series in the samples from a time on.
func (r *recorder) after(s *Series, from time.Duration) []float64 {
	i, _ := slices.BinarySearch(r.times, from)
	return s.Values[i:]
}

// judge judges all series of a load of a length. forget is how long the cluster remembers
// the ids of finished jobs.
func (r *recorder) judge(length, forget time.Duration) (levels []Level) {
	warmUp := length / 3
	for _, s := range r.series {
		if !s.rule.judged {
			continue
		}
		from := warmUp
		if s.rule.withIDs {
			from = max(warmUp, forget+forget/4)
		}
		l := Level{Note: fmt.Sprintf("grows until ids are forgotten, after %s; a third of the run must follow", forget)}
		if from <= length-length/3 {
			l = Judge(r.after(s, from), s.rule.typical, s.rule.floor)
		}
		l.Series = s.Name
		levels = append(levels, l)
	}
	return levels
}

// panels returns the names of the panels, in the order in which they were added.
func (r *recorder) panels() (names []string) {
	for _, s := range r.series {
		if !slices.Contains(names, s.Panel) {
			names = append(names, s.Panel)
		}
	}
	return names
}

// of returns the series of a panel.
func (r *recorder) of(panel string) []*Series {
	return slices.DeleteFunc(slices.Clone(r.series), func(s *Series) bool { return s.Panel != panel })
}

// label returns the name of the series within its panel.
func (s *Series) label() string { return strings.TrimSpace(strings.TrimPrefix(s.Name, s.Panel)) }

// text returns a value of the series with its unit.
func (s *Series) text(v float64) string { return format(v, s.Unit) }

// format returns a value with its unit, in about four characters.
func format(v float64, unit string) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case unit == "bytes":
		return sizeText(v)
	case v >= 1e6:
		return fmt.Sprintf("%.1fM%s", v/1e6, unit)
	case v >= 1e4:
		return fmt.Sprintf("%.0fk%s", v/1e3, unit)
	case v < 10 && v != math.Trunc(v):
		return fmt.Sprintf("%.1f%s", v, unit)
	}
	return fmt.Sprintf("%.0f%s", v, unit)
}

// sizeText returns a number of bytes in MB, or in GB or kB if that is shorter.
func sizeText(v float64) string {
	switch {
	case v >= 1e9:
		return fmt.Sprintf("%.2f GB", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.0f MB", v/1e6)
	}
	return fmt.Sprintf("%.0f kB", v/1e3)
}
