package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// shape is the shape of a pool: the number of processes, and of concurrent requests on
// each.
type shape struct{ processes, inFlight int }

func (s shape) String() string { return fmt.Sprintf("%dx%d", s.processes, s.inFlight) }

func (s shape) slots() int { return s.processes * s.inFlight }

// dialect is the language of a runner.
type dialect string

const (
	golang dialect = "go"
	python dialect = "py"
)

// pythonRunner is the path of the example runner, relative to the working directory or
// to the parent of the program's directory.
var pythonRunner = filepath.Join("examples", "runner-python", "runner.py")

// command returns the command line of a runner, or a skippedError if this machine
// cannot run it.
func (d dialect) command(binary string) ([]string, error) {
	if d == golang {
		return []string{binary, "runner"}, nil
	}
	interpreter, err := exec.LookPath("python3")
	if err != nil {
		return nil, &skippedError{"python3 is not installed"}
	}
	for _, root := range []string{".", filepath.Dir(filepath.Dir(binary))} {
		path, err := filepath.Abs(filepath.Join(root, pythonRunner))
		if err == nil {
			_, err = os.Stat(path)
		}
		if err == nil {
			return []string{interpreter, path}, nil
		}
	}
	return nil, &skippedError{pythonRunner + " is not below the working directory"}
}

// skippedError reports why a figure cannot be measured on this machine. Other figures
// are still measured.
type skippedError struct{ reason string }

func (e *skippedError) Error() string { return "skipped: " + e.reason }

// runnerPeer is the processes of a pool, without a node.
type runnerPeer struct {
	addrs []string
	run   []*procs.Process
}

// startRunners starts n bare runners and returns when all of them listen.
func startRunners(t *task, cmd []string, n int) *runnerPeer {
	p, dir := &runnerPeer{addrs: must.Get(freeport.Addresses(n))}, t.newDir()
	for i, addr := range p.addrs {
		p.run = append(p.run, t.start("runner"+strconv.Itoa(i+1), dir, []string{"RRQ_RUNNER_TCP_SOCKET=" + addr}, cmd))
	}
	for i, addr := range p.addrs {
		t.await("the runner listens", func() error {
			nc, err := net.DialTimeout("tcp", addr, time.Second)
			if err == nil {
				nc.Close()
			}
			return err
		}, p.run[i])
	}
	return p
}

func (p *runnerPeer) cpu() time.Duration { return cpuOf(p.run...) }

// stampRunner runs a runner whose only handler returns the time at which it began, in
// nanoseconds since 1970. If file is not "", it also appends a line with the due time
// from the params and this time to it.
func stampRunner(ctx context.Context, file string) error {
	ln, err := net.Listen("tcp", os.Getenv("RRQ_RUNNER_TCP_SOCKET"))
	if err != nil {
		return fmt.Errorf("listen for requests: %w", err)
	}
	var starts *os.File
	if file != "" {
		if starts, err = os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			return fmt.Errorf("open the file of starts: %w", err)
		}
		defer starts.Close()
	}
	return rrq.Serve(ctx, ln, func(_ context.Context, r *rrq.Request) rrq.Outcome {
		stamp := strconv.AppendInt(nil, time.Now().UnixNano(), 10)
		if starts != nil {
			var p struct {
				Due int64 `json:"due"`
			}
			if err := json.Unmarshal(r.Params, &p); err != nil {
				return rrq.Outcome{Status: rrq.Error, Fault: &rrq.Fault{Message: err.Error()}}
			}
			if _, err := fmt.Fprintf(starts, "%d %s\n", p.Due, stamp); err != nil {
				return rrq.Outcome{Status: rrq.Error, Fault: &rrq.Fault{Message: err.Error()}}
			}
		}
		return rrq.Outcome{Status: rrq.Success, Result: stamp}
	})
}

// stampCommand returns the command line of a stamping runner.
func stampCommand(binary, file string) []string {
	return peerOptions{Name: "runner", Stamps: true, Starts: file}.command(binary)
}

// readStarts reads the file of stamping runners. It returns the earliest begin of a
// handler, in nanoseconds since 1970, by due time.
func readStarts(file string) (map[int64]int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	starts := make(map[int64]int64)
	for line := range strings.Lines(string(text)) {
		var due, at int64
		if _, err := fmt.Sscan(line, &due, &at); err != nil {
			return nil, fmt.Errorf("line %q of starts: %w", line, err)
		}
		if before, again := starts[due]; !again || at < before {
			starts[due] = at
		}
	}
	return starts, nil
}

// wires is a set of connections to bare runners, with one request at a time on each.
type wires struct {
	conns []*rrq.Conn
	calls []int // number of calls on each connection
}

func dialRunners(t *task, p *runnerPeer, each int) *wires {
	w := &wires{calls: make([]int, each*len(p.addrs))}
	for i := range w.calls {
		c := must.Get(rrq.Dial(t, p.addrs[i/each]))
		t.cleanup(func() { _ = c.Close() }) // no request is running
		w.conns = append(w.conns, c)
	}
	return w
}

// call sends one request on connection i and returns its result.
func (w *wires) call(ctx context.Context, i int, function string, due int64) ([]byte, error) {
	w.calls[i]++
	id := fmt.Sprintf("019aa000-0000-7000-8000-%06d%06d", i, w.calls[i]%1_000_000)
	o, err := w.conns[i].Do(ctx, &rrq.Request{
		RequestID: id + "#1", JobID: id, Function: function, Params: paramsOf(due),
		Context: rrq.Context{JobID: id, Attempt: 1, EnqueueTime: time.Now(), QueueName: queueRRQ, Deadline: time.Now().Add(5 * time.Minute), WorkerID: "bench"},
	})
	if err == nil && o.Status != rrq.Success {
		err = fmt.Errorf("the runner answered %s", o.Status)
	}
	return o.Result, err
}

// paramsOf returns the params of a job's record.
func paramsOf(due int64) json.RawMessage {
	body := jobBody("", "", due)
	return body[len(`{"params":`) : len(body)-1]
}

// saturate measures the maximum rate of requests to bare runners, with a connection
// for each slot.
func saturate(t *task, cmd []string, s shape, d time.Duration) round {
	p := startRunners(t, cmd, s.processes)
	w := dialRunners(t, p, s.inFlight)
	faults := make([]error, len(w.conns))
	m, began := startMeter(p.cpu), time.Now()
	var callers sync.WaitGroup
	for i := range w.conns {
		callers.Go(func() {
			for faults[i] == nil && time.Since(began) < d {
				_, faults[i] = w.call(t, i, "echo", 0)
			}
		})
	}
	callers.Wait()
	took := time.Since(began)
	sum := 0
	for _, n := range w.calls {
		sum += n
	}
	must.Do(errors.Join(faults...))
	return m.end(round{value: float64(sum) / took.Seconds(), jobs: sum, settled: sum})
}

// The latency that a node itself adds to a request is measured in this process: with
// an agent and a pool as in a node, between an authority that answers at once and a
// real runner process. The floor is a bare connection to such a runner.

// sideSlots is the number of slots of that runner.
const sideSlots = 64

// latencies are the latencies of requests through a node, or over a bare connection:
// until the handler began, and from then until the outcome was sent to the authority,
// or the answer read.
type latencies struct{ there, back []float64 } // µs

func (g *latencies) add(began, handled, ended time.Time) {
	g.there = append(g.there, float64(handled.Sub(began))/1e3)
	g.back = append(g.back, float64(ended.Sub(handled))/1e3)
}

func (g *latencies) rounds() (there, back round) { return latencyRound(g.there), latencyRound(g.back) }

// stampOf parses the result of a stamping runner.
func stampOf(result []byte) (time.Time, error) {
	ns, err := strconv.ParseInt(string(result), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("the runner's result %.40q is not a time: %w", result, err)
	}
	return time.Unix(0, ns), nil
}

// directLatencies measures requests over bare connections, one request at a time on
// each, at a rate.
func directLatencies(t *task, program string, rate int, d time.Duration) (g latencies) {
	w := dialRunners(t, startRunners(t, stampCommand(program, ""), 1), sideSlots)
	idle := make(chan int, sideSlots)
	for i := range sideSlots {
		idle <- i
	}
	var mu sync.Mutex
	var fault error
	var calls sync.WaitGroup
	defer calls.Wait()
	paced(t, time.Now(), rate, during(d), func(int, time.Duration) {
		i := <-idle
		calls.Go(func() {
			began := time.Now()
			result, err := w.call(t, i, "echo", 0)
			ended := time.Now()
			var handled time.Time
			if err == nil {
				handled, err = stampOf(result)
			}
			mu.Lock()
			if err != nil {
				fault = err
			} else {
				g.add(began, handled, ended)
			}
			mu.Unlock()
			idle <- i
		})
	})
	calls.Wait()
	must.Do(fault)
	return g
}

// fakeCluster is an authority that answers at once. It records the time of each
// outcome.
type fakeCluster struct {
	never  chan struct{}
	offers chan job.Offer // receives the first offer with free slots

	mu    sync.Mutex
	began map[job.ID]time.Time
	legs  latencies
	fault error
	ended atomic.Int64
}

func (d *fakeCluster) Authority() (string, uint64, bool) { return "authority", 1, true }
func (d *fakeCluster) AuthorityChanged() <-chan struct{} { return d.never }
func (d *fakeCluster) LoadBody(context.Context, job.Position, job.ID) ([]byte, error) {
	return nil, agent.ErrBodyLost
}
func (d *fakeCluster) StoreError(context.Context, job.ID, *job.AttemptError) error { return nil }
func (d *fakeCluster) StoreResult(context.Context, string, []byte) (job.Blob, error) {
	return job.Blob{}, agent.ErrBodyLost
}
func (d *fakeCluster) Heartbeat(context.Context, string, job.Heartbeat) (job.HeartbeatAck, error) {
	return job.HeartbeatAck{Epoch: 1, Lease: time.Hour}, nil
}

// Report implements agent.Transport. It passes on the first offer with free slots, and
// records the times of the outcomes.
func (d *fakeCluster) Report(_ context.Context, _ string, r job.Report) (job.ReportAck, error) {
	now := time.Now()
	for _, o := range r.Offers {
		if o.Free > 0 {
			select {
			case d.offers <- o:
			default: // not the first
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		handled, err := stampOf(o.Result.Data)
		if err != nil || o.Status != job.Success {
			d.fault = fmt.Errorf("%s %v: %w", o.Status, o.Fault, err)
		} else {
			d.legs.add(d.began[o.Job], handled, now)
		}
		delete(d.began, o.Job)
		d.ended.Add(1)
	}
	return job.ReportAck{Epoch: 1, Settled: make([]job.Settled, len(r.Outcomes))}, nil
}

// silentAgent is an agent that drops the logs of jobs.
type silentAgent struct{ *agent.Agent }

func (silentAgent) Log(job.LogLine) {}

// agentLatencies measures the latencies of requests through an agent and a pool.
func agentLatencies(t *task, program string, rate int, d time.Duration) latencies {
	quiet := slog.New(slog.DiscardHandler)
	dk := &fakeCluster{never: make(chan struct{}), offers: make(chan job.Offer, 1), began: make(map[job.ID]time.Time)}
	a := agent.New(agent.Config{Node: "bench"}, dk, quiet)
	pools := runnerpool.New(runnerpool.Config{Runners: map[string]runnerpool.RunnerConfig{"bench": {
		Cmd: stampCommand(program, ""), SocketVia: runnerpool.SocketEnv, PoolSize: 1, MaxInFlight: sideSlots,
	}}}, "bench", silentAgent{a}, quiet)
	a.AddTarget(pools)
	running, stop := context.WithCancel(t)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	faults := make([]error, 2)
	parts.Go(func() { faults[0] = a.Run(running) })
	parts.Go(func() { faults[1] = pools.Run(running) })
	dk.measure(t, a, rate, d)
	stop()
	parts.Wait()
	must.Do(errors.Join(dk.fault, faults[0], faults[1]))
	return dk.legs
}

// measure assigns jobs when they are due, and waits for their outcomes.
func (d *fakeCluster) measure(t *task, a *agent.Agent, rate int, length time.Duration) {
	var offer job.Offer
	select {
	case offer = <-d.offers:
	case <-time.After(waitTimeout):
		must.Do(fmt.Errorf("no runner was ready within %v", waitTimeout))
	case <-t.Done():
		must.Do(t.Err())
	}
	body := jobBody("bench#noop", "", 0)
	assigned, refused := 0, 0
	paced(t, time.Now(), rate, during(length), func(i int, _ time.Duration) {
		assigned++
		var id job.ID
		binary.BigEndian.PutUint64(id[8:], uint64(i)+1)
		assignment := job.Assignment{Job: id, N: 1, Attempt: 1, Queue: queueRRQ, Function: "bench#noop", Kind: offer.Kind, Key: offer.Key,
			Worker: offer.Worker, Fence: uint64(i), Timeout: 5 * time.Minute, Accepted: time.Now(), Body: body}
		began := time.Now()
		d.mu.Lock()
		d.began[id] = began
		d.mu.Unlock()
		if answers := a.Assign(job.AssignmentBatch{Epoch: 1, Number: uint64(i) + 1, Assignments: []job.Assignment{assignment}}); answers[0] != job.Taken {
			refused++
		}
	})
	if refused > 0 {
		must.Do(fmt.Errorf("%d of %d assignments found no free slot: the machine is too busy for %d/s", refused, assigned, rate))
	}
	must.Do(until(t, waitTimeout, func() bool { return d.ended.Load() == int64(assigned) }))
}
