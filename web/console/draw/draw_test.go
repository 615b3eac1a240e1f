package draw

import (
	"io"
	"strings"
	"testing"
	"time"

	"encoding/xml"
)

func TestLines(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	series := []Series{{"a", []Point{{start, 0}, {start.Add(time.Minute), 1500}}}, {"b", []Point{{start, 750}}}}
	got := string(Lines(`a "title" <b>`, series))
	if !strings.Contains(got, `points="44.0,158.0 632.0,47.0"`) || !strings.Contains(got, ">2k</text>") || !strings.Contains(got, "1m0s ago") {
		t.Errorf("chart %s", got)
	}
	for _, chart := range []string{got, string(Lines("empty", nil)), string(Bar(2)), string(Bar(-1))} {
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
	for v, want := range map[float64]float64{0: 4, 4: 4, 5: 10, 11: 20, 39: 40, 41: 100, 1001: 2000} {
		if got := ceil(v); got != want {
			t.Errorf("ceil(%g) is %g, want %g", v, got, want)
		}
	}
}
