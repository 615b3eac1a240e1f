package drill

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"yardmaster/internal/scenario/sequential"
)

// TestMain makes this program a runner where a drill asks for one.
func TestMain(m *testing.M) {
	if os.Getenv(sequentialEnv) != "" {
		fmt.Fprintln(os.Stderr, sequential.Main(os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// binary is the program to break: YARD_BIN, or one that is built for the test.
var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("YARD_BIN"); path != "" {
		return filepath.Abs(path)
	}
	dir, err := os.MkdirTemp("", "yardmaster-drill-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "yardmaster")
	build := exec.Command("go", "build", "-o", path, "yardmaster/cmd/node")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w: %s", err, said)
	}
	return path, nil
})

// stage is a yard in a test's own directory, ready for work, with the queues
// free, limited (strictly, to 3 at once) and rrq.
func stage(t *testing.T, patience time.Duration) (*Yard, context.Context) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts three processes")
	}
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	dir := t.TempDir()
	if keep := os.Getenv("YARD_DRILL_DIR"); keep != "" { // to look at afterwards
		if dir, err = os.MkdirTemp(keep, strings.ReplaceAll(t.Name(), "/", "-")+"-"); err != nil {
			t.Fatal(err)
		}
	}
	y, err := New(dir, program)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range y.Nodes {
				t.Logf("%s says:\n%s", n.Name, tail(n.Log(), 40))
			}
		}
		y.Close()
		cancel()
	})
	began := time.Now()
	if err := y.Open(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s", time.Since(began).Round(time.Millisecond))
	for queue, limit := range map[string]int{"free": 0, "limited": strict, "rrq": 0} {
		if err := y.AddQueue(ctx, queue, limit); err != nil {
			t.Fatal(err)
		}
	}
	return y, ctx
}

// strict is the limit of the queue "limited".
const strict = 3

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// work starts worker processes for a queue.
func work(t *testing.T, y *Yard, queue string, processes int, credits uint32, hold time.Duration) []*Process {
	t.Helper()
	var started []*Process
	for range processes {
		p, err := y.AddWorker(Task{Nodes: y.Edges(), Queue: queue, Credits: credits, Hold: hold})
		if err != nil {
			t.Fatal(err)
		}
		started = append(started, p)
	}
	return started
}

// publish runs loads at once.
func publish(t *testing.T, ctx context.Context, y *Yard, loads ...*Load) {
	t.Helper()
	var all sync.WaitGroup
	for _, l := range loads {
		all.Go(func() {
			if err := l.Run(ctx, y); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// judge waits for all ends and requires that nothing is lost, doubled,
// missing or beyond a limit.
func judge(t *testing.T, ctx context.Context, y *Yard, loads ...*Load) Verdict {
	t.Helper()
	if err := y.Await(ctx, loads...); err != nil {
		t.Fatal(err)
	}
	v, err := y.Judge(ctx, loads...)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(v.String())
	for _, flaw := range v.Flaws() {
		t.Error(flaw)
	}
	if v.MostAtOnce["limited"] > strict {
		t.Errorf("%d jobs of a queue with limit %d ran at once", v.MostAtOnce["limited"], strict)
	}
	return v
}

// killAuthority ends whoever decides with SIGKILL and gives it; nil if nobody
// did until ctx ended.
func killAuthority(t *testing.T, ctx context.Context, y *Yard) (victim *Node) {
	t.Helper()
	err := until(ctx, "there is an authority", func() (err error) { victim, err = y.Authority(ctx); return err })
	if err != nil {
		t.Error(err)
		return nil
	}
	y.Kill(victim)
	t.Logf("killed %s", victim.Name)
	return victim
}

// restart starts a node again and waits until all see it.
func restart(t *testing.T, ctx context.Context, y *Yard, nodes ...*Node) {
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
	if err := y.WaitReady(ctx); err != nil {
		t.Error(err)
	}
	t.Logf("ready again after %s", time.Since(began).Round(time.Millisecond))
}

// TestFailover_KillAuthority is the promise in short, as a drill on a stage: the
// authority is killed in the middle of the work, every job ends exactly once,
// and nobody tells another story.
func TestFailover_KillAuthority(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes")
	}
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	d := Drill{Number: 2, Name: "in-short", Breaks: "kill -9 the authority", Promises: "every job ends once", Patience: 90 * time.Second,
		Run: func(ctx context.Context, s *Stage) error {
			if err := s.Steady(ctx); err != nil {
				return err
			}
			s.Begin(ctx, &Load{Queue: RunnerQueue, Prefix: "retry", Function: "demo#retry", Params: `{"times":1}`, Jobs: 50})
			n, err := s.AwaitAuthority(ctx)
			if err != nil {
				return err
			}
			s.Fault("kill", n.Name)
			s.Kill(n)
			return s.Rest(ctx, 3*time.Second)
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
		t.Errorf("too little to prove anything: %s, gaps %+v", v, r.Gaps)
	}
}

// soak skips what takes long unless it is asked for.
func soak(t *testing.T) {
	t.Helper()
	if os.Getenv("YARD_SOAK") == "" {
		t.Skip("long: set YARD_SOAK=1, or run make drill-tests")
	}
}

// TestDrill_KillWorkers: worker processes die with jobs in hand.
func TestDrill_KillWorkers(t *testing.T) {
	soak(t)
	y, ctx := stage(t, 2*time.Minute)
	doomed := work(t, y, "free", 2, 16, 50*time.Millisecond)
	work(t, y, "free", 2, 16, 2*time.Millisecond)
	free := &Load{Queue: "free", Jobs: 2000, Parallel: 8}
	free.At, free.Then = 800, func() {
		for _, p := range doomed {
			p.Kill()
		}
	}
	publish(t, ctx, y, free)
	v := judge(t, ctx, y, free)
	if v.Again == 0 {
		t.Error("no job ran again: the killed workers held none")
	}
}

// TestDrill_LostDirectory: an empty directory under a member's name is
// refused, and says what to do.
func TestDrill_LostDirectory(t *testing.T) {
	soak(t)
	y, ctx := stage(t, 2*time.Minute)
	work(t, y, "free", 1, 8, 0)
	lost := y.Nodes[1]
	y.Kill(lost)
	if err := os.RemoveAll(lost.DataDir); err != nil {
		t.Fatal(err)
	}
	if err := lost.Start(); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := lost.Wait(soon); err == nil || soon.Err() != nil {
		t.Errorf("the node ended with %v", err)
	}
	if says := tail(lost.Log(), 1); !strings.Contains(says, "another directory") {
		t.Errorf("it does not say what to do: %s", says)
	}
	free := &Load{Queue: "free", Jobs: 500, Parallel: 8}
	publish(t, ctx, y, free)
	judge(t, ctx, y, free)
}
