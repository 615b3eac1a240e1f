package drill

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// frozenWorker is a worker's process that is stopped.
type frozenWorker struct {
	process *procs.Process
	begun   func() string // what it has written: "begin <jid>" for each job
}

// TestFrozenWorkers stops a worker's process, has it assigned a job, has another worker
// complete that job after the time for the ACK, and lets the process go on. It must not run
// the job, and must be given others afterwards. Every client library is tried.
func TestFrozenWorkers(t *testing.T) {
	cl, ctx := newHarness(t, 3*time.Minute)
	script := func(p *procs.Process) frozenWorker { return frozenWorker{p, p.Log} }
	starts := map[string]func(t *testing.T, queue string) frozenWorker{
		"go": func(t *testing.T, queue string) frozenWorker {
			p, witness := goWorker(t, cl, queue)
			return frozenWorker{p, func() string { text, _ := os.ReadFile(witness); return string(text) }}
		},
		"python-thread": func(t *testing.T, queue string) frozenWorker {
			return script(pythonProcess(t, cl, queue, filepath.Join("testdata", "python", "frozen.py"), queue, "thread"))
		},
		"python-coroutine": func(t *testing.T, queue string) frozenWorker {
			return script(pythonProcess(t, cl, queue, filepath.Join("testdata", "python", "frozen.py"), queue, "coroutine"))
		},
		"typescript": func(t *testing.T, queue string) frozenWorker {
			p := typescriptProcess(t, cl, queue, filepath.Join("testdata", "typescript", "frozen.mjs"), queue)
			if p == nil {
				t.SkipNow()
			}
			return script(p)
		},
	}
	producer := &overhop.Producer{Nodes: cl.Edges()}
	defer producer.Close()
	t.Run("clients", func(t *testing.T) {
		for name, start := range starts {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				freeze(t, ctx, cl, producer, "frozen-"+name, start)
			})
		}
	})
}

// goWorker starts a worker's process of a queue, and returns the file to which it writes.
func goWorker(t *testing.T, cl *Cluster, queue string) (p *procs.Process, witness string) {
	t.Helper()
	p, err := cl.AddWorker(Task{Nodes: cl.Edges(), Queue: queue, Credits: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p, strings.TrimSuffix(p.LogFile, ".log") + ".witness"
}

// freeze is TestFrozenWorkers for one client library.
func freeze(t *testing.T, ctx context.Context, cl *Cluster, producer *overhop.Producer, queue string, start func(*testing.T, string) frozenWorker) {
	c, err := producer.Client(ctx)
	if err == nil {
		_, err = c.AddQueue(ctx, overhop.AddQueue{Name: queue, AllowOverrides: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	enqueue := func() string {
		jid, err := producer.Enqueue(ctx, overhop.Enqueue{Queue: queue})
		if err != nil {
			t.Fatal(err)
		}
		return jid
	}
	complete := func(jid string) {
		if end, err := producer.Wait(ctx, jid); err != nil || end.Fault != nil {
			t.Fatalf("job %s: %v, %v", jid, end.Fault, err)
		}
	}

	frozen := start(t, queue)
	before := enqueue()
	complete(before) // the worker is subscribed
	signal := func(s syscall.Signal) {
		if err := frozen.process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	stolen := enqueue()
	awaitActive(t, ctx, producer, stolen)
	other, witness := goWorker(t, cl, queue)
	complete(stolen)
	other.Kill()
	if text, err := os.ReadFile(witness); err != nil || !strings.Contains(string(text), "begin "+stolen) {
		t.Fatalf("the other worker has not run the job: %v", err)
	}

	signal(syscall.SIGCONT)
	after := enqueue()
	complete(after) // by then, the worker has seen what it was sent before
	for jid, want := range map[string]bool{before: true, stolen: false, after: true} {
		if begun := strings.Contains(frozen.begun(), "begin "+jid); begun != want {
			t.Errorf("the worker that was stopped has begun job %s: %t, want %t:\n%s", jid, begun, want, frozen.begun())
		}
	}
}

// awaitActive waits until a job is assigned to a worker.
func awaitActive(t *testing.T, ctx context.Context, producer *overhop.Producer, jid string) {
	t.Helper()
	for {
		c, err := producer.Client(ctx)
		if err != nil {
			t.Fatal(err)
		}
		record, err := c.Job(ctx, jid)
		if err != nil {
			t.Fatal(err)
		}
		if status, _ := record.Get("status").Str(); status == "active" {
			return
		}
		if err := backoff.Sleep(ctx, 20*time.Millisecond); err != nil {
			t.Fatalf("job %s is not active: %s", jid, err)
		}
	}
}
