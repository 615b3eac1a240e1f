package soak

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// testReport returns a report of a run of 40 minutes with a leak on one node.
func testReport() *Report {
	r := newRecorder()
	b := newBoundCounter()
	for i := range 240 {
		at := time.Duration(i) * 10 * time.Second
		r.start(at)
		r.set("Resident memory", "Resident memory n1", "bytes", judgeMemory, 400e6+float64(i)*2e6)
		if i != 100 { // it was down
			r.set("Resident memory", "Resident memory n2", "bytes", judgeMemory, 400e6+float64(i%9)*5e6)
		}
		r.set("YARD_EVENTS", "YARD_EVENTS", "bytes", judgeDisk, float64(i%20)*1e6).Bound = 20e6
		b.observe(map[string]Stream{"YARD_EVENTS": {Name: "YARD_EVENTS", Messages: 100, Bytes: 1e6, Last: uint64(i) * 50, MaxBytes: 20e6}, "YARD_DLQ": {Name: "YARD_DLQ"}})
	}
	r.kills = []time.Duration{15 * time.Minute}
	r.finish()
	length := 40 * time.Minute
	return &Report{out: r, Length: length, Levels: r.judge(length, 10*time.Minute), Passes: b.passes(length, 225_000),
		Refusals: []refusalGroup{{Code: "503", Text: "no lane <has> a leader", Count: 3}}, Shown: map[string]int{"YARD_JOBS_… has no leader": 2}, Failures: []string{"one"}}
}

// TestReport checks the judgement and the text of a run with a leak.
func TestReport(t *testing.T) {
	r := testReport()
	grows := make(map[string]bool)
	for _, l := range r.Levels {
		grows[l.Series] = l.Grows
		if !l.Judged {
			t.Errorf("%s was not judged: %s", l.Series, l.Note)
		}
	}
	if len(grows) != 3 || !grows["Resident memory n1"] || grows["Resident memory n2"] || grows["YARD_EVENTS"] {
		t.Errorf("growing series: %v", grows)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"20 MB  120 MB ", "GROWS", "4.5", "n/a: the stream has no bound", "n/a: fixed at 10m0s", "FAILED: one\n1 failures\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text has no %q:\n%s", want, text.String())
		}
	}
	if minutes := strings.Count(text.String(), "878 MB"); minutes != 1 { // the last sample of n1
		t.Errorf("the largest memory of the last minute is shown %d times", minutes)
	}
}

// TestReport_Short checks that memory is not judged before ids are forgotten.
func TestReport_Short(t *testing.T) {
	for _, l := range testReport().out.judge(15*time.Minute, 10*time.Minute) {
		if memory := strings.HasPrefix(l.Series, "Resident"); l.Judged == memory {
			t.Errorf("%s is judged: %t", l.Series, l.Judged)
		}
	}
}

// TestWriteSVG checks that the picture is well-formed, with a panel for each quantity and
// a gap in the line where a node was down.
func TestWriteSVG(t *testing.T) {
	var picture strings.Builder
	if err := writeSVG(&picture, testReport().out, "a <title>"); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(picture.String())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, picture.String())
		}
	}
	text := picture.String()
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
		t.Error("the picture has a coordinate that is no number")
	}
	if panels, lines := strings.Count(text, `class="panel"`), strings.Count(text, "<path"); panels != 2 || lines != 3 {
		t.Errorf("%d panels, %d lines", panels, lines)
	}
	if !strings.Contains(text, `class="bound"`) || !strings.Contains(text, `class="mark"`) {
		t.Error("the picture lacks the bound or the kill")
	}
	n2 := text[strings.Index(text, ">n2</text>"):]
	if path := n2[:strings.Index(n2, "/>")]; strings.Count(path, "M") != 2 {
		t.Errorf("the line of n2 has no gap: %s", path)
	}
}

// TestWriteCSV checks a row, with an empty cell for a missing value.
func TestWriteCSV(t *testing.T) {
	var out strings.Builder
	if err := testReport().writeCSV(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if lines[0] != "seconds,Resident memory n1 bytes,Resident memory n2 bytes,YARD_EVENTS bytes" || lines[101] != "1000.0,6e+08,,0" {
		t.Errorf("header %q, row %q", lines[0], lines[101])
	}
}

// TestRefusals checks that refusals are grouped without their numbers, and that those at a
// time without a visible reason are told apart.
func TestRefusals(t *testing.T) {
	l := newRefusalLog()
	for _, text := range []string{"try again in 1.5 s", "try again in 20 s"} {
		l.note(&api.Error{Code: "503", Text: text})
	}
	groups, _ := l.result()
	if len(groups) != 1 || groups[0].Count != 2 || groups[0].Hidden != 2 || groups[0].Text != "try again in … s" {
		t.Errorf("without a reason: %+v", groups)
	}
	l.show([]string{"YARD_JOBS_1 has no leader"})
	groups, shown := l.result()
	if groups[0].Hidden != 0 || shown["YARD_JOBS_… has no leader"] != 1 {
		t.Errorf("with a reason: %+v, %v", groups, shown)
	}
}

// TestFormat checks the texts of values.
func TestFormat(t *testing.T) {
	for want, got := range map[string]string{
		"–": format(math.NaN(), " ms"), "3.2 ms": format(3.21, " ms"), "12 ms": format(12.3, " ms"), "25k": format(25_400, ""),
		"1.50 GB": format(1.5e9, "bytes"), "31 MB": format(31e6, "bytes"), "900 kB": format(9e5, "bytes"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
