package runnerpool

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// linesOf returns the log lines of a job by stream. There is no order between
// streams.
func (r *recorder) linesOf(a job.Assignment, stream string) (lines []job.LogLine) {
	for _, l := range r.logLines() {
		if l.Job == a.Job && l.N == a.N && l.Stream == stream {
			lines = append(lines, l)
		}
	}
	return lines
}

// shape returns the parts of a line that tests compare.
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
		if jsonString(r["timestamp"]) != "then" {
			delete(r, "timestamp") // set by the node
		}
		b, _ := json.Marshal(r)
		return l.Level + " " + string(b)
	case l.Truncated:
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

const rrqFields = `"rrq.runner":"r","rrq.source":"runner","rrq.stream":`

// If a runner runs one request at a time, everything it prints between request
// and answer belongs to that job, however soon the next one follows.
func TestJobLog_OneRequestAtATime(t *testing.T) {
	y := startHarness(t, testConfig("", nil))
	for range 20 {
		a := y.start("say", nil)
		y.expect(y.awaitOutcome(), job.Success, true, "")
		// Everything is in the log before the outcome.
		out, err := y.linesOf(a, job.LogStdout), y.linesOf(a, job.LogStderr)
		wantOut := []string{
			"info plain of " + a.Job.String(),
			`info {"level":"INFO","msg":"by job","n":12345678901234567890,` + rrqFields + `"stdout"}`,
			`info {"level":"INFO",` + rrqFields + `"stdout"}`,
			`info {"level":"INFO","msg":"of somebody",` + rrqFields + `"stdout"}`,
			"info {\"job_id\":\uFFFD garbage",
			fmt.Sprintf("info cut after %d", maxLine),
		}
		wantErr := []string{
			`warn {"level":"warning",` + rrqFields + `"stderr","timestamp":"then"}`,
			"warn to stderr",
		}
		if got := shapes(out); !slices.Equal(got, wantOut) {
			t.Fatalf("stdout is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wantOut, "\n"))
		}
		if got := shapes(err); !slices.Equal(got, wantErr) {
			t.Fatalf("stderr is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wantErr, "\n"))
		}
		if l := out[0]; l.Attempt != 1 || l.Worker != a.Worker || l.At.IsZero() {
			t.Errorf("line is %+v", l)
		}
	}
}

// If a runner runs several requests at once, only lines that name a job are
// assigned to one.
func TestJobLog_ConcurrentRequests(t *testing.T) {
	log := &buffer{}
	y := runHarness(t, testConfig("", func(c *RunnerConfig) { c.MaxInFlight = 4 }), slog.New(slog.NewTextHandler(log, nil)))
	a := y.start("say", nil)
	y.expect(y.awaitOutcome(), job.Success, true, "")
	if out, err := y.linesOf(a, job.LogStdout), y.linesOf(a, job.LogStderr); len(out) != 2 || len(err) != 1 || len(y.logLines()) != 3 {
		t.Errorf("lines are %v and %v of %d", shapes(out), shapes(err), len(y.logLines()))
	}
	if !strings.Contains(log.String(), "to stderr") {
		t.Error("a line without a job is not in the node's log")
	}
}

// The last output of a process that exits during a job belongs to the job.
func TestJobLog_LinesBeforeCrash(t *testing.T) {
	y := startHarness(t, testConfig("", nil))
	a := y.start("say-and-crash", nil)
	if o := y.awaitOutcome(); o.Status != job.Lost {
		t.Fatalf("outcome is %+v", o)
	}
	if got := shapes(y.linesOf(a, job.LogStderr)); !slices.Equal(got, []string{"warn panic: out of luck"}) {
		t.Errorf("its log is %q", got)
	}
}

// A line may name a dispatch that has just ended, of several dispatches of a
// job the latest. A line that names an older one belongs to no job.
func TestJobLog_LateLines(t *testing.T) {
	v := &jobLog{}
	newDispatch := func(id job.ID, n uint32) *dispatch {
		return newDispatch(job.Assignment{Job: id, N: n}, job.Spec{}, nil, time.Second)
	}
	first, second := newDispatch(job.ID{}, 1), newDispatch(job.ID{}, 2)
	v.begin(first)
	v.end(first)
	v.begin(second)
	v.end(second)
	find := func(line string) uint32 {
		var record map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		who, _ := v.attribute(record)
		return who.N
	}
	id := first.Job.String()
	if n := find(`{"job_id":"` + id + `"}`); n != 2 {
		t.Errorf("by its job the line is of dispatch %d", n)
	}
	if n := find(`{"request_id":"` + first.uuid + `"}`); n != 1 {
		t.Errorf("by its request the line is of dispatch %d", n)
	}
	for n := range maxEnded {
		d := newDispatch(job.ID{1}, uint32(n+1))
		v.begin(d)
		v.end(d)
	}
	if n := find(`{"request_id":"` + first.uuid + `"}`); n != 0 || len(v.ended) != maxEnded {
		t.Errorf("after %d others the line is of dispatch %d", len(v.ended), n)
	}
}
