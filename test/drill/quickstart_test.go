package drill

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// quickstart is a reader who follows docs/quickstart.md on other ports, as the page shows.
type quickstart struct {
	t    *testing.T
	ctx  context.Context
	dir  string // the reader's directory
	env  []string
	page string // with the reader's ports
}

// TestQuickstart follows the quickstart: it starts the node, runs the page's commands,
// compares their answers with the page, and runs both workers.
func TestQuickstart(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a node")
	}
	interpreter := python(t)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	q := newQuickstart(t, ctx)
	start := regexp.MustCompile(`(?m)^(YARD_\S+=\S+ .*)yardmaster node$`).FindStringSubmatch(q.page)
	if start == nil {
		t.Fatal("the page does not start a node on other ports")
	}
	q.start("node", strings.Fields(start[1]), "yardmaster", "node")
	if err := until(ctx, "the node is ready", func() error { _, err := q.run("yardmaster health --ready"); return err }); err != nil {
		t.Fatal(err)
	}
	steps := strings.Split(q.page, "\n## ")
	for _, step := range steps[1:4] { // up to why the job waits
		q.play(step)
	}

	q.prepare(steps[4], "python3 mailer-py/worker.py")
	worker := q.start("python-worker", nil, interpreter, "mailer-py/worker.py")
	q.await(worker, "sending to ann")
	if err := worker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	endWell(t, ctx, worker)

	program := filepath.Join(q.dir, "mailer")
	source := program + ".go"
	writeFile(t, source, heredoc(t, steps[4], "main.go"))
	if output, err := exec.CommandContext(ctx, "go", "build", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("build the Go worker: %v\n%s", err, output)
	}
	worker = q.start("go-worker", nil, program)
	for _, command := range regexp.MustCompile(`(?m)^(yardmaster enqueue|curl) .*$`).FindAllString(steps[5], -1) {
		if output, err := q.run(command); err != nil || !strings.Contains(output, "completed") {
			t.Errorf("%s: %v, %s", command, err, output)
		}
	}
	q.await(worker, "sending to cyd")
	q.play(steps[5])
	if err := worker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	endWell(t, ctx, worker)
}

// newQuickstart makes the reader's directory, with what the page takes from the clone.
func newQuickstart(t *testing.T, ctx context.Context) *quickstart {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "quickstart.md"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := filepath.Abs(pythonClient)
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := freeport.Addresses(3)
	if err != nil {
		t.Fatal(err)
	}
	var ports []string
	for _, address := range addresses {
		_, port, _ := net.SplitHostPort(address)
		ports = append(ports, port)
	}
	replaced := strings.NewReplacer("14222", ports[0], "14280", ports[1], "4280", ports[1], "19876", ports[2], "9876", ports[2]).Replace(string(page))
	q := &quickstart{t: t, ctx: ctx, dir: t.TempDir(), page: replaced}
	q.env = []string{"PATH=" + filepath.Join(q.dir, "bin") + ":" + os.Getenv("PATH"), "NATS_URL=nats://" + addresses[0], "PYTHONDONTWRITEBYTECODE=1"}
	for target, name := range map[string]string{program: "bin/yardmaster", client: "clients/python"} {
		path := filepath.Join(q.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

// run runs a command line in the reader's directory and returns its output.
func (q *quickstart) run(command string) (string, error) {
	c := exec.CommandContext(q.ctx, "bash", "-ec", command)
	c.Dir, c.Env = q.dir, append(os.Environ(), q.env...)
	output, err := c.CombinedOutput()
	return string(output), err
}

// start starts a program that runs until the test ends.
func (q *quickstart) start(name string, env []string, command ...string) *procs.Process {
	q.t.Helper()
	p := &procs.Process{
		Name: name, LogFile: filepath.Join(q.dir, name+".log"), Env: append(env, q.env...),
		Args: append([]string{"env", "-C", q.dir}, command...),
	}
	if err := p.Start(); err != nil {
		q.t.Fatal(err)
	}
	q.t.Cleanup(func() {
		p.Stop(10 * time.Second)
		if q.t.Failed() {
			q.t.Logf("output of %s:\n%s", name, tail(p.Log(), 40))
		}
	})
	return p
}

// await waits until a program has printed a line.
func (q *quickstart) await(p *procs.Process, line string) {
	q.t.Helper()
	err := until(q.ctx, p.Name+" prints "+line, func() error {
		if !strings.Contains(p.Log(), line+"\n") {
			return errors.New(p.OutputTail())
		}
		return nil
	})
	if err != nil {
		q.t.Fatal(err)
	}
}

// prepare runs a step's block that ends with a command, without that command.
func (q *quickstart) prepare(step, command string) {
	q.t.Helper()
	block := regexp.MustCompile("(?s)```sh\n([^`]*)" + regexp.QuoteMeta(command) + "\n```").FindStringSubmatch(step)
	if block == nil {
		q.t.Fatalf("the page has no block that ends with %q", command)
	}
	if output, err := q.run(block[1]); err != nil {
		q.t.Fatalf("%v: %s", err, output)
	}
}

// heredoc returns the file that a step writes.
func heredoc(t *testing.T, step, name string) string {
	t.Helper()
	_, content, found := strings.Cut(step, "cat > "+name+" <<'EOF'\n")
	content, _, ends := strings.Cut(content, "\nEOF\n")
	if !found || !ends {
		t.Fatalf("the page does not write %s", name)
	}
	return content + "\n"
}

var transcript = regexp.MustCompile("(?s)```console\n(.*?)```")

// play runs the commands of a step's transcripts and compares their output with it. An
// ellipsis stands for any text, on a line of its own for any lines; times may differ.
func (q *quickstart) play(step string) {
	q.t.Helper()
	for _, block := range transcript.FindAllStringSubmatch(step, -1) {
		for _, part := range strings.Split("\n"+block[1], "\n$ ")[1:] {
			command, want, _ := strings.Cut(part, "\n")
			output, err := q.run(command)
			if err != nil || !outputPattern(want).MatchString(output) {
				q.t.Fatalf("%s: %v, got\n%s\nwant\n%s", command, err, output, want)
			}
		}
	}
}

// outputPattern returns a pattern for output as on the page.
func outputPattern(want string) *regexp.Regexp {
	pattern := regexp.QuoteMeta(strings.TrimSuffix(want, "\n") + "\n")
	pattern = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\\\.\d+Z`).ReplaceAllString(pattern, `\S+`)
	pattern = regexp.MustCompile(`(?m)^…\n`).ReplaceAllString(pattern, `(?s:.*)`)
	return regexp.MustCompile("^" + strings.ReplaceAll(pattern, "…", ".*") + "$")
}
