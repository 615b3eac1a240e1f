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

	"yardmaster/job"
)

// hands is an agent that remembers.
type hands struct {
	mu       sync.Mutex
	offers   map[string]int
	changed  chan struct{}
	outcomes chan job.Outcome
	notes    chan job.Note
	lines    []job.LogLine
}

func newHands() *hands {
	return &hands{offers: make(map[string]int), changed: make(chan struct{}), outcomes: make(chan job.Outcome, 1024), notes: make(chan job.Note, 1024)}
}

func (h *hands) Offer(o job.Offer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.offers[o.Worker] = o.Free
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *hands) Report(o job.Outcome, then func(job.Settled)) { h.outcomes <- o }

func (h *hands) Stalled(worker, reason string) {
	h.notes <- job.Note{Worker: worker, Stalled: true, Detail: reason}
}

func (h *hands) Recovered(worker, recovery string) {
	h.notes <- job.Note{Worker: worker, Detail: recovery}
}

func (h *hands) awaitNote() job.Note {
	select {
	case n := <-h.notes:
		return n
	case <-time.After(patience):
		panic("no note")
	}
}

func (h *hands) Log(l job.LogLine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, l)
}

// said are the lines of logs so far.
func (h *hands) said() []job.LogLine {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.lines)
}

// patience is how long a test waits for a fact before it gives up.
const patience = 20 * time.Second

// awaitOffer waits until some worker offers that much room.
func (h *hands) awaitOffer(free int) string {
	late := time.After(patience)
	for {
		h.mu.Lock()
		for w, n := range h.offers {
			if n == free && n > 0 || free == 0 && len(h.offers) == 1 && n == 0 {
				h.mu.Unlock()
				return w
			}
		}
		offers, changed := fmt.Sprint(h.offers), h.changed
		h.mu.Unlock()
		select {
		case <-changed:
		case <-late:
			panic(fmt.Sprintf("no offer of %d; have %s", free, offers))
		}
	}
}

func (h *hands) awaitOutcome() job.Outcome {
	select {
	case o := <-h.outcomes:
		return o
	case <-time.After(patience):
		panic("no outcome")
	}
}

// yard is a node's pools under test.
type yard struct {
	*Pools
	*hands
	t    *testing.T
	n    int
	stop context.CancelFunc
	done chan error
}

func few(s float64) *float64 { return &s }

// testConfig is one pool "r" of one process of this test binary.
func testConfig(mode string, change func(*RunnerConfig)) Config {
	if mode == "" {
		mode = "good"
	}
	r := RunnerConfig{
		Cmd: []string{os.Args[0]}, PoolSize: 1, MaxInFlight: 1, CancelGrace: few(0.1),
		Env: map[string]string{runnerMode: mode, nodeMode: ""},
	}
	if change != nil {
		change(&r)
	}
	return Config{Runners: map[string]RunnerConfig{"r": r}, TermGrace: few(0.3), ShutdownGrace: few(0.1)}
}

func startYard(t *testing.T, cfg Config) *yard {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	return runYard(t, cfg, slog.New(slog.DiscardHandler))
}

func runYard(t *testing.T, cfg Config, log *slog.Logger) *yard {
	t.Helper()
	h := newHands()
	ctx, stop := context.WithCancel(context.Background())
	y := &yard{Pools: New(cfg, "n", h, log), hands: h, t: t, stop: stop, done: make(chan error, 1)}
	go func() { y.done <- y.Run(ctx) }()
	t.Cleanup(y.close)
	return y
}

// close stops the pools and makes sure that they have left nothing behind.
func (y *yard) close() {
	y.stop()
	select {
	case err := <-y.done:
		y.done <- nil
		if err != nil {
			y.t.Errorf("run: %v", err)
		}
	case <-time.After(patience):
		y.t.Fatalf("pools do not end: %+v", y.Status())
	}
	for pid := range processes() {
		if strings.HasPrefix(markerOf(pid), y.roster.marker) {
			awaitGone(y.t, pid, 2*time.Second) // it may just be dying
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

// begin starts a job on the next free worker.
func (y *yard) begin(function string, change func(*job.Assignment)) job.Assignment {
	y.t.Helper()
	y.n++
	a := assignment(y.n, function, y.awaitOffer(y.free()))
	if change != nil {
		change(&a)
	}
	if !y.Start(a, specOf(`{"n":9007199254740993}`)) {
		y.t.Fatalf("%s does not start at %s: %+v", function, a.Worker, y.Status())
	}
	return a
}

// free is the room of the one idle worker.
func (y *yard) free() int { return y.cfg.Runners["r"].MaxInFlight }

// do runs a job to its outcome.
func (y *yard) do(function string, change func(*job.Assignment)) job.Outcome {
	y.t.Helper()
	a := y.begin(function, change)
	o := y.awaitOutcome()
	if o.Job != a.Job || o.N != a.N {
		y.t.Fatalf("outcome is of %s, not %s", job.RequestID(o.Job, o.N), a.RequestID())
	}
	return o
}

func (y *yard) expect(o job.Outcome, status job.Status, started bool, text string) {
	y.t.Helper()
	got := ""
	if o.Fault != nil {
		got = o.Fault.Message
	}
	if o.Status != status || o.Started != started || got != text {
		y.t.Errorf("outcome is %s (started %t) %q, want %s (started %t) %q", o.Status, o.Started, got, status, started, text)
	}
}

// pid is that of the runner that answers now.
func (y *yard) pid() string { y.t.Helper(); return string(y.do("pid", nil).Result.Data) }

func within(d time.Duration) func(*job.Assignment) {
	return func(a *job.Assignment) { a.Timeout = d }
}

// awaitGone waits for the end of a process.
func awaitGone(t *testing.T, pid int, d time.Duration) {
	t.Helper()
	late, tick := time.After(d), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		if s, ok := stat(pid); !ok || s.state == 'Z' || syscall.Kill(pid, 0) != nil {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("process %d lives after %s", pid, d)
		}
	}
}
