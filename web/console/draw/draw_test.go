package draw

import (
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"encoding/xml"
)

func TestLines(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	chart := &Chart{Title: `a "title" <b>`, From: start, To: at(60), Series: []Series{
		{"a", []Point{{start, 0}, {at(30), 1500}, {at(40), math.NaN()}, {at(60), 0}}}, {"b", nil},
	}, Marks: []Mark{{at(30), "drain", "<n1>"}}}
	got := string(Lines(chart))
	for _, want := range []string{`d="M0.0 158.0L500.0 47.0M1000.0 158.0h4"`, ">2k</text>", "60 min ago", "30 min ago", `x1="50.00%"`, "&lt;n1&gt;"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in %s", want, got)
		}
	}
	strip := string(Strip("<authority>", start, at(60), []Span{{start, at(30), "n<1>"}, {at(30), at(60), "n2"}}, chart.Marks))
	for _, chart := range []string{got, strip, string(Lines(&Chart{Title: "empty"})), string(Bar(2)), string(Bar(-1)), string(Spark("<b>", []float64{0, 3, 1})), string(Spark("none", nil))} {
		decoder := xml.NewDecoder(strings.NewReader(chart))
		for {
			if _, err := decoder.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, chart)
			}
		}
	}
}

func TestCeil(t *testing.T) {
	for v, want := range map[float64]float64{0: 1, .5: 1, 3: 4, 4: 4, 5: 10, 11: 20, 39: 40, 41: 100, 1001: 2000} {
		if got := ceil(v); got != want {
			t.Errorf("ceil(%g) is %g, want %g", v, got, want)
		}
	}
}
