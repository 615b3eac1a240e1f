package runnerpool

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"yardmaster/job"
)

// of gives what a job is said to have said, in the order of its streams: only
// within one is there an order.
func (h *hands) of(a job.Assignment, stream string) (lines []job.LogLine) {
	for _, l := range h.said() {
		if l.Job == a.Job && l.N == a.N && l.Stream == stream {
			lines = append(lines, l)
		}
	}
	return lines
}

// shape is what a test compares of a line.
func shape(l job.LogLine) string {
	switch {
	case l.Record != nil:
		var r map[string]json.RawMessage
		if err := json.Unmarshal(l.Record, &r); err != nil {
			return err.Error()
		}
		delete(r, "job_id")
		delete(r, "request_id")
		delete(r, "span")
		if text(r["timestamp"]) != "then" {
			delete(r, "timestamp") // the node's own
		}
		b, _ := json.Marshal(r)
		return l.Level + " " + string(b)
	case l.Cut:
		return fmt.Sprintf("%s cut after %d", l.Level, len(l.Text))
	}
	return l.Level + " " + l.Text
}

func shapes(lines []job.LogLine) (s []string) {
	for _, l := range lines {
		s = append(s, shape(l))
	}
	return s
}

const added = `"rrq.runner":"r","rrq.source":"runner","rrq.stream":`

// All that a runner of one request at a time prints between request and answer
// is that job's, however quickly the next one follows.
func TestLinesOfOneAtATime(t *testing.T) {
	y := startYard(t, testConfig("", nil))
	for range 20 {
		a := y.begin("say", nil)
		y.expect(y.awaitOutcome(), job.Success, true, "")
		// Before the outcome all has been handed over.
		out, err := y.of(a, job.LogStdout), y.of(a, job.LogStderr)
		wantOut := []string{
			"info plain of " + a.Job.String(),
			`info {"level":"INFO","msg":"by job","n":12345678901234567890,` + added + `"stdout"}`,
			`info {"level":"INFO",` + added + `"stdout"}`,
			`info {"level":"INFO","msg":"of somebody",` + added + `"stdout"}`,
			"info {\"job_id\":\uFFFD garbage",
			fmt.Sprintf("info cut after %d", maxLine),
		}
		wantErr := []string{
			`warn {"level":"warning",` + added + `"stderr","timestamp":"then"}`,
			"warn to stderr",
		}
		if got := shapes(out); !slices.Equal(got, wantOut) {
			t.Fatalf("on stdout it said\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wantOut, "\n"))
		}
		if got := shapes(err); !slices.Equal(got, wantErr) {
			t.Fatalf("on stderr it said\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wantErr, "\n"))
		}
		if l := out[0]; l.Attempt != 1 || l.Worker != a.Worker || l.At.IsZero() {
			t.Errorf("line is %+v", l)
		}
	}
}

// Of a runner of several requests at once only lines that name one are known.
func TestLinesOfSeveralAtOnce(t *testing.T) {
	log := &buffer{}
	y := runYard(t, testConfig("", func(c *RunnerConfig) { c.MaxInFlight = 4 }), slog.New(slog.NewTextHandler(log, nil)))
	a := y.begin("say", nil)
	y.expect(y.awaitOutcome(), job.Success, true, "")
	if out, err := y.of(a, job.LogStdout), y.of(a, job.LogStderr); len(out) != 2 || len(err) != 1 || len(y.said()) != 3 {
		t.Errorf("lines are %v and %v of %d", shapes(out), shapes(err), len(y.said()))
	}
	if !strings.Contains(log.String(), "to stderr") {
		t.Error("what is nobody's is not in the node's log")
	}
}

// The last words of a process that a job kills are the job's.
func TestLastWords(t *testing.T) {
	y := startYard(t, testConfig("", nil))
	a := y.begin("say-and-crash", nil)
	if o := y.awaitOutcome(); o.Status != job.Lost {
		t.Fatalf("outcome is %+v", o)
	}
	if got := shapes(y.of(a, job.LogStderr)); !slices.Equal(got, []string{"warn panic: out of luck"}) {
		t.Errorf("it said %q", got)
	}
}

// A line may name a dispatch that has just ended, of several of a job the
// latest; one that is long gone is nobody's.
func TestLateLines(t *testing.T) {
	v := &voices{}
	first, second := &dispatch{}, &dispatch{}
	first.N, second.N = 1, 2
	v.begin(first)
	v.end(first)
	v.begin(second)
	v.end(second)
	find := func(line string) uint32 {
		var record map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		who, _ := v.speaker(record)
		return who.N
	}
	id := first.Job.String()
	if n := find(`{"job_id":"` + id + `"}`); n != 2 {
		t.Errorf("by its job the line is of dispatch %d", n)
	}
	if n := find(`{"request_id":"` + id + `#1"}`); n != 1 {
		t.Errorf("by its request the line is of dispatch %d", n)
	}
	for n := range lateVoices {
		d := &dispatch{}
		d.Job[0], d.N = 1, uint32(n+1)
		v.begin(d)
		v.end(d)
	}
	if n := find(`{"request_id":"` + id + `#1"}`); n != 0 || len(v.past) != lateVoices {
		t.Errorf("after %d others the line is of dispatch %d", len(v.past), n)
	}
}
