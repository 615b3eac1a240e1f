package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
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
	body := jobBody("", due)
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
