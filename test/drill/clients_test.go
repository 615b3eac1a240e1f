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

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// pythonClient is the directory of the Python client.
var pythonClient = filepath.Join("..", "..", "clients", "python")

// python returns the path of a Python 3 interpreter, or skips the test.
func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on this machine: install it (Debian: apt-get install python3)")
	}
	output, err := exec.Command(path, "-c", "import sys, ssl, threading, unittest; assert sys.version_info >= (3, 9), sys.version").CombinedOutput()
	if err != nil {
		t.Skipf("python3 cannot run the client, which needs Python 3.9 with its whole library: %s", output)
	}
	return path
}

// pythonProcess starts a script that imports the client and connects to the nodes.
func pythonProcess(t *testing.T, cl *Cluster, name, script string, args ...string) *procs.Process {
	t.Helper()
	library, err := filepath.Abs(pythonClient)
	if err != nil {
		t.Fatal(err)
	}
	p := &procs.Process{
		Name: name, LogFile: filepath.Join(cl.Dir, name+".log"), Args: append([]string{python(t), script}, args...),
		Env: []string{"PYTHONPATH=" + library, "PYTHONDONTWRITEBYTECODE=1", "OVERHOP_NODES=" + strings.Join(cl.Edges(), ",")},
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

// endWell waits until a script has exited, and requires success.
func endWell(t *testing.T, ctx context.Context, p *procs.Process) {
	t.Helper()
	if err := p.Wait(ctx); err != nil {
		t.Fatalf("%s: %v", p.Name, err)
	}
}

// TestPython_Units runs the tests of the Python client, also those with real nodes.
func TestPython_Units(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), python(t), "-m", "unittest")
	cmd.Dir = pythonClient
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if program, err := binary(); err == nil && !testing.Short() {
		cmd.Env = append(cmd.Env, "YARD_BIN="+program)
	}
	if output, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(output), "\nOK") {
		t.Errorf("%v\n%s", err, tail(string(output), 40))
	}
}

// TestClients runs the client libraries against a real cluster.
func TestClients(t *testing.T) {
	cl, ctx := newHarness(t, 90*time.Second)
	t.Run("go examples", func(t *testing.T) { goExamples(t, ctx, cl) })
	t.Run("python examples", func(t *testing.T) { pythonExamples(t, ctx, cl) })
	t.Run("python guide", func(t *testing.T) { pythonGuide(t, ctx, cl) })
	t.Run("python content", func(t *testing.T) { pythonContent(t, ctx, cl) })
	t.Run("python failover", func(t *testing.T) { pythonFailover(t, ctx, cl) })
}

// examples writes the first two examples in a page's fenced blocks of a language, a
// worker and a producer, to files.
func examples(t *testing.T, cl *Cluster, page, language string, most int) (worker, producer string) {
	t.Helper()
	blocks := codeBlocks(t, page, language)
	if len(blocks) < 2 {
		t.Fatalf("%s has %d examples, want a worker and a producer", page, len(blocks))
	}
	var files [2]string
	for i, block := range blocks[:2] {
		if lines := strings.Count(block, "\n"); lines > most {
			t.Errorf("example %d of %s has %d lines, should have at most %d", i+1, page, lines, most)
		}
		files[i] = filepath.Join(cl.Dir, fmt.Sprintf("example%d.%s", i+1, language))
		writeFile(t, files[i], block)
	}
	return files[0], files[1]
}

// codeBlocks returns the content of a page's fenced blocks of a language.
func codeBlocks(t *testing.T, page, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, block[1])
	}
	return blocks
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// goExamples builds and runs the examples of the guide to workers.
func goExamples(t *testing.T, ctx context.Context, cl *Cluster) {
	start := func(source, name string) *procs.Process {
		program := filepath.Join(cl.Dir, name)
		if output, err := exec.CommandContext(ctx, "go", "build", "-o", program, source).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", source, err, output)
		}
		p := &procs.Process{Name: name, LogFile: program + ".log", Args: append([]string{program}, cl.Edges()...)}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		return p
	}
	source, asker := examples(t, cl, filepath.Join("..", "..", "docs", "guides", "workers.md"), "go", 35) // including imports and braces
	worker := start(source, "go-worker")
	for !strings.Contains(worker.Log(), "worker is subscribed") {
		if err := backoff.Sleep(ctx, 20*time.Millisecond); err != nil {
			t.Fatalf("the worker is not subscribed: %s", worker.Log())
		}
	}
	producer := start(asker, "go-producer")
	endWell(t, ctx, producer)
	if output := producer.Log(); !strings.Contains(output, "sent to ann <nil>") {
		t.Errorf("the producer printed %q", output)
	}
	if err := worker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	endWell(t, ctx, worker)
}

// pythonExamples runs the first examples of the client's README; the client's own tests
// run the others.
func pythonExamples(t *testing.T, ctx context.Context, cl *Cluster) {
	first, second := examples(t, cl, filepath.Join(pythonClient, "README.md"), "python", 15) // including blank lines
	worker := pythonProcess(t, cl, "example-worker", first)
	producer := pythonProcess(t, cl, "example-producer", second)
	endWell(t, ctx, producer)
	for _, want := range []string{"accepted mail:", "result {'attempt': 1, 'sent': 'ann'}", "again {'attempt': 1, 'sent': 'bob'}", "'completed': 2"} {
		if output := producer.Log(); !strings.Contains(output, want) {
			t.Errorf("the producer did not print %q:\n%s", want, output)
		}
	}
	if err := worker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	endWell(t, ctx, worker)
}

// pythonGuide runs the worker in the guide to workers with the job that the guide enqueues,
// and with one that it refuses.
func pythonGuide(t *testing.T, ctx context.Context, cl *Cluster) {
	page := filepath.Join("..", "..", "docs", "guides", "workers.md")
	blocks := codeBlocks(t, page, "python")
	if len(blocks) != 1 || !strings.Contains(blocks[0], `"127.0.0.1:9876"`) {
		t.Fatalf("%s has %d examples in Python, want a worker at 127.0.0.1:9876", page, len(blocks))
	}
	file := filepath.Join(cl.Dir, "guide.py")
	writeFile(t, file, strings.Replace(blocks[0], "127.0.0.1:9876", cl.Edges()[0], 1))
	worker := pythonProcess(t, cl, "guide-worker", file)
	command := regexp.MustCompile(`(?m)^yardmaster (enqueue .* --params )'(.*)' (--wait)$`).FindStringSubmatch(strings.Join(codeBlocks(t, page, "sh"), "\n"))
	if command == nil {
		t.Fatalf("%s enqueues no job", page)
	}
	words := strings.Fields(command[1])
	output, err := cl.Nodes[0].Command(ctx, append(words, command[2], command[3])...)
	if err != nil || !strings.Contains(output, `{"sent":"ann@example.org"}`) {
		t.Errorf("the job of the guide: %v, %s", err, output)
	}
	output, err = cl.Nodes[0].Command(ctx, append(words, `{"to":"ann"}`, command[3])...)
	if err == nil || !strings.Contains(output, "no address") {
		t.Errorf("a job without an address: %v, %s", err, output)
	}
	if err := worker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	endWell(t, ctx, worker)
}

// pythonNote is a line of the Python worker's witness file.
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

// pythonFailover kills the worker's node and then the authority while a Python
// producer and a Python worker are at work. Every accepted job must end once, with
// the right result, and the job that runs all the time must run once.
func pythonFailover(t *testing.T, ctx context.Context, cl *Cluster) {
	witness, gate := filepath.Join(cl.Dir, "python.witness"), filepath.Join(cl.Dir, "gate")
	worker := pythonProcess(t, cl, "python-worker", filepath.Join("testdata", "python", "worker.py"), witness, gate)
	producer := pythonProcess(t, cl, "python-producer", filepath.Join("testdata", "python", "producer.py"), gate)

	// more waits until a number of further jobs have ended, the last of them at a
	// node other than avoid, and returns that node.
	more := func(jobs int, avoid string) (at string) {
		t.Helper()
		before, _ := readPythonNotes(witness)
		err := until(ctx, fmt.Sprintf("%d more jobs have been worked on", jobs), func() error {
			notes, err := readPythonNotes(witness)
			if err != nil {
				return err
			}
			if ran := (len(notes) - len(before)) / 2; ran < jobs {
				return fmt.Errorf("%d have ended", ran)
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
	for _, n := range cl.Nodes {
		if n.Edge == at {
			cl.Kill(n)
			t.Logf("killed %s, the worker's node", n.Name)
			more(100, at)
			restart(t, ctx, cl, n)
		}
	}
	if len(cl.kills) != 1 {
		t.Fatalf("%d nodes are at the worker's address %s", len(cl.kills), at)
	}
	killAuthority(t, ctx, cl)
	more(100, "")
	writeFile(t, gate, "")
	endWell(t, ctx, producer)
	judgePython(t, ctx, cl, producer.Log(), witness)
	if err := worker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	endWell(t, ctx, worker)
}

// judgePython compares the jobs accepted by the producer with the notes of the worker
// and the state of the cluster.
func judgePython(t *testing.T, ctx context.Context, cl *Cluster, output, witness string) {
	t.Helper()
	accepted, right := make(map[string]bool), 0
	for line := range strings.Lines(output) {
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
			t.Errorf("job %s has a result, but no worker completed it", jid)
		}
	}
	t.Logf("%d jobs accepted, %d results right, %d notes", len(accepted), right, len(notes))
	if right != len(accepted) || len(ended) != len(accepted) {
		t.Errorf("%d jobs accepted, %d completed by the worker, %d with the right result", len(accepted), len(ended), right)
	}
	if len(long) != 2 || long[0].attempt != 1 || long[1].fence != long[0].fence || long[0].node == long[1].node {
		t.Errorf("the long job did not run exactly once, across a change of node: %+v", long)
	}
	if completed, err := completedPython(ctx, cl.Running()[0].Edge); err != nil || completed != int64(len(accepted)) {
		t.Errorf("the cluster reports %d completed jobs, %v", completed, err)
	}
}

// completedPython returns the number of completed jobs of both queues. A job in any
// other state is an error.
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
