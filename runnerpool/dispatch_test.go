package runnerpool

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

func TestOutcomes(t *testing.T) {
	y := startHarness(t, testConfig("", nil))
	o := y.run("echo", nil)
	y.expect(o, job.Success, true, "")
	if string(o.Result.Data) != `{"n":9007199254740993}` || o.Result.Msgpack {
		t.Errorf("result is %s", o.Result.Data)
	}
	o = y.run("retry", nil)
	y.expect(o, job.Retry, true, "Job requested retry")
	if o.RetryAfter == nil || *o.RetryAfter != 0 {
		t.Errorf("negative delay becomes %v, want 0", o.RetryAfter)
	}
	y.expect(y.run("timeout", withTimeout(1500*time.Millisecond)), job.TimedOut, true, "Job timed out after 1.5s.")
	o = y.run("error", nil)
	y.expect(o, job.Error, true, "m")
	if f := o.Fault; f.Type != "t" || f.Code != "c" || string(f.Details) != "[1]" {
		t.Errorf("fault is %+v", f)
	}
	y.expect(y.run("bare-error", nil), job.Error, true, "Job failed")
	o = y.run("unknown", nil)
	y.expect(o, job.Error, true, "Handler not found")
	if o.Fault.Type != job.HandlerNotFound {
		t.Errorf("type is %q", o.Fault.Type)
	}
	o = y.run("", nil)
	y.expect(o, job.Error, false, "Handler name is missing")
	if o.Fault.Type != job.HandlerNotFound {
		t.Errorf("type is %q", o.Fault.Type)
	}
	y.expect(y.run("wait", withTimeout(200*time.Millisecond)), job.TimedOut, true, "Job execution timed out")
	if s := y.Status()[0]; s.Members[0].Restarts != 0 {
		t.Errorf("runner was restarted: %+v", s)
	}
}

func TestContextOfRequest(t *testing.T) {
	y := startHarness(t, testConfig("", nil))
	y.n++
	a := assignment(y.n, "a#b", y.awaitOffer(1))
	a.Function, a.Attempt, a.N, a.Fence = "r#context", 3, 5, 1<<60
	spec := job.Spec{Trace: map[string]string{"traceparent": "t"}}
	begin := time.Now()
	if !y.Start(a, spec) {
		t.Fatal("not started")
	}
	o := y.awaitOutcome()
	var c rrq.Context
	if err := json.Unmarshal(o.Result.Data, &c); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(a.Worker, "/")
	if c.JobID != a.Job.String() || c.Attempt != 3 || c.QueueName != "q" || c.Fence != 1<<60 || c.DispatchID != a.RequestID() ||
		c.Trace["traceparent"] != "t" || c.WorkerID != "yard_n_"+port || !c.EnqueueTime.Equal(a.Accepted.Truncate(time.Microsecond)) {
		t.Errorf("context is %+v", c)
	}
	if d := c.Deadline.Sub(begin); d < 10*time.Second-time.Millisecond || d > 11*time.Second {
		t.Errorf("deadline is in %s, want 10s", d)
	}
	req, _ := newDispatch(a, spec, newWorker(y.members[0], nil, "", 1), time.Second).request("")
	if req.RequestID != a.DispatchID().UUID().String() {
		t.Errorf("request_id is %s, want a UUID", req.RequestID)
	}
}

func TestUnsendableParams(t *testing.T) {
	y := startHarness(t, testConfig("", nil))
	for name, spec := range map[string]job.Spec{
		"msgpack": {Payload: []byte{0xc0}},
		"huge":    specOf(`{"x":"` + strings.Repeat("x", rrq.MaxFrame) + `"}`),
		"array":   specOf(`[1]`),
	} {
		y.n++
		if !y.Start(assignment(y.n, "echo", y.awaitOffer(1)), spec) {
			t.Fatal("not started")
		}
		if o := y.awaitOutcome(); o.Status != job.Error || o.Started || o.Fault.Type != job.FaultInvalid {
			t.Errorf("%s: outcome is %+v, %+v", name, o, o.Fault)
		}
	}
	y.expect(y.run("echo", nil), job.Success, true, "")
}

// A protocol error by a runner costs an attempt and does not affect the pool.
func TestMalformedResponses(t *testing.T) {
	y := startHarness(t, testConfig("raw", nil))
	const prefix = "Runner transport error: "
	for _, test := range []struct{ function, text string }{
		{"plain", ""},
		{"twice", ""},
		{"plain", ""},
		{"twice-nameless", ""}, // the second must not be taken for the answer to the next request
		{"plain", ""},
		{"stranger-first", ""},
		{"nameless", prefix + "runner outcome mismatch: no request_id"},
		{"foreign-job", prefix + `runner outcome mismatch: job_id is "other"`},
		{"garbage", prefix + "malformed message: envelope"},
		{"huge", prefix + "read response: frame of 17825792 bytes is larger than the limit of 16777216"},
		{"plain", ""},
		{"answer-and-close", ""},
	} {
		o := y.run(test.function, nil)
		if test.text == "" {
			y.expect(o, job.Success, true, "")
		} else if o.Status != job.Error || !o.Started || !strings.HasPrefix(o.Fault.Message, test.text) {
			t.Errorf("%s: outcome is %+v, %+v, want %q", test.function, o, o.Fault, test.text)
		}
	}
	if s := y.Status()[0]; s.Members[0].Restarts != 0 {
		t.Errorf("runner was restarted: %+v", s)
	}
}

// A handler whose connection ended without an answer may still be running: its
// process has ended before the outcome is reported. A runner that repeats this
// is in a crash loop.
func TestRunnerClosesConnection(t *testing.T) {
	t.Parallel()
	y := startHarness(t, testConfig("raw", nil))
	for range crashLoopExits {
		a := y.start("eof", nil)
		y.Pools.mu.Lock()
		pid := y.members[0].pid
		y.Pools.mu.Unlock()
		o := y.awaitOutcome()
		if o.Job != a.Job || o.Status != job.Error || !o.Started || o.Fault.Message != "Runner transport error: runner closed the connection" {
			t.Errorf("outcome is %+v, %+v", o, o.Fault)
		}
		if s, ok := readStat(pid); ok && s.state != 'Z' {
			t.Error("the handler's process still runs when the outcome is reported")
		}
	}
	y.awaitReason("crash loop")
}

func TestConnectionPerRequest(t *testing.T) {
	y := startHarness(t, testConfig("raw", func(c *RunnerConfig) { c.Connections = ConnPerRequest }))
	for range 5 {
		y.expect(y.run("answer-and-close", nil), job.Success, true, "")
	}
}

func TestResponseTimeout_NeverAnswers(t *testing.T) {
	y := startHarness(t, testConfig("raw", nil))
	y.run("plain", nil)
	before := y.Status()[0].Members[0].PID
	y.expect(y.run("never", withTimeout(time.Millisecond)), job.TimedOut, true, "Job timed out after 0.001s.")
	y.expect(y.run("plain", nil), job.Success, true, "")
	if after := y.Status()[0].Members[0].PID; after == before {
		t.Error("a runner that never answers was not replaced")
	}
}

func TestResponseTimeout(t *testing.T) {
	y := startHarness(t, testConfig("", func(c *RunnerConfig) { c.ResponseTimeout = 0.05 }))
	before := y.pid()
	y.expect(y.run("wait", nil), job.Error, true, "Runner transport error: runner response timeout")
	if y.pid() != before {
		t.Error("a runner that heeds a cancel was replaced")
	}
}

// A drained process gets no dispatches until it is resumed, and finishes those that it runs.
func TestPools_SetDrained(t *testing.T) {
	y := startHarness(t, testConfig("", func(r *RunnerConfig) { r.MaxInFlight = 2 }))
	a := y.start("wait", withTimeout(200*time.Millisecond))
	channel := job.Channel(job.RRQ, a.Worker)
	if running, ok := y.SetDrained(channel, true); !ok || running != 1 {
		t.Fatalf("the process runs %d, found: %t", running, ok)
	}
	y.awaitOffer(0)
	if y.Start(assignment(99, "echo", a.Worker), specOf("{}")) {
		t.Error("a dispatch was started at a drained process")
	}
	if s := y.Status()[0]; s.Drained != 1 || s.Slots != 1 || s.InFlight != 1 || !s.Members[0].Drained {
		t.Errorf("status is %+v", s)
	}
	y.expect(y.awaitOutcome(), job.TimedOut, true, "Job execution timed out")
	if s := y.Status()[0]; s.Slots != 0 {
		t.Errorf("a drained process has %d slots", s.Slots)
	}
	y.SetDrained(channel, false)
	y.expect(y.run("echo", nil), job.Success, true, "")
	if _, ok := y.SetDrained(job.Channel(job.Overhop, "w1"), true); ok {
		t.Error("a worker was drained")
	}
}
