package drill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/internal/backoff"
)

// pythonClient is where the Python client lies.
var pythonClient = filepath.Join("..", "clients", "python")

// python finds an interpreter that can run the Python client.
func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on this machine: install it (Debian: apt-get install python3)")
	}
	said, err := exec.Command(path, "-c", "import sys, ssl, threading, unittest; assert sys.version_info >= (3, 9), sys.version").CombinedOutput()
	if err != nil {
		t.Skipf("python3 cannot run the client, which needs Python 3.9 with its whole library: %s", said)
	}
	return path
}

// pythonProcess starts a script that finds the client and the yard's nodes.
func pythonProcess(t *testing.T, y *Yard, name, script string, args ...string) *Process {
	t.Helper()
	library, err := filepath.Abs(pythonClient)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{
		name: name, log: filepath.Join(y.Dir, name+".log"), args: append([]string{python(t), script}, args...),
		env: []string{"PYTHONPATH=" + library, "PYTHONDONTWRITEBYTECODE=1", "OVERHOP_NODES=" + strings.Join(y.Edges(), ",")},
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s says:\n%s", name, tail(p.Log(), 40))
		}
	})
	return p
}

// endWell waits for a script's end and requires that it ended well.
func endWell(t *testing.T, ctx context.Context, p *Process) {
	t.Helper()
	if err := p.Wait(ctx); err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
}

// TestPython_Units runs the Python client's own tests.
func TestPython_Units(t *testing.T) {
	cmd := exec.Command(python(t), "-m", "unittest", "discover")
	cmd.Dir = pythonClient
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if said, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(said), "\nOK") {
		t.Errorf("%v\n%s", err, tail(string(said), 40))
	}
}

// TestClients runs the client libraries beside a real yard.
func TestClients(t *testing.T) {
	y, ctx := stage(t, 90*time.Second)
	t.Run("go examples", func(t *testing.T) { goExamples(t, ctx, y) })
	t.Run("python examples", func(t *testing.T) { pythonExamples(t, ctx, y) })
	t.Run("python failover", func(t *testing.T) { pythonFailover(t, ctx, y) })
}

// examples writes what a page shows in fences of a language, a worker and a
// producer, to files as it stands there.
func examples(t *testing.T, y *Yard, page, language string, most int) (worker, producer string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatalf("%s has %d examples, want a worker and a producer", page, len(blocks))
	}
	var files [2]string
	for i, block := range blocks {
		if lines := strings.Count(block[1], "\n"); lines > most {
			t.Errorf("example %d of %s has %d lines, should have at most %d", i+1, page, lines, most)
		}
		files[i] = filepath.Join(y.Dir, fmt.Sprintf("example%d.%s", i+1, language))
		if err := os.WriteFile(files[i], []byte(block[1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files[0], files[1]
}

// goExamples builds and runs what the protocol's page shows.
func goExamples(t *testing.T, ctx context.Context, y *Yard) {
	start := func(source, name string) *Process {
		program := filepath.Join(y.Dir, name)
		if said, err := exec.CommandContext(ctx, "go", "build", "-o", program, source).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", source, err, said)
		}
		p := &Process{name: name, log: program + ".log", args: append([]string{program}, y.Edges()...)}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		return p
	}
	source, asker := examples(t, y, filepath.Join("..", "docs", "overhop.md"), "go", 30) // ten beside imports and braces
	worker := start(source, "go-worker")
	for !strings.Contains(worker.Log(), "worker is subscribed") {
		if err := backoff.Sleep(ctx, 20*time.Millisecond); err != nil {
			t.Fatalf("the worker is not subscribed: %s", worker.Log())
		}
	}
	producer := start(asker, "go-producer")
	endWell(t, ctx, producer)
	if said := producer.Log(); !strings.Contains(said, "sent to ann <nil>") {
		t.Errorf("the producer says %q", said)
	}
	if err := worker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	endWell(t, ctx, worker)
}

// pythonExamples runs what the client's README shows, as it stands there.
func pythonExamples(t *testing.T, ctx context.Context, y *Yard) {
	first, second := examples(t, y, filepath.Join(pythonClient, "README.md"), "python", 11) // blank ones too
	worker := pythonProcess(t, y, "example-worker", first)
	producer := pythonProcess(t, y, "example-producer", second)
	endWell(t, ctx, producer)
	for _, want := range []string{"accepted mail:", "result {'attempt': 1, 'sent': 'ann'}", "again {'attempt': 1, 'sent': 'bob'}", "'completed': 2"} {
		if said := producer.Log(); !strings.Contains(said, want) {
			t.Errorf("the producer does not say %q:\n%s", want, said)
		}
	}
	if err := worker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	endWell(t, ctx, worker)
}

// pythonNote is a line of the Python worker's witness.
type pythonNote struct {
	what, jid, node string
	attempt, fence  int64
}

func readPythonNotes(path string) (notes []pythonNote, err error) {
	text, err := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		var n pythonNote
		if _, err := fmt.Sscan(line, &n.what, &n.jid, &n.attempt, &n.fence, &n.node); err != nil {
			return nil, fmt.Errorf("witness line %q: %w", line, err)
		}
		notes = append(notes, n)
	}
	return notes, err
}

// pythonFailover kills the worker's node and then the authority, while a
// Python producer and a Python worker are at work. Every accepted job ends once
// and as it should, and the one that is in hand all the time runs once.
func pythonFailover(t *testing.T, ctx context.Context, y *Yard) {
	witness, gate := filepath.Join(y.Dir, "python.witness"), filepath.Join(y.Dir, "gate")
	worker := pythonProcess(t, y, "python-worker", filepath.Join("testdata", "python", "worker.py"), witness, gate)
	producer := pythonProcess(t, y, "python-producer", filepath.Join("testdata", "python", "producer.py"), gate)

	// more waits until so many jobs more have ended, the last of them at
	// another node than avoid, and gives the node.
	more := func(jobs int, avoid string) (at string) {
		t.Helper()
		before, _ := readPythonNotes(witness)
		err := until(ctx, fmt.Sprintf("%d more jobs have been worked on", jobs), func() error {
			notes, err := readPythonNotes(witness)
			if err != nil {
				return err
			}
			if ran := (len(notes) - len(before)) / 2; ran < jobs {
				return fmt.Errorf("%d have", ran)
			}
			if at = notes[len(notes)-1].node; at == avoid || at == "None" {
				return fmt.Errorf("the worker is at %s", at)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	at := more(100, "")
	for _, n := range y.Nodes {
		if n.Overhop == at {
			y.Kill(n)
			t.Logf("killed %s, the worker's node", n.Name)
			more(100, at)
			restart(t, ctx, y, n)
		}
	}
	if len(y.kills) != 1 {
		t.Fatalf("%d nodes are at the worker's address %s", len(y.kills), at)
	}
	killAuthority(t, ctx, y)
	more(100, "")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	endWell(t, ctx, producer)
	judgePython(t, ctx, y, producer.Log(), witness)
	if err := worker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	endWell(t, ctx, worker)
}

// judgePython holds what the producer was promised against what the worker
// noted and what the yard says now.
func judgePython(t *testing.T, ctx context.Context, y *Yard, said, witness string) {
	t.Helper()
	accepted, right := make(map[string]bool), 0
	for line := range strings.Lines(said) {
		if jid, ok := strings.CutPrefix(strings.TrimSpace(line), "accepted "); ok {
			if accepted[jid] {
				t.Errorf("job %s was accepted twice", jid)
			}
			accepted[jid] = true
		}
		fmt.Sscanf(line, "right %d", &right)
	}
	notes, err := readPythonNotes(witness)
	if err != nil {
		t.Fatal(err)
	}
	ended, long := make(map[string]bool), []pythonNote(nil)
	for _, n := range notes {
		ended[n.jid] = ended[n.jid] || n.what == "end"
		if strings.HasPrefix(n.jid, "python-long:") {
			long = append(long, n)
		}
	}
	for jid := range accepted {
		if !ended[jid] {
			t.Errorf("job %s has a result, and no worker ended it", jid)
		}
	}
	t.Logf("%d jobs accepted, %d results right, %d notes", len(accepted), right, len(notes))
	if right != len(accepted) || len(ended) != len(accepted) {
		t.Errorf("%d jobs accepted, %d worked on, %d with the right result", len(accepted), len(ended), right)
	}
	if len(long) != 2 || long[0].attempt != 1 || long[1].fence != long[0].fence || long[0].node == long[1].node {
		t.Errorf("the long job ran otherwise than once, over a change of node: %+v", long)
	}
	if completed, err := completedPython(ctx, y.Up()[0].Overhop); err != nil || completed != int64(len(accepted)) {
		t.Errorf("the yard says that %d jobs completed, %v", completed, err)
	}
}

// completedPython counts the completed jobs of both queues; any other job is an
// error.
func completedPython(ctx context.Context, edge string) (completed int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := overhop.Dial(ctx, edge, overhop.Options{Name: "judge"})
	if err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	defer func() { cancel(); err = errors.Join(err, <-ended) }()
	for _, queue := range []string{"python", "python-long"} {
		ok, err := c.Call(ctx, overhop.TQStats, overhop.AppendValue(nil, overhop.Fields{"q": queue}))
		if err != nil {
			return 0, err
		}
		for state, count := range ok.Get("stats").Pairs() {
			n, _ := count.Int()
			if string(state) == "completed" {
				completed += n
			} else if n != 0 {
				return completed, fmt.Errorf("%d jobs of %s are %s", n, queue, state)
			}
		}
	}
	return completed, nil
}
