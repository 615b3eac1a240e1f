package runnerpool

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// interopRunner is a runner in another language, with the handlers of
// testdata/peers.
type interopRunner struct {
	name   string
	config func(t *testing.T, c *RunnerConfig)

	floatInts     bool   // reads integers as floats
	passesFence   bool   // forwards the fence
	silentOnError bool   // does not answer if the result cannot be encoded
	noFunction    string // the fault type for an unknown handler
}

// The runtimes of RRQ are found by environment variables, see CONTRIBUTING.md.
const (
	rrqPythonEnv = "YARD_RRQ_PYTHON"
	rrqNodeEnv   = "YARD_RRQ_TS"
	rrqRustEnv   = "YARD_RRQ_RUST"
)

var interopRunners = []interopRunner{
	{name: "example", passesFence: true, noFunction: "No handler registered for function 'nobody'",
		config: func(t *testing.T, c *RunnerConfig) {
			c.Cmd = []string{program(t, "python3"), "testdata/peers/example.py"}
			c.Env["PYTHONPATH"] = absolute(t, "../examples/runner-python")
		}},
	{name: "rrq-python", silentOnError: true, noFunction: "No handler registered for function 'nobody'",
		config: func(t *testing.T, c *RunnerConfig) {
			library := envPath(t, rrqPythonEnv, "the directory that holds the Python package rrq")
			c.Cmd = []string{program(t, "python3"), "-m", "rrq.runner_runtime", "--settings", "rrqpython.settings"}
			c.Env["PYTHONPATH"] = library + ":" + absolute(t, "testdata/peers")
		}},
	{name: "rrq-ts", floatInts: true, passesFence: true, silentOnError: true, noFunction: "Handler not found",
		config: func(t *testing.T, c *RunnerConfig) {
			c.Env[rrqNodeEnv] = envPath(t, rrqNodeEnv, "rrq-ts/src/runner_runtime.ts, translated to JavaScript")
			c.Cmd = []string{program(t, "node"), "testdata/peers/rrqnode.mjs"}
		}},
	{name: "rrq-rust", noFunction: "No handler registered for function 'nobody'",
		config: func(t *testing.T, c *RunnerConfig) {
			c.Cmd = []string{envPath(t, rrqRustEnv, "testdata/peers/rrqrust.rs, built with the crate rrq-runner")}
		}},
}

// envPath returns a path from the environment.
func envPath(t *testing.T, variable, what string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Skipf("%s is not set: let it name %s (see CONTRIBUTING.md)", variable, what)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s should name %s: %v", variable, what, err)
	}
	return absolute(t, path)
}

func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("no %s on this machine", name)
	}
	return path
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestInterop(t *testing.T) {
	for _, p := range interopRunners {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig("", func(c *RunnerConfig) {
				c.MaxInFlight, c.CancelGrace = 4, ptr(2)
				c.Env = map[string]string{nodeMode: "", "PYTHONDONTWRITEBYTECODE": "1"}
				p.config(t, c)
			})
			cfg.ConnectTimeoutMS = testTimeout.Milliseconds()
			y := startHarness(t, cfg)
			y.awaitOffer(4)
			p.answers(y)
			p.knowsItsContext(y)
			p.stops(y)
			if s := y.Status()[0].Members[0]; s.Restarts != 0 {
				t.Errorf("the process was restarted: %+v", s)
			}
			p.returnsUnsendable(y)
		})
	}
}

// TestExampleAlone runs the example's own tests.
func TestExampleAlone(t *testing.T) {
	cmd := exec.Command(program(t, "python3"), "-m", "unittest")
	cmd.Dir = absolute(t, "../examples/runner-python")
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if said, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(said), "\nOK") {
		t.Errorf("%v\n%s", err, said)
	}
}

// askParams runs a job with params and returns its outcome.
func (h *harness) askParams(function, params string, change func(*job.Assignment)) job.Outcome {
	h.t.Helper()
	h.send(function, params, change)
	return h.awaitOutcome()
}

func (h *harness) send(function, params string, change func(*job.Assignment)) job.Assignment {
	h.t.Helper()
	h.n++
	a := assignment(h.n, function, h.awaitWorker())
	if change != nil {
		change(&a)
	}
	spec := specOf(params)
	spec.Trace = map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	if !h.Start(a, spec) {
		h.t.Fatalf("%s does not start at %s: %+v", function, a.Worker, h.Status())
	}
	return a
}

// awaitWorker waits for a worker with a free slot.
func (h *harness) awaitWorker() string {
	h.t.Helper()
	late := time.After(testTimeout)
	for {
		h.recorder.mu.Lock()
		changed := h.changed
		for w, n := range h.offers {
			if n > 0 {
				h.recorder.mu.Unlock()
				return w
			}
		}
		h.recorder.mu.Unlock()
		select {
		case <-changed:
		case <-late:
			h.t.Fatalf("no worker has a free slot: %+v", h.Status())
		}
	}
}

// answers checks the outcomes that a handler can return.
func (p *interopRunner) answers(y *harness) {
	params := `{"n":9007199254740993,"f":0.1,"t":"ä","deep":[{"null":null}]}`
	o := y.askParams("echo", params, nil)
	y.expect(o, job.Success, true, "")
	if p.floatInts {
		params = strings.Replace(params, "993", "992", 1)
	}
	if !sameJSON(o.Result.Data, params) {
		y.t.Errorf("echo gives %s", o.Result.Data)
	}
	y.expect(y.askParams("fail", `{"message":"x"}`, nil), job.Error, true, "x")
	o = y.askParams("nobody", `{}`, nil)
	y.expect(o, job.Error, true, p.noFunction)
	if o.Fault == nil || o.Fault.Type != job.HandlerNotFound {
		y.t.Errorf("fault is %+v", o.Fault)
	}
	o = y.askParams("retry", `{"times":1,"after":0.25}`, nil)
	if o.Status != job.Retry || o.RetryAfter == nil || *o.RetryAfter != 250*time.Millisecond {
		y.t.Errorf("retry gives %+v", o)
	}
	if o = y.askParams("retry", `{"times":1}`, nil); o.Status != job.Retry || o.RetryAfter != nil {
		y.t.Errorf("retry without a time gives %+v", o)
	}
	again := func(a *job.Assignment) { a.Attempt = 2 }
	if o = y.askParams("retry", `{"times":1}`, again); !sameJSON(o.Result.Data, `{"attempt":2}`) {
		y.t.Errorf("second attempt gives %+v", o)
	}
	o = y.askParams("big", `{"bytes":15000000}`, nil)
	y.expect(o, job.Success, true, "")
	if len(o.Result.Data) != 15000002 {
		y.t.Errorf("large result has %d bytes", len(o.Result.Data))
	}
	if p.name == "example" {
		return
	}
	o = y.askParams("detailed", `{}`, nil)
	y.expect(o, job.Error, true, "m")
	if f := o.Fault; f == nil || f.Type != "t" || f.Code != "c" || !sameJSON(f.Details, `{"n":1}`) {
		y.t.Errorf("fault is %+v", o.Fault)
	}
}

// knowsItsContext checks that the context of a job is decoded correctly.
func (p *interopRunner) knowsItsContext(y *harness) {
	begin := time.Now()
	o := y.askParams("context", `{}`, func(a *job.Assignment) { a.Attempt, a.Fence = 3, 1<<40 })
	var c struct {
		Attempt  int               `json:"attempt"`
		Queue    string            `json:"queue_name"`
		Deadline time.Time         `json:"deadline"`
		Trace    map[string]string `json:"trace_context"`
		Fence    uint64            `json:"fence"`
	}
	if err := json.Unmarshal(o.Result.Data, &c); err != nil {
		y.t.Fatalf("context is %s: %v, %+v", o.Result.Data, err, o.Fault)
	}
	in := c.Deadline.Sub(begin)
	if c.Attempt != 3 || c.Queue != "q" || len(c.Trace) != 1 || in < 9*time.Second || p.passesFence && c.Fence != 1<<40 {
		y.t.Errorf("context is %s", o.Result.Data)
	}
}

// stops checks that deadlines and cancels end the right handlers.
func (p *interopRunner) stops(y *harness) {
	if o := y.askParams("sleep", `{"ms":600000}`, withTimeout(500*time.Millisecond)); o.Status != job.TimedOut {
		y.t.Errorf("sleep past its deadline gives %s %+v", o.Status, o.Fault)
	}
	var sent [4]job.Assignment
	for i := range sent {
		sent[i] = y.send("sleep", `{"ms":600000}`, nil)
	}
	for _, i := range []int{2, 0, 3, 1} {
		y.awaitSent(sent[i])
		y.Stop(job.Recall{Job: sent[i].Job, N: sent[i].N, Reason: job.RecallCancelled})
		o := y.awaitOutcome()
		y.expect(o, job.RunCancelled, true, "Job cancelled")
		if o.Job != sent[i].Job {
			y.t.Errorf("%s was cancelled, not %s", o.Job, sent[i].Job)
		}
	}
}

// returnsUnsendable checks that failures cost an attempt or the process, and
// that nothing blocks for ever.
func (p *interopRunner) returnsUnsendable(y *harness) {
	o := y.askParams("big", `{"bytes":17000000}`, nil)
	if o.Status != job.Error || o.Fault == nil {
		y.t.Errorf("too large a result gives %s %+v", o.Status, o.Fault)
	}
	if p.name != "rrq-rust" { // it can encode every value
		o = y.askParams("unsendable", `{}`, withTimeout(time.Second))
		if p.silentOnError && o.Status != job.TimedOut || !p.silentOnError && o.Status != job.Error {
			y.t.Errorf("a result that cannot be sent gives %s %+v", o.Status, o.Fault)
		}
	}
	o = y.askParams("crash", `{"code":7}`, nil)
	if o.Status != job.Lost || !strings.HasSuffix(o.Fault.Message, "ended: exit status 7") {
		y.t.Errorf("crash gives %s %+v", o.Status, o.Fault)
	}
	if o = y.askParams("hang", `{}`, withTimeout(time.Second)); o.Status != job.TimedOut {
		y.t.Errorf("hang gives %s %+v", o.Status, o.Fault)
	}
	y.expect(y.askParams("echo", `{}`, nil), job.Success, true, "")
}

// sameJSON compares JSON values, numbers by their digits.
func sameJSON(got []byte, want string) bool {
	a, errA := canonical(string(got))
	b, errB := canonical(want)
	return errA == nil && errB == nil && a == b
}

func canonical(text string) (string, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	b, err := json.Marshal(v)
	return string(b), err
}
