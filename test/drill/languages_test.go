package drill

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// mixedJob is a job of a queue with workers in several languages.
type mixedJob struct {
	N int `json:"n"`
}

func (mixedJob) Kind() string  { return "" }
func (mixedJob) Queue() string { return "mixed" }

// mixedResult is its result.
type mixedResult struct {
	By string `json:"by"` // the language of the worker
	N  int    `json:"n"`
}

// typescriptProcess starts a script that imports the TypeScript client and connects to the
// nodes. It returns nil if there is no Node, or the client is not built.
func typescriptProcess(t *testing.T, cl *Cluster, name, script string, args ...string) *procs.Process {
	t.Helper()
	module, err := filepath.Abs(filepath.Join("..", "..", "clients", "typescript", "build", "src", "index.js"))
	if err != nil {
		t.Fatal(err)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Log("without a worker in TypeScript: no node on this machine")
		return nil
	}
	if _, err := os.Stat(module); err != nil {
		t.Log("without a worker in TypeScript, which `make typescript` builds:", err)
		return nil
	}
	p := &procs.Process{
		Name: name, LogFile: filepath.Join(cl.Dir, name+".log"), Args: append([]string{node, script}, args...),
		Env: []string{"YARD_TYPESCRIPT=file://" + module, "OVERHOP_NODES=" + strings.Join(cl.Edges(), ",")},
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("output of %s:\n%s", name, tail(p.Log(), 40))
		}
	})
	return p
}

// TestLanguages runs workers in Go, Python and TypeScript on one queue while nodes are killed,
// and a worker of each language is killed and started again. Every job must complete once, and
// each language must have run some.
func TestLanguages(t *testing.T) {
	cl, ctx := newHarness(t, 3*time.Minute)
	c, err := client.Connect(ctx, cl.Edges()...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Queues().Create(ctx, "mixed"); err != nil {
		t.Fatal(err)
	}
	languages := map[string]*atomic.Int64{"go": {}, "python": {}}
	workers := []*procs.Process{pythonProcess(t, cl, "mixed-python", filepath.Join("testdata", "python", "mixed.py"))}
	if p := typescriptProcess(t, cl, "mixed-typescript", filepath.Join("testdata", "typescript", "mixed.mjs")); p != nil {
		workers = append(workers, p)
		languages["typescript"] = &atomic.Int64{}
	}
	w := c.Worker()
	w.Concurrency = 4
	client.Handle(w, func(ctx context.Context, job *client.Job[mixedJob]) (mixedResult, error) {
		time.Sleep(50 * time.Millisecond)
		return mixedResult{By: "go", N: job.Args.N}, nil
	})
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	const jobs = 1500
	var ended atomic.Int64
	var callers sync.WaitGroup
	for i := range jobs {
		callers.Go(func() {
			got, err := client.Call[mixedResult](ctx, c, mixedJob{N: i}, client.Key(fmt.Sprint("mixed ", i)))
			count := languages[got.By]
			if err != nil || got.N != i || count == nil {
				t.Errorf("job %d: %+v, %v", i, got, err)
				return
			}
			count.Add(1)
			ended.Add(1)
		})
	}
	await := func(n int64) {
		for ended.Load() < n && ctx.Err() == nil && !t.Failed() {
			time.Sleep(10 * time.Millisecond)
		}
	}
	for i, victim := range cl.Nodes[:2] {
		await(jobs * int64(i+1) / 4)
		cl.Kill(victim)
		workers[i%len(workers)].Kill()
		await(jobs*int64(i+1)/4 + 50)
		for _, start := range []func() error{victim.Start, workers[i%len(workers)].Start} {
			if err := start(); err != nil {
				t.Fatal(err)
			}
		}
		if err := cl.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	callers.Wait()
	if err := w.Stop(ctx); err != nil {
		t.Error(err)
	}
	running.Wait()
	for language, count := range languages {
		if count.Load() == 0 {
			t.Errorf("the worker in %s has run no job", language)
		}
		t.Logf("%s: %d jobs", language, count.Load())
	}
}
