package runnerpool

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// recorder is an executor that records all calls.
type recorder struct {
	mu       sync.Mutex
	offers   map[string]int
	changed  chan struct{}
	outcomes chan job.Outcome
	notes    chan job.WorkerEvent
	lines    []job.LogLine
}

func newRecorder() *recorder {
	return &recorder{offers: make(map[string]int), changed: make(chan struct{}), outcomes: make(chan job.Outcome, 1024), notes: make(chan job.WorkerEvent, 1024)}
}

func (r *recorder) Offer(o job.Offer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offers[o.Worker] = o.Free
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) Report(o job.Outcome, then func(job.Settled)) { r.outcomes <- o }

func (r *recorder) Stalled(worker, reason string) {
	r.notes <- job.WorkerEvent{Worker: worker, Stalled: true, Detail: reason}
}

func (r *recorder) Recovered(worker, recovery string) {
	r.notes <- job.WorkerEvent{Worker: worker, Detail: recovery}
}

func (r *recorder) awaitNote() job.WorkerEvent {
	select {
	case n := <-r.notes:
		return n
	case <-time.After(testTimeout):
		panic("no note")
	}
}

func (r *recorder) Log(l job.LogLine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, l)
}

// logLines returns the lines of job logs so far.
func (r *recorder) logLines() []job.LogLine {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// testTimeout is how long a test waits for a condition before it fails.
const testTimeout = time.Minute

// awaitOffer waits until a worker offers the given number of slots and returns
// its name.
func (r *recorder) awaitOffer(free int) string {
	late := time.After(testTimeout)
	for {
		r.mu.Lock()
		for w, n := range r.offers {
			if n == free && n > 0 || free == 0 && len(r.offers) == 1 && n == 0 {
				r.mu.Unlock()
				return w
			}
		}
		offers, changed := fmt.Sprint(r.offers), r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-late:
			panic(fmt.Sprintf("no offer of %d; have %s", free, offers))
		}
	}
}

func (r *recorder) awaitOutcome() job.Outcome {
	select {
	case o := <-r.outcomes:
		return o
	case <-time.After(testTimeout):
		panic("no outcome")
	}
}

// harness is a node's pools under test.
type harness struct {
	*Pools
	*recorder
	t    *testing.T
	n    int
	stop context.CancelFunc
	done chan error
}

func ptr(s float64) *float64 { return &s }

// testConfig returns the configuration of one pool "r" with one process of this
// test binary.
func testConfig(mode string, change func(*RunnerConfig)) Config {
	if mode == "" {
		mode = "good"
	}
	r := RunnerConfig{
		Cmd: []string{os.Args[0]}, PoolSize: 1, MaxInFlight: 1, CancelGrace: ptr(0.1),
		Env: map[string]string{runnerMode: mode, nodeMode: ""},
	}
	if change != nil {
		change(&r)
	}
	return Config{Runners: map[string]RunnerConfig{"r": r}, TermGrace: ptr(0.3), ShutdownGrace: ptr(0.1)}
}

func startHarness(t *testing.T, cfg Config) *harness {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	return runHarness(t, cfg, slog.New(slog.DiscardHandler))
}

func runHarness(t *testing.T, cfg Config, log *slog.Logger) *harness {
	t.Helper()
	r := newRecorder()
	ctx, stop := context.WithCancel(context.Background())
	h := &harness{Pools: New(cfg, "n", r, log), recorder: r, t: t, stop: stop, done: make(chan error, 1)}
	go func() { h.done <- h.Run(ctx) }()
	t.Cleanup(h.close)
	return h
}

// close stops the pools and checks that no process is left.
func (h *harness) close() {
	h.stop()
	select {
	case err := <-h.done:
		h.done <- nil
		if err != nil {
			h.t.Errorf("run: %v", err)
		}
	case <-time.After(testTimeout):
		h.t.Fatalf("pools do not stop: %+v", h.Status())
	}
	for pid := range processes() {
		if strings.HasPrefix(markerOf(pid), h.groups.marker) {
			awaitGone(h.t, pid, 2*time.Second) // it may be exiting
		}
	}
}

func assignment(n int, function, worker string) job.Assignment {
	var id job.ID
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return job.Assignment{Job: id, N: 1, Attempt: 1, Queue: "q", Function: "r#" + function, Kind: job.RRQ, Key: "r",
		Worker: worker, Fence: uint64(n), Timeout: 10 * time.Second, Accepted: time.Now()}
}

func specOf(params string) job.Spec { return job.Spec{Params: json.RawMessage(params)} }

// start starts a job on the next free worker.
func (h *harness) start(function string, change func(*job.Assignment)) job.Assignment {
	h.t.Helper()
	h.n++
	a := assignment(h.n, function, h.awaitOffer(h.slots()))
	if change != nil {
		change(&a)
	}
	if !h.Start(a, specOf(`{"n":9007199254740993}`)) {
		h.t.Fatalf("%s does not start at %s: %+v", function, a.Worker, h.Status())
	}
	return a
}

// slots returns the free slots of the only worker.
func (h *harness) slots() int { return h.cfg.Runners["r"].MaxInFlight }

// run runs a job and returns its outcome.
func (h *harness) run(function string, change func(*job.Assignment)) job.Outcome {
	h.t.Helper()
	a := h.start(function, change)
	o := h.awaitOutcome()
	if o.Job != a.Job || o.N != a.N {
		h.t.Fatalf("outcome is of %s, not %s", job.RequestID(o.Job, o.N), a.RequestID())
	}
	return o
}

func (h *harness) expect(o job.Outcome, status job.Status, started bool, text string) {
	h.t.Helper()
	got := ""
	if o.Fault != nil {
		got = o.Fault.Message
	}
	if o.Status != status || o.Started != started || got != text {
		h.t.Errorf("outcome is %s (started %t) %q, want %s (started %t) %q", o.Status, o.Started, got, status, started, text)
	}
}

// pid returns the pid of the current runner.
func (h *harness) pid() string { h.t.Helper(); return string(h.run("pid", nil).Result.Data) }

func withTimeout(d time.Duration) func(*job.Assignment) {
	return func(a *job.Assignment) { a.Timeout = d }
}

// awaitGone waits until a process has ended.
func awaitGone(t *testing.T, pid int, d time.Duration) {
	t.Helper()
	late, tick := time.After(d), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		if s, ok := readStat(pid); !ok || s.state == 'Z' || syscall.Kill(pid, 0) != nil {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("process %d still runs after %s", pid, d)
		}
	}
}
