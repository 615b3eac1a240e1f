package chart

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestWriteSVG(t *testing.T) {
	text := func(v float64) string { return fmt.Sprintf("%g <ms>", v) }
	none := math.NaN()
	p := Picture{Title: "a & b", Note: "note", Columns: 2, Width: 400, Height: 200, Panels: []Panel{
		{Title: "far below the bound", XTitle: "jobs", Text: text, Bound: 10, Dots: true, XTicks: LogAxis([]int{0, 10, 1000}),
			Lines: []Line{{Name: "p50", Points: []Point{{0, 0.02}, {0.5, none}, {1, 0.03}}}, {Name: "p99", Points: []Point{{0, 0.05}}}}},
		{Title: "near it", Text: text, Bound: 10, Shaded: 0.5, Marks: []float64{0.5}, Lines: []Line{{Points: []Point{{0, 4}}}}},
		{Title: "empty", Text: text, Lines: []Line{{}}},
	}}
	var b strings.Builder
	if err := p.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	picture := b.String()
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, picture)
		}
	}
	for part, want := range map[string]int{
		`class="panel"`: 3, "<path": 4, "<circle": 3, `class="bound"`: 1, `class="mark"`: 1, `class="shaded"`: 1,
		">p50<": 1, ">jobs<": 1, ">1k<": 1, "NaN": 0, "Inf": 0, `viewBox="0 0 800 452"`: 1, `d="M58.0 `: 2,
	} {
		if got := strings.Count(picture, part); got != want {
			t.Errorf("%s occurs %d times, want %d", part, got, want)
		}
	}
}

func TestLogAxis(t *testing.T) {
	for _, c := range []struct {
		sizes []int
		want  []Tick
	}{
		{[]int{10, 100, 1000}, []Tick{{0, "10"}, {0.5, "100"}, {1, "1k"}}},
		{[]int{0, 10_000, 1_000_000}, []Tick{{0, "0"}, {zeroShare, "10k"}, {1, "1M"}}},
		{[]int{0, 2500}, []Tick{{0, "0"}, {1, "2.5k"}}},
		{[]int{0}, []Tick{{0, "0"}}},
		{[]int{300}, []Tick{{0, "300"}}},
		{nil, []Tick{}},
	} {
		got := LogAxis(c.sizes)
		for i := range got {
			got[i].At = math.Round(got[i].At*1e6) / 1e6
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v: %v, want %v", c.sizes, got, c.want)
		}
	}
}

func TestNiceTop(t *testing.T) {
	for v, want := range map[float64]float64{0: 1, 0.021: 0.03, 1: 1, 11: 12, 900: 1000} {
		if got := niceTop(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("above %v: %v, want %v", v, got, want)
		}
	}
}
