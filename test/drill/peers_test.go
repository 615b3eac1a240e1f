package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// rrqRuntimes returns pools of third-party runners, in TOML, by name: the Python
// example, and the RRQ runtimes that the environment names (see CONTRIBUTING.md).
func rrqRuntimes(t *testing.T) map[string]string {
	t.Helper()
	abs := func(path string) string {
		path, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	handlers := abs(filepath.Join("..", "..", "runnerpool", "testdata", "peers"))
	pools := make(map[string]string)
	add := func(name, program string, env map[string]string, args ...string) {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("no pool %s: %v", name, err)
			return
		}
		cmd, err := json.Marshal(append([]string{program}, args...))
		if err != nil {
			t.Fatal(err)
		}
		table := fmt.Sprintf("[rrq.runners.%s]\ncmd = %s\npool_size = 1\nmax_in_flight = 4\n[rrq.runners.%s.env]\n", name, cmd, name)
		for k, v := range env {
			table += fmt.Sprintf("%s = %q\n", k, v)
		}
		pools[name] = table
	}
	add("example", "python3", nil, abs(filepath.Join("..", "..", "examples", "runner-python", "runner.py")))
	if library := os.Getenv("YARD_RRQ_PYTHON"); library != "" {
		add("python", "python3", map[string]string{"PYTHONPATH": abs(library) + ":" + handlers, "PYTHONDONTWRITEBYTECODE": "1"},
			"-m", "rrq.runner_runtime", "--settings", "rrqpython.settings")
	}
	if runtime := os.Getenv("YARD_RRQ_TS"); runtime != "" {
		add("ts", "node", map[string]string{"YARD_RRQ_TS": abs(runtime)}, filepath.Join(handlers, "rrqnode.mjs"))
	}
	if program := os.Getenv("YARD_RRQ_RUST"); program != "" {
		add("rust", abs(program), nil)
	}
	return pools
}

// rrqRuntimeJobs are the jobs that each pool gets, and how they must end despite kills
// of nodes and runners.
var rrqRuntimeJobs = []struct {
	function, params string
	state            string
	attempts         uint32
	result, message  string
}{
	{"sleep", `{"ms":2000}`, "completed", 1, `{"ms":2000}`, ""},
	{"echo", `{"n":[1,{"t":"x"}]}`, "completed", 1, `{"n":[1,{"t":"x"}]}`, ""},
	{"retry", `{"times":2,"after":0.05}`, "completed", 3, `{"attempt":3}`, ""},
	{"fail", `{"message":"as asked"}`, "failed", 2, "", "as asked"},
}

// rrqRuntimeRounds is how often each job is enqueued.
const rrqRuntimeRounds = 12

// TestRRQRuntimes_Failover checks that jobs of every third-party runtime end as they
// should although the authority and a runner are killed, and that no runner outlives its
// node. TestFailover_Scenarios does the same with the project's own runners.
func TestRRQRuntimes_Failover(t *testing.T) {
	if testing.Short() {
		t.Skip("starts many processes")
	}
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	pools := rrqRuntimes(t)
	if len(pools) == 0 {
		t.Skip("no runtime can run on this machine: install python3")
	}
	if _, ours := pools["example"]; ours && len(pools) == 1 {
		soakTime(t)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	config := "[scheduler]\nretry_base = \"50ms\"\nretry_max = \"500ms\"\n"
	for _, table := range pools {
		config += table
	}
	cl, err := procs.Start(ctx, procs.Options{Nodes: 3, Dir: t.TempDir(), Binary: program, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Stop()
	ids := enqueueAll(t, ctx, cl.Nodes[0], pools)
	killMidJob(t, ctx, cl)
	lost := uint32(0)
	for pool, jobs := range ids {
		for i, id := range jobs {
			want := rrqRuntimeJobs[i%len(rrqRuntimeJobs)]
			j := awaitEnd(t, ctx, cl, id)
			lost += j.Losses
			message := ""
			if j.Error != nil {
				message = j.Error.Message
			}
			if j.State != want.state || j.Attempts != want.attempts || string(j.Result) != want.result || message != want.message {
				t.Errorf("%s#%s %s: %s after %d attempts (%d dispatches, %d lost) with %s %q", pool, want.function, id,
					j.State, j.Attempts, j.Dispatches, j.Losses, j.Result, message)
			}
		}
	}
	if lost == 0 {
		t.Error("no dispatch was lost: the kills hit no running job")
	}
	runners := runnersOf(ctx, cl)
	if len(runners) == 0 {
		t.Error("no node reports runners")
	}
	cl.Stop()
	// A killed process is gone once its new parent has reaped it.
	left := func(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
	for end := time.Now().Add(2 * time.Second); slices.ContainsFunc(runners, left) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	for _, pid := range runners {
		if left(pid) {
			t.Errorf("runner %d outlives its node by 2 s", pid)
		}
	}
}

func enqueueAll(t *testing.T, ctx context.Context, n *procs.Node, pools map[string]string) map[string][]string {
	t.Helper()
	ids := make(map[string][]string)
	for range rrqRuntimeRounds {
		for pool := range pools {
			for _, j := range rrqRuntimeJobs {
				var accepted struct{ ID string }
				question := map[string]any{"function": pool + "#" + j.function, "params": json.RawMessage(j.params), "max_attempts": max(2, j.attempts)}
				if err := n.Ask(ctx, "yard.enqueue.peers", question, &accepted); err != nil {
					t.Fatal(err)
				}
				ids[pool] = append(ids[pool], accepted.ID)
			}
		}
	}
	return ids
}

// killMidJob waits until the runners of every node are busy, and kills the authority
// and a runner of another node.
func killMidJob(t *testing.T, ctx context.Context, cl *procs.Cluster) {
	t.Helper()
	var victim *procs.Node
	var runner int
	err := until(ctx, "the runners of every node are busy", func() (err error) {
		if victim, err = cl.Authority(ctx); err != nil {
			return err
		}
		for _, n := range cl.Nodes {
			s, err := n.Status(ctx)
			if err != nil {
				return err
			}
			at := slices.IndexFunc(s.Pools, func(p api.Pool) bool { return p.InFlight > 0 })
			if at < 0 {
				return fmt.Errorf("nothing is running on %s", n.Name)
			}
			if n != victim {
				runner = s.Pools[at].Members[0].PID
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	victim.Kill()
	if err := syscall.Kill(runner, syscall.SIGKILL); err != nil {
		t.Errorf("kill runner %d: %v", runner, err)
	}
	t.Logf("killed %s, the authority, and runner %d", victim.Name, runner)
}

// endedJob is the part of job.show that the test uses.
type endedJob struct {
	State      string
	Attempts   uint32
	Dispatches uint32
	Losses     uint32
	Result     json.RawMessage
	Error      *struct{ Message string }
}

func awaitEnd(t *testing.T, ctx context.Context, cl *procs.Cluster, id string) (j endedJob) {
	t.Helper()
	err := until(ctx, "job "+id+" has ended", func() error {
		var failed []string
		for _, n := range cl.Nodes {
			j = endedJob{}
			err := n.Ask(ctx, "yard.api.v1.job.show", map[string]string{"id": id}, &j)
			if err == nil && (j.State == "completed" || j.State == "failed") {
				return nil
			}
			failed = append(failed, fmt.Sprintf("%s: %s %v", n.Name, j.State, err))
		}
		return errors.New(strings.Join(failed, "; "))
	})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// runnersOf returns the pids of the runners that the answering nodes report.
func runnersOf(ctx context.Context, cl *procs.Cluster) (pids []int) {
	for _, n := range cl.Nodes {
		s, err := n.Status(ctx)
		if err != nil {
			continue // the killed node
		}
		for _, p := range s.Pools {
			for _, m := range p.Members {
				if m.PID != 0 {
					pids = append(pids, m.PID)
				}
			}
		}
	}
	return pids
}
