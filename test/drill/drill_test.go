package drill

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/program"
	"github.com/yardmaster-dev/yardmaster/test/runnerscript/sequential"
)

// TestMain turns the test binary into a runner if the environment asks for it, and
// into a worker if the first argument is WorkVerb.
func TestMain(m *testing.M) {
	if os.Getenv(sequentialEnv) != "" {
		fmt.Fprintln(os.Stderr, sequential.Main(os.Args[1:]))
		os.Exit(1)
	}
	if len(os.Args) == 3 && os.Args[1] == WorkVerb {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := Work(ctx, os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// binary returns the path of the program.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "yardmaster-drill-")
	if err != nil {
		return "", err
	}
	return program.Find(dir)
})

// newHarness starts a cluster in a temporary directory, with the queues free, limited
// (concurrency limit 3) and rrq.
func newHarness(t *testing.T, timeout time.Duration) (*Cluster, context.Context) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts three processes")
	}
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return newHarnessOf(t, program, timeout)
}

// newHarnessOf is newHarness for a program.
func newHarnessOf(t *testing.T, program string, timeout time.Duration) (*Cluster, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	dir, err := t.TempDir(), error(nil)
	if keep := os.Getenv("YARD_DRILL_DIR"); keep != "" { // keeps the files
		if dir, err = os.MkdirTemp(keep, strings.ReplaceAll(t.Name(), "/", "-")+"-"); err != nil {
			t.Fatal(err)
		}
	}
	cl, err := New(dir, program, Layout{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range cl.Nodes {
				t.Logf("log of %s:\n%s", n.Name, tail(n.Log(), 40))
			}
		}
		cl.Close()
		cancel()
	})
	began := time.Now()
	if err := cl.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s", time.Since(began).Round(time.Millisecond))
	for queue, limit := range map[string]int{"free": 0, "limited": strictLimit, "rrq": 0} {
		if err := cl.AddQueue(ctx, queue, limit); err != nil {
			t.Fatal(err)
		}
	}
	return cl, ctx
}

// strictLimit is the concurrency limit of the queue "limited".
const strictLimit = 3

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// work starts worker processes for a queue.
func work(t *testing.T, cl *Cluster, queue string, processes int, credits uint32, hold time.Duration) []*procs.Process {
	t.Helper()
	var started []*procs.Process
	for range processes {
		p, err := cl.AddWorker(Task{Nodes: cl.Edges(), Queue: queue, Credits: credits, Hold: hold})
		if err != nil {
			t.Fatal(err)
		}
		started = append(started, p)
	}
	return started
}

// publish runs loads concurrently until all jobs are acknowledged.
func publish(t *testing.T, ctx context.Context, cl *Cluster, loads ...*Load) {
	t.Helper()
	var all sync.WaitGroup
	for _, l := range loads {
		all.Go(func() {
			if err := l.Run(ctx, cl); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// judge waits until all jobs have ended and requires that none is lost or duplicated,
// that history is complete and that the limit was kept.
func judge(t *testing.T, ctx context.Context, cl *Cluster, loads ...*Load) Verdict {
	t.Helper()
	if err := cl.Await(ctx, loads...); err != nil {
		t.Fatal(err)
	}
	v, err := cl.Judge(ctx, loads...)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(v.String())
	for _, flaw := range v.Flaws() {
		t.Error(flaw)
	}
	if v.MaxConcurrent["limited"] > strictLimit {
		t.Errorf("%d jobs of a queue with limit %d ran concurrently", v.MaxConcurrent["limited"], strictLimit)
	}
	return v
}

// killAuthority kills the authority and returns it, or nil if there was none until ctx
// ended.
func killAuthority(t *testing.T, ctx context.Context, cl *Cluster) (victim *Node) {
	t.Helper()
	err := until(ctx, "there is an authority", func() (err error) { victim, err = cl.Authority(ctx); return err })
	if err != nil {
		t.Error(err)
		return nil
	}
	cl.Kill(victim)
	t.Logf("killed %s", victim.Name)
	return victim
}

// restart restarts nodes and waits until the cluster is ready.
func restart(t *testing.T, ctx context.Context, cl *Cluster, nodes ...*Node) {
	t.Helper()
	began := time.Now()
	for _, n := range nodes {
		if n == nil {
			return
		}
		if err := n.Start(); err != nil {
			t.Error(err)
			return
		}
	}
	if err := cl.WaitReady(ctx); err != nil {
		t.Error(err)
	}
	t.Logf("ready again after %s", time.Since(began).Round(time.Millisecond))
}

// TestFailover_KillAuthority is a short drill: the authority is killed under load, and
// every job must end exactly once, by all sources.
func TestFailover_KillAuthority(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes")
	}
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	d := Drill{Number: 2, Name: "in-short", Breaks: "kill -9 the authority", Promises: "every job ends once", Timeout: 90 * time.Second,
		Run: func(s *Harness) {
			s.StartSteadyLoad()
			s.StartLoads(&Load{Queue: RunnerQueue, Prefix: "retry", Function: "demo#retry", JobParams: `{"times":1}`, Jobs: 50})
			n := s.AwaitAuthority()
			s.Fault("kill", n.Name)
			s.Kill(n)
			s.Sleep(3 * time.Second)
		}}
	r := Play(t.Context(), Options{Binary: program, Dir: t.TempDir(), Seed: 1}, d)
	for _, line := range r.Timeline {
		t.Log(line)
	}
	for _, f := range r.Figures {
		t.Log(f.Name+":", f.Value)
	}
	if r.Ended != Kept {
		t.Fatalf("%s: %s %q", r.Ended, r.Unplayed, r.Broken)
	}
	if v := r.Verdict; v.Acknowledged < 200 || v.Completed != v.Acknowledged || len(r.Gaps) != 1 || r.Gaps[0].Dispatch.Max == 0 {
		t.Errorf("too few jobs for a meaningful test: %s, gaps %+v", v, r.Gaps)
	}
}

// soakTime skips a long test unless YARD_SOAK is set.
func soakTime(t *testing.T) {
	t.Helper()
	if os.Getenv("YARD_SOAK") == "" {
		t.Skip("long: set YARD_SOAK=1, or run make drill-tests")
	}
}
