package runnerpool

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yardmaster/job"
)

// peer is a runner that is not ours in Go, under the handlers of
// testdata/peers.
type peer struct {
	name   string
	config func(t *testing.T, c *RunnerConfig)

	rounds     bool   // reads integers as floats
	fence      bool   // hands the fence on
	mute       bool   // does not answer what it cannot send
	noFunction string // of a handler that it does not have
}

// The runtimes of RRQ are found by the environment; CONTRIBUTING tells how.
const (
	rrqPythonEnv = "YARD_RRQ_PYTHON"
	rrqNodeEnv   = "YARD_RRQ_TS"
	rrqRustEnv   = "YARD_RRQ_RUST"
)

var peers = []peer{
	{name: "example", fence: true, noFunction: "No handler registered for function 'nobody'",
		config: func(t *testing.T, c *RunnerConfig) {
			c.Cmd = []string{program(t, "python3"), "testdata/peers/example.py"}
			c.Env["PYTHONPATH"] = absolute(t, "../examples/runner-python")
		}},
	{name: "rrq-python", mute: true, noFunction: "No handler registered for function 'nobody'",
		config: func(t *testing.T, c *RunnerConfig) {
			library := given(t, rrqPythonEnv, "the directory that holds the Python package rrq")
			c.Cmd = []string{program(t, "python3"), "-m", "rrq.runner_runtime", "--settings", "rrqpython.settings"}
			c.Env["PYTHONPATH"] = library + ":" + absolute(t, "testdata/peers")
		}},
	{name: "rrq-ts", rounds: true, fence: true, mute: true, noFunction: "Handler not found",
		config: func(t *testing.T, c *RunnerConfig) {
			c.Env[rrqNodeEnv] = given(t, rrqNodeEnv, "rrq-ts/src/runner_runtime.ts, translated to JavaScript")
			c.Cmd = []string{program(t, "node"), "testdata/peers/rrqnode.mjs"}
		}},
	{name: "rrq-rust", noFunction: "No handler registered for function 'nobody'",
		config: func(t *testing.T, c *RunnerConfig) {
			c.Cmd = []string{given(t, rrqRustEnv, "testdata/peers/rrqrust.rs, built with the crate rrq-runner")}
		}},
}

// given is a path of the environment.
func given(t *testing.T, variable, what string) string {
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

func TestPeers(t *testing.T) {
	for _, p := range peers {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig("", func(c *RunnerConfig) {
				c.MaxInFlight, c.CancelGrace = 4, few(2)
				c.Env = map[string]string{nodeMode: "", "PYTHONDONTWRITEBYTECODE": "1"}
				p.config(t, c)
			})
			cfg.ConnectTimeoutMS = patience.Milliseconds()
			y := startYard(t, cfg)
			y.awaitOffer(4)
			p.answers(y)
			p.knowsItsContext(y)
			p.stops(y)
			if s := y.Status()[0].Members[0]; s.Restarts != 0 {
				t.Errorf("so far nothing should have cost the process: %+v", s)
			}
			p.breaks(y)
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

// ask runs a job with params to its outcome.
func (y *yard) ask(function, params string, change func(*job.Assignment)) job.Outcome {
	y.t.Helper()
	y.send(function, params, change)
	return y.awaitOutcome()
}

func (y *yard) send(function, params string, change func(*job.Assignment)) job.Assignment {
	y.t.Helper()
	y.n++
	a := assignment(y.n, function, y.awaitWorker())
	if change != nil {
		change(&a)
	}
	spec := specOf(params)
	spec.Trace = map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	if !y.Start(a, spec) {
		y.t.Fatalf("%s does not start at %s: %+v", function, a.Worker, y.Status())
	}
	return a
}

// awaitWorker waits until there is a worker with any room.
func (y *yard) awaitWorker() string {
	y.t.Helper()
	late := time.After(patience)
	for {
		y.hands.mu.Lock()
		changed := y.changed
		for w, n := range y.offers {
			if n > 0 {
				y.hands.mu.Unlock()
				return w
			}
		}
		y.hands.mu.Unlock()
		select {
		case <-changed:
		case <-late:
			y.t.Fatalf("nobody has room: %+v", y.Status())
		}
	}
}

// answers: each outcome that a handler can have.
func (p *peer) answers(y *yard) {
	params := `{"n":9007199254740993,"f":0.1,"t":"ä","deep":[{"null":null}]}`
	o := y.ask("echo", params, nil)
	y.expect(o, job.Success, true, "")
	if p.rounds {
		params = strings.Replace(params, "993", "992", 1)
	}
	if !sameJSON(o.Result.Data, params) {
		y.t.Errorf("echo gives %s", o.Result.Data)
	}
	y.expect(y.ask("fail", `{"message":"x"}`, nil), job.Error, true, "x")
	o = y.ask("nobody", `{}`, nil)
	y.expect(o, job.Error, true, p.noFunction)
	if o.Fault == nil || o.Fault.Type != job.HandlerNotFound {
		y.t.Errorf("fault is %+v", o.Fault)
	}
	o = y.ask("retry", `{"times":1,"after":0.25}`, nil)
	if o.Status != job.Retry || o.RetryAfter == nil || *o.RetryAfter != 250*time.Millisecond {
		y.t.Errorf("retry gives %+v", o)
	}
	if o = y.ask("retry", `{"times":1}`, nil); o.Status != job.Retry || o.RetryAfter != nil {
		y.t.Errorf("retry without a time gives %+v", o)
	}
	again := func(a *job.Assignment) { a.Attempt = 2 }
	if o = y.ask("retry", `{"times":1}`, again); !sameJSON(o.Result.Data, `{"attempt":2}`) {
		y.t.Errorf("second attempt gives %+v", o)
	}
	o = y.ask("big", `{"bytes":15000000}`, nil)
	y.expect(o, job.Success, true, "")
	if len(o.Result.Data) != 15000002 {
		y.t.Errorf("large result has %d bytes", len(o.Result.Data))
	}
	if p.name == "example" {
		return
	}
	o = y.ask("detailed", `{}`, nil)
	y.expect(o, job.Error, true, "m")
	if f := o.Fault; f == nil || f.Type != "t" || f.Code != "c" || !sameJSON(f.Details, `{"n":1}`) {
		y.t.Errorf("fault is %+v", o.Fault)
	}
}

// knowsItsContext: what we tell of the job is read as it was meant.
func (p *peer) knowsItsContext(y *yard) {
	begin := time.Now()
	o := y.ask("context", `{}`, func(a *job.Assignment) { a.Attempt, a.Fence = 3, 1<<40 })
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
	if c.Attempt != 3 || c.Queue != "q" || len(c.Trace) != 1 || in < 9*time.Second || p.fence && c.Fence != 1<<40 {
		y.t.Errorf("context is %s", o.Result.Data)
	}
}

// stops: deadlines and cancels end handlers that heed them, each its own one.
func (p *peer) stops(y *yard) {
	if o := y.ask("sleep", `{"ms":600000}`, within(500*time.Millisecond)); o.Status != job.TimedOut {
		y.t.Errorf("sleep past its deadline gives %s %+v", o.Status, o.Fault)
	}
	var sent [4]job.Assignment
	for i := range sent {
		sent[i] = y.send("sleep", `{"ms":600000}`, nil)
	}
	for _, i := range []int{2, 0, 3, 1} {
		y.awaitSent(sent[i])
		y.Stop(sent[i].Job, sent[i].N, job.RecallCancelled)
		o := y.awaitOutcome()
		y.expect(o, job.Cancelled, true, "Job cancelled")
		if o.Job != sent[i].Job {
			y.t.Errorf("%s was cancelled, not %s", o.Job, sent[i].Job)
		}
	}
}

// breaks: what goes wrong costs an attempt or the process, and nothing waits
// for ever.
func (p *peer) breaks(y *yard) {
	o := y.ask("big", `{"bytes":17000000}`, nil)
	if o.Status != job.Error || o.Fault == nil {
		y.t.Errorf("too large a result gives %s %+v", o.Status, o.Fault)
	}
	if p.name != "rrq-rust" { // every value that it has can be sent
		o = y.ask("unsendable", `{}`, within(time.Second))
		if p.mute && o.Status != job.TimedOut || !p.mute && o.Status != job.Error {
			y.t.Errorf("a result that cannot be sent gives %s %+v", o.Status, o.Fault)
		}
	}
	o = y.ask("crash", `{"code":7}`, nil)
	if o.Status != job.Lost || !strings.HasSuffix(o.Fault.Message, "ended: exit status 7") {
		y.t.Errorf("crash gives %s %+v", o.Status, o.Fault)
	}
	if o = y.ask("hang", `{}`, within(time.Second)); o.Status != job.TimedOut {
		y.t.Errorf("hang gives %s %+v", o.Status, o.Fault)
	}
	y.expect(y.ask("echo", `{}`, nil), job.Success, true, "")
}

// sameJSON compares values; numbers digit by digit.
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
