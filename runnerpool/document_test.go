package runnerpool

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

// docText returns docs/reference/rrq.md.
func docText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/reference/rrq.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// docSection returns the text below a heading, up to the next heading of its
// level.
func docSection(t *testing.T, heading string) string {
	t.Helper()
	_, below, found := strings.Cut(docText(t), "\n"+heading+"\n")
	if !found {
		t.Fatalf("the page has no %s", heading)
	}
	rank, _, _ := strings.Cut(heading, " ")
	below, _, _ = strings.Cut(below, "\n"+rank+" ")
	return below
}

// The page lists the times and limits of the code.
func TestDoc_ListsTimesAndLimits(t *testing.T) {
	want := []string{
		fmt.Sprintf("| payload of a frame | %d bytes |", rrq.MaxFrame),
		fmt.Sprintf("| requests of one process at once | %d |", rrq.MaxInFlight),
		fmt.Sprintf("| slack after a deadline | %s |", deadlineSlack),
		fmt.Sprintf("| to connect to a runner that listens | %s |", dialTimeout),
		fmt.Sprintf("| between checks of an idle external runner | %s |", probeInterval),
		fmt.Sprintf("| to send a cancel | %s |", cancelTimeout),
		fmt.Sprintf("| for an answer after the node closed its side | %s |", halfCloseWait),
		fmt.Sprintf("| for an answer to a cancel after the lease ended | %s |", leaseEndWait),
		fmt.Sprintf("| for a process to end after its connection | %s |", exitDelay),
		fmt.Sprintf("| delay between starts of a process, least | %s |", minRestartDelay),
		fmt.Sprintf("| delay between starts of a process, most | %s |", maxRestartDelay),
		fmt.Sprintf("| ends that make a crash loop | %d |", crashLoopExits),
		fmt.Sprintf("| within | %s |", duration.Format(crashLoopWindow)),
		fmt.Sprintf("| life of a process that ends a crash loop | %s |", probation),
		fmt.Sprintf("| line of output that is logged whole | %d bytes |", maxLine),
		fmt.Sprintf("| keys of a correlation context | %d |", maxCorrelations),
		fmt.Sprintf("| key of it | %d bytes |", maxCorrelationKey),
		fmt.Sprintf("| value of it | %d bytes |", maxCorrelationValue),
		fmt.Sprintf("| losses that make a dead letter | %d |", job.MaxLosses),
	}
	var rows []string
	for row := range strings.Lines(docSection(t, "## Times and limits")) {
		if row = strings.TrimSpace(row); strings.HasPrefix(row, "| ") && row != "| what | how much |" {
			rows = append(rows, row)
		}
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the page lists\n%s\nwant\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
	_, text, _ := strings.Cut(docText(t), `"dispatch_id": "`)
	text, _, _ = strings.Cut(text, `"`)
	id, n, ok := job.ParseRequestID(text)
	if !ok {
		t.Fatalf("the example's dispatch is %q", text)
	}
	for _, text := range []string{
		fmt.Sprintf("for that it has %d ms more", deadlineSlack.Milliseconds()),
		fmt.Sprintf("| %d ms for an answer |", halfCloseWait.Milliseconds()),
		fmt.Sprintf("A record of more than %d bytes", job.MaxInlineBody),
		fmt.Sprintf("%q: %q", "request_id", job.DispatchID{Job: id, N: n}.UUID()),
	} {
		if !strings.Contains(docText(t), text) {
			t.Errorf("the page lacks %q", text)
		}
	}
}

// The minimal runner on the page works in a pool, although it ignores deadlines
// and cancels.
func TestDoc_RunnerExample(t *testing.T) {
	block := regexp.MustCompile("(?s)```python\n(.*?)```").FindStringSubmatch(docSection(t, "## The smallest runner"))
	if block == nil {
		t.Fatal("the page shows no runner")
	}
	file := filepath.Join(t.TempDir(), "smallest.py")
	if err := os.WriteFile(file, []byte(block[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	y := startHarness(t, testConfig("", func(c *RunnerConfig) {
		c.Cmd, c.Env = []string{program(t, "python3"), file}, map[string]string{nodeMode: ""}
	}))
	for _, test := range []struct {
		function, params string
		status           job.Status
		result           string
	}{
		{"add", `{"terms":[1,2,9007199254740993]}`, job.Success, "9007199254740996"},
		{"later", `{}`, job.Retry, ""},
		{"nobody", `{}`, job.Error, ""},
		{"add", `{"terms":[]}`, job.Success, "0"},
	} {
		if o := y.askParams(test.function, test.params, nil); o.Status != test.status || string(o.Result.Data) != test.result {
			t.Errorf("%s %s gives %s %s %+v", test.function, test.params, o.Status, o.Result.Data, o.Fault)
		}
	}
	if s := y.Status()[0].Members[0]; s.Restarts != 0 {
		t.Errorf("the runner was restarted: %+v", s)
	}
}

// The command in the README of the example runner succeeds with the file as it is.
func TestDoc_ExampleReadme(t *testing.T) {
	text, err := os.ReadFile("../examples/runner-python/README.md")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^yardmaster enqueue \S+ (\S+) --params '(.*)' --wait$`).FindSubmatch(text)
	if command == nil {
		t.Fatal("the README has no command")
	}
	y := startHarness(t, testConfig("", func(c *RunnerConfig) {
		c.Cmd = []string{program(t, "python3"), "../examples/runner-python/runner.py"}
		c.Env = map[string]string{nodeMode: ""}
	}))
	y.expect(y.askParams(string(command[1]), string(command[2]), nil), job.Success, true, "")
}

// The handlers in the guide and in the README of the example work with its file. The test
// adds what belongs to the reader's program.
func TestDoc_Handlers(t *testing.T) {
	example, err := filepath.Abs("../examples/runner-python")
	if err != nil {
		t.Fatal(err)
	}
	const script = `import runner
from runner import handler, Retry
from types import SimpleNamespace
gateway = SimpleNamespace(ready=lambda: bool(delivered))
delivered = []
def deliver(address, fence):
    delivered.append((address, fence))
@handler("open")
def open_gateway(job):
    delivered.append(job.fence)
%s
runner.main()
`
	for page, test := range map[string]struct {
		requests []string // functions, with params after a space
		outcomes []string
	}{
		"../docs/guides/runners.md":           {[]string{`send {"to":"ann"}`}, []string{`success {"sent":"ann"}`}},
		"../examples/runner-python/README.md": {[]string{`mail.send {"to":["ann"]}`, `open {}`, `mail.send {"to":["ann","bob"]}`}, []string{"retry 30s", "success", `success {"sent":2}`}},
	} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```python\n(.*?)```").FindAllSubmatch(text, -1)
		if len(blocks) != 1 {
			t.Fatalf("%s has %d handlers in Python, want one", page, len(blocks))
		}
		file := filepath.Join(t.TempDir(), "handlers.py")
		if err := os.WriteFile(file, fmt.Appendf(nil, script, blocks[0][1]), 0o600); err != nil {
			t.Fatal(err)
		}
		y := startHarness(t, testConfig("", func(c *RunnerConfig) {
			c.Cmd = []string{program(t, "python3"), file}
			c.Env = map[string]string{nodeMode: "", "PYTHONPATH": example, "PYTHONDONTWRITEBYTECODE": "1"}
		}))
		for i, request := range test.requests {
			function, params, _ := strings.Cut(request, " ")
			o := y.askParams(function, params, nil)
			outcome := strings.TrimSpace(fmt.Sprintf("%s %s", o.Status, o.Result.Data))
			if o.RetryAfter != nil {
				outcome = fmt.Sprintf("%s %s", o.Status, *o.RetryAfter)
			}
			if outcome != test.outcomes[i] {
				t.Errorf("%s: %s gives %s %+v, want %s", page, request, outcome, o.Fault, test.outcomes[i])
			}
		}
	}
}
