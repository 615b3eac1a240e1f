package chart

import (
	"fmt"
	"math"
)

// zeroShare is the part of a logarithmic axis between 0, if that is on it, and the next size.
const zeroShare = 0.12

// LogAxis returns the positions of sizes, in increasing order, on a logarithmic x axis from
// the first to the last, with their labels. The size 0 is at its begin.
func LogAxis(sizes []int) []Tick {
	ticks := make([]Tick, len(sizes))
	from, first := 0.0, 0
	if len(sizes) > 1 && sizes[0] == 0 {
		from, first = zeroShare, 1
	}
	for i, size := range sizes {
		at := 0.0
		if span := math.Log(float64(sizes[len(sizes)-1]) / float64(sizes[first])); i >= first && span > 0 {
			at = from + (1-from)*math.Log(float64(size)/float64(sizes[first]))/span
		} else if i >= first && from > 0 {
			at = 1 // the only size beside 0
		}
		ticks[i] = Tick{at, Count(size)}
	}
	return ticks
}

// Count returns a number in few characters: 300, 10k, 1.5M.
func Count(n int) string {
	switch {
	case n >= 1_000_000:
		return fmt.Sprintf("%.4gM", float64(n)/1e6)
	case n >= 1000:
		return fmt.Sprintf("%.4gk", float64(n)/1e3)
	}
	return fmt.Sprint(n)
}
