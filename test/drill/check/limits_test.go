package check

import (
	"fmt"
	"math"
	"testing"
	"time"
)

func TestConcurrencyErrors(t *testing.T) {
	run := func(job, key string, begin, end int64) Run {
		return Run{Job: job, Key: key, Begin: begin * second, End: end * second}
	}
	always := []Bounds{{To: math.MaxInt64, Total: 3, PerKey: 2}}
	lowered := []Bounds{{To: 10 * second, Total: 3, PerKey: 2}, {From: 9 * second, To: math.MaxInt64, Total: 1, PerKey: 2}}
	for _, c := range []struct {
		name   string
		bounds []Bounds
		runs   []Run
		want   int
	}{
		{"all slots used", always, []Run{run("a", "x", 1, 5), run("b", "x", 2, 5), run("c", "y", 3, 5), run("d", "x", 5, 6)}, 0},
		{"above the total", always, []Run{run("a", "x", 1, 5), run("b", "x", 2, 5), run("c", "y", 3, 5), run("d", "y", 4, 6)}, 1},
		{"above the bound of a key", always, []Run{run("a", "x", 1, 5), run("b", "x", 2, 5), run("c", "x", 3, 5)}, 1},
		{"started before it was lowered", lowered, []Run{run("a", "x", 5, 20), run("b", "y", 6, 20), run("c", "z", 20, 21)}, 0},
		{"delivered after it was lowered", lowered, []Run{run("a", "x", 5, 20), run("b", "y", 11, 20)}, 0},
		{"started after it was lowered", lowered, []Run{run("a", "x", 5, 20), run("b", "y", 13, 20)}, 1},
		{"a worker that was killed", always, []Run{run("a", "x", 1, 0), run("b", "x", 2, 5), run("c", "x", 3, 5)}, 0},
	} {
		if got := ConcurrencyErrors(c.runs, c.bounds, 2*time.Second); len(got) != c.want {
			t.Errorf("%s: %q, want %d", c.name, got, c.want)
		}
	}
}

func TestRateErrors(t *testing.T) {
	every := func(from, to, step float64) (starts []int64) {
		for at := from; at < to; at += step {
			starts = append(starts, int64(at*1e9))
		}
		return starts
	}
	always := []Bounds{{To: math.MaxInt64, Rate: 10, Burst: 3}}
	lowered := []Bounds{{To: 10 * second, Rate: 10, Burst: 3}, {From: 9 * second, To: math.MaxInt64, Rate: 1, Burst: 1}}
	for _, c := range []struct {
		name   string
		bounds []Bounds
		starts []int64
		delay  time.Duration
		wrong  bool
	}{
		{"at the rate", always, every(1, 20, 0.1), 0, false},
		{"above the rate", always, every(1, 20, 0.09), 0, true},
		{"a burst after a pause", always, append(every(1, 5, 0.1), every(7, 7.05, 0.02)...), 0, false},
		{"a burst without a pause", always, append(every(1, 5, 0.1), every(5, 5.05, 0.01)...), 0, true},
		{"the same in a second that was late", always, append(every(1, 5, 0.1), every(5, 5.05, 0.01)...), time.Second, false},
		{"lowered", lowered, append(every(1, 9, 0.1), every(13, 30, 1)...), 0, false},
		{"still at the rate before it was lowered", lowered, every(1, 15, 0.1), 0, true},
	} {
		if got := RateErrors(c.starts, c.bounds, c.delay); len(got) > 0 != c.wrong {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

func TestLimitLinearizable(t *testing.T) {
	run := func(worker string, begin, end int64) Run {
		return Run{Job: fmt.Sprint(worker, begin), Worker: worker, Begin: begin, End: end}
	}
	set := func(total int, from, to int64) LimitOperation {
		return LimitOperation{Client: 100, Kind: SetTotal, Total: total, From: from, To: to}
	}
	for _, c := range []struct {
		name string
		sets []LimitOperation
		runs []Run
		want bool
	}{
		{"two at once", nil, []Run{run("a", 10, 20), run("b", 10, 20), run("a", 30, 40)}, true},
		{"three at once", nil, []Run{run("a", 10, 20), run("b", 10, 20), run("c", 15, 40)}, false},
		{"started while it was lowered", []LimitOperation{set(1, 14, 16)}, []Run{run("a", 10, 20), run("b", 15, 20)}, true},
		{"lowered while two run", []LimitOperation{set(1, 14, 16)}, []Run{run("a", 10, 20), run("b", 12, 20), run("a", 30, 40), run("b", 40, 41)}, true},
		{"two start after it was lowered", []LimitOperation{set(1, 21, 22)}, []Run{run("a", 10, 20), run("b", 10, 20), run("a", 30, 40), run("b", 35, 40), run("b", 50, 51), run("a", 50, 51)}, false},
		{"none may start, and one does", []LimitOperation{set(0, 21, 22), set(1, 50, 51)}, []Run{run("a", 10, 20), run("a", 24, 26), run("a", 27, 28)}, false},
		{"raised in time", []LimitOperation{set(0, 21, 22), set(1, 23, 24)}, []Run{run("a", 10, 20), run("a", 24, 26), run("a", 27, 28)}, true},
	} {
		ok, undecided := LimitLinearizable(append(LimitOperations(c.runs, nil), c.sets...), 2)
		if ok != c.want || undecided {
			t.Errorf("%s: %t, undecided %t", c.name, ok, undecided)
		}
	}
	// The yard gave up a dispatch whose worker went on: its slot may have been free from its begin on.
	given := []Run{run("a", 10, 20), run("b", 10, 20), run("c", 15, 40)}
	if ok, _ := LimitLinearizable(LimitOperations(given, map[string]bool{"b10": true}), 2); !ok {
		t.Error("a dispatch that was given up holds its slot")
	}
}
