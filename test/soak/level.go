package soak

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// The criterion of levelling off.
const (
	levelWindows   = 8    // equal parts of the judged samples
	minPerWindow   = 3    // samples that a window needs
	growthLimit    = 0.15 // of the typical value, over all windows
	trendThreshold = 0.6  // Kendall's tau; by chance 0.57 or more occurs in 3 % of random orders of eight
	lastWindows    = 3    // in which a series that grows still rises
	stillRising    = 0.5  // of what the line rises in them
)

// Level is the judgement of one series.
type Level struct {
	Series string  `json:"series"`
	From   float64 `json:"from"` // the fitted line at the first window
	To     float64 `json:"to"`   // and at the last
	Growth float64 `json:"growth"`
	Trend  float64 `json:"trend"` // Kendall's tau of the windows: 1 means that each is above the one before
	Judged bool    `json:"judged"`
	Grows  bool    `json:"grows"`
	Note   string  `json:"note,omitempty"` // why it was not judged
}

// Judge reports whether values, equally spaced samples without the warm-up, have levelled
// off. NaN is a missing sample.
//
// It divides the samples into eight windows and takes one number of each: its 90th
// percentile, or its median if typical is set. The peaks of a sawtooth, which storage and
// a garbage collector produce, are thereby compared with each other. A line is fitted
// through the eight numbers by the median of all slopes between two of them (Theil and
// Sen), which a single outlier does not move. The series grows if four conditions hold:
// the line rises over the eight windows by more than 15 % of their median, it rises by
// more than floor, in the unit of the series, at least four in five pairs of windows are
// in rising order (Kendall's tau of 0.6), which noise without a trend rarely has, and
// over the last three windows the series still rises by half of what the line does. A
// file that keeps its largest size rises in steps until it has reached that.
func Judge(values []float64, typical bool, floor float64) (l Level) {
	numbers := windowNumbers(values, typical)
	if numbers == nil {
		l.Note = fmt.Sprintf("fewer than %d samples after the warm-up", levelWindows*minPerWindow)
		return l
	}
	var slopes []float64
	var rising, pairs float64
	for i, a := range numbers {
		for j := i + 1; j < len(numbers); j++ {
			slopes = append(slopes, (numbers[j]-a)/float64(j-i))
			rising += float64(cmp.Compare(numbers[j], a))
			pairs++
		}
	}
	middle, slope := quantileOf(numbers, 0.5), quantileOf(slopes, 0.5)
	rise := slope * float64(len(numbers)-1)
	l.Judged, l.Trend = true, rising/pairs
	l.From, l.To = middle-rise/2, middle+rise/2
	l.Growth = rise / max(math.Abs(middle), 1e-9)
	last := numbers[len(numbers)-1] - numbers[len(numbers)-lastWindows]
	l.Grows = l.Growth > growthLimit && rise > floor && l.Trend >= trendThreshold && last >= stillRising*slope*(lastWindows-1)
	return l
}

// windowNumbers returns one number per window, or nil if a window has too few samples.
func windowNumbers(values []float64, typical bool) (numbers []float64) {
	quantile := 0.9
	if typical {
		quantile = 0.5
	}
	for i := range levelWindows {
		window := slices.DeleteFunc(slices.Clone(values[i*len(values)/levelWindows:(i+1)*len(values)/levelWindows]), math.IsNaN)
		if len(window) < minPerWindow {
			return nil
		}
		numbers = append(numbers, quantileOf(window, quantile))
	}
	return numbers
}

// quantileOf returns a quantile of values, which must not be empty, with linear
// interpolation.
func quantileOf(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (sorted[above]-sorted[below])*(at-float64(below))
}
