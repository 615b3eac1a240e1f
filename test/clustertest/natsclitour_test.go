package clustertest_test

import (
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// tourPages are the pages whose console blocks TestTour runs, and the least number
// of commands that each has.
var tourPages = []struct {
	name, path string
	commands   int
}{
	{"Tour", "testdata/tour.md", 60},
	{"Producers", "../../docs/guides/producers.md", 10},
}

// TestTour runs the commands of each page against a yard of three nodes and
// compares the answers with the page. With -rewrite it writes the answers to the
// page; read the diff.
func TestTour(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	t.Parallel()
	for _, page := range tourPages {
		t.Run(page.name+"/Requests", func(t *testing.T) {
			t.Parallel()
			runTour(t, page.path, page.commands, func(m *clustertest.Member) natsTool { return newNATSCLI(t, m) }, *rewrite)
		})
		t.Run(page.name+"/Program", func(t *testing.T) {
			t.Parallel()
			path, err := osexec.LookPath("nats")
			if err != nil {
				t.Skip("nats is not installed: only its requests are tested, not the program")
			}
			runTour(t, page.path, page.commands, func(m *clustertest.Member) natsTool { return newProgram(t, path, m) }, false)
		})
	}
}

// natsTool runs command lines of `nats`.
type natsTool interface {
	// Do runs a command to its end and returns its output.
	Do(args []string) (string, error)
	// Follow starts a command that does not end, and returns when it is subscribed.
	Follow(args []string) (output func() string, stop func(), err error)
}

// step is a line of the tour: a command or an operator action, with its output.
type step struct {
	text   string
	output []string
}

// tourRun is a run of the tour.
type tourRun struct {
	t     *testing.T
	cl    *clustertest.Cluster
	tool  natsTool
	write bool

	output func() string // of the running Follow command; nil if there is none
	stop   func()
}

func runTour(t *testing.T, path string, commands int, tool func(*clustertest.Member) natsTool, write bool) {
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cl := clustertest.Start(t, 3, func(c *config.Config) { c.Scheduler.RetryBase = 20 * time.Millisecond })
	p := &tourRun{t: t, cl: cl, tool: tool(cl.Members[0]), write: write}
	p.waitSettled()
	steps := 0
	played := console.ReplaceAllStringFunc(string(page), func(block string) string {
		script := readScript(console.FindStringSubmatch(block)[1])
		for i := range script {
			if p.play(&script[i]); t.Failed() && !write {
				t.FailNow() // later steps depend on it
			}
			steps++
		}
		return "```console\n" + writeScript(script) + "```\n"
	})
	if steps < commands {
		t.Errorf("%s has %d commands, fewer than %d", path, steps, commands)
	}
	if write {
		if err := os.WriteFile(path, []byte(played), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var console = regexp.MustCompile("(?s)```console\n(.*?)```\n")

func readScript(text string) (script []step) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch command, is := strings.CutPrefix(line, "$ "); {
		case is || strings.HasPrefix(line, "# "):
			script = append(script, step{text: command})
		case line != "" && len(script) > 0:
			last := &script[len(script)-1]
			last.output = append(last.output, line)
		}
	}
	return script
}

func writeScript(script []step) string {
	var b strings.Builder
	for _, s := range script {
		if !strings.HasPrefix(s.text, "# ") {
			b.WriteString("$ ")
		}
		b.WriteString(s.text + "\n")
		for _, line := range s.output {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// play executes a step and waits until the output is as on the page.
func (p *tourRun) play(s *step) {
	command, filter, _ := strings.Cut(s.text, " | jq ")
	words := shellWords(command)
	if strings.HasPrefix(s.text, "# ") {
		p.direct(s.text)
		return
	}
	if _, real := p.tool.(*natsBinary); real && strings.HasPrefix(s.text, "nats stream view") {
		return // needs a terminal
	}
	switch last := words[len(words)-1]; {
	case s.text == "wait", s.text == "kill %1":
		// What happened just before the command may come first.
		p.until(s, false, func() (string, error) { return lastLines(p.output(), len(s.output)), nil })
		p.stop()
	case last == "&":
		command, pattern, _ := strings.Cut(strings.TrimSuffix(s.text, " &"), " | grep ")
		output, stop, err := p.tool.Follow(shellWords(command)[1:])
		if err != nil {
			p.t.Fatalf("%s: %v", s.text, err)
		}
		p.output, p.stop = func() string { return grep(pattern, output()) }, stop
		p.t.Cleanup(stop)
	default:
		p.until(s, isMutation(words), func() (string, error) {
			output, err := p.tool.Do(words[1:])
			if err == nil && filter != "" {
				output, err = jq(shellWords(filter), output)
			}
			return output, err
		})
	}
}

// data matches commands that print only the answer.
var data = regexp.MustCompile(` --(raw|json)`)

// lastLines returns the last n lines of text that are not blank.
func lastLines(text string, n int) string {
	lines := nonblank(text)
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

// nonblank returns the lines of text that are not blank.
func nonblank(text string) []string {
	return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return strings.TrimSpace(line) == "" })
}

func grep(pattern, text string) (found string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, pattern) {
			found += line
		}
	}
	return found
}

// direct executes an action of the operator that does not use nats.
func (p *tourRun) direct(direction string) {
	switch direction {
	case "# a worker serves queue mail":
		p.cl.Members[1].Worker(p.t, "mail", 2, echo)
	case "# n1 holds the authority":
		p.authorityAt("n1")
	default:
		p.t.Fatalf("unknown action: %s", direction)
	}
}

// waitSettled waits until n1 is the authority and every node leads its own lane.
func (p *tourRun) waitSettled() {
	p.authorityAt("n1")
	p.cl.Eventually("each member leads its lane", func() error {
		status, err := p.cl.Members[0].Status()
		for i, lane := range status.Lanes {
			if lane.Leader != p.cl.Members[i].Name {
				err = fmt.Errorf("lane %d is led by %q", i, lane.Leader)
			}
		}
		return err
	})
}

func (p *tourRun) authorityAt(name string) {
	p.cl.Eventually(name+" holds the authority", func() error {
		question := fmt.Sprintf(`{"command":"AcquireAuthority","owner":%q,"lease_id":"tour","leased_until":"tour"}`, name)
		if err := p.cl.Members[0].Request("yard.exec", question, nil); err != nil {
			return err
		}
		if now := p.cl.WaitAuthority(); now.Name != name {
			return fmt.Errorf("the authority is %s", now.Name)
		}
		return nil
	})
	p.cl.WaitReady()
}

// duplicate matches the mark of a job that was accepted before.
var duplicate = regexp.MustCompile(`("duplicate": ?)true`)

// until repeats fn until its output is as on the page, or runs it once if it changes
// something. A job with a message id is sent again if there is no answer, because the
// authority changes for example: it may then be a duplicate. It is also sent again until
// the node that answers knows it, if the page shows it as a duplicate.
func (p *tourRun) until(s *step, once bool, fn func() (string, error)) {
	p.t.Helper()
	patience := time.Minute
	if p.write {
		patience = 2 * time.Second
	}
	deadline := time.Now().Add(patience)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	once = once && !duplicate.MatchString(strings.Join(s.output, "\n"))
	unanswered := false // the job may have been accepted
	for {
		output, err := fn()
		if once && unanswered {
			output = duplicate.ReplaceAllString(output, "${1}false")
		}
		unanswered = err != nil && strings.Contains(s.text, "Nats-Msg-Id:")
		lines := nonblank(output)
		alike := err == nil && slices.Equal(normalize(s.text, lines), normalize(s.text, s.output))
		if _, real := p.tool.(*natsBinary); real && !data.MatchString(s.text) {
			alike = err == nil && len(lines) > 0 // the format depends on the version of nats
		}
		if alike && len(lines) > 0 && p.write {
			s.output = lines // keep the whole page consistent
		}
		if alike && (len(lines) > 0 || !p.write) {
			return
		}
		if once && !unanswered || time.Now().After(deadline) {
			if !p.write {
				p.t.Errorf("$ %s\n%s%v\nthe page has\n%s", s.text, strings.Join(lines, "\n"), err, strings.Join(s.output, "\n"))
			} else if err != nil {
				p.t.Errorf("$ %s\n%v", s.text, err)
			} else {
				s.output = lines
			}
			return
		}
		<-again.C
	}
}

// isMutation reports whether a command changes something and must be run once.
func isMutation(words []string) bool {
	if words[1] == "pub" {
		return true
	}
	reads := regexp.MustCompile(`(list|show|explain|status|snapshot|readiness|health|wait)$`)
	return words[1] == "req" && !reads.MatchString(words[2])
}

// volatile lists patterns of what differs between runs, and their replacements.
var volatile = []struct {
	is   *regexp.Regexp
	like string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "<id>"},
	{regexp.MustCompile(`\["[A-Za-z]+","[\w-]{22}",(\d+|"mail"),(\d+|"")(,-?\d+)*,(\d+|"none")`), "[<dispatch>"}, // a line of history
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?`), "<time>"},
	{regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d `), "<clock> "},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "<address>"},
	{regexp.MustCompile(`n\d-[0-9a-f]{8}`), "<server>"},
	{regexp.MustCompile(`<server>\*?, <server>\*?, <server>\*?`), "<servers>"},
	{regexp.MustCompile(`\.\.\.[^ ]*`), "..."},
	{regexp.MustCompile(`\[#\d+\]`), "[#]"},
	{regexp.MustCompile(`Nats-Msg-Id: .*`), "Nats-Msg-Id: #"},
	{regexp.MustCompile(`"(accepted_seq|age_ms|answers|at|authority|average_processing_time|bytes|cursor|epoch|from|http|incarnation|index|lane|lane_seq|lease_id|leader|next_after|oldest_seq|owner|processing_time|raft|replay_cursor|seq|to|worker|wait_ms|event_id|last_replayed_event_id|node)": ?("[^"]*"|-?[\d.]+|true|false)`), `"$1":#`},
	{regexp.MustCompile(`YARD_JOBS_\d Sequence: \d+`), "YARD_JOBS_#"},
	{regexp.MustCompile(`(Sequence|Yard-At|Yard-Event|Yard-Index|Yard-Lanes|revision): \d+`), "$1: #"},
	{regexp.MustCompile(`\b\d[\d.]*(ns|µs|ms|s|m|h|d)([\d.]+[smh])*\b`), "<while>"},
	{regexp.MustCompile(`=-?[\d.]+(B|s|%)?\b`), "=#"},
	{regexp.MustCompile(`│ [\d,.]+( ?[KMG]?i?B)? `), "│ # "},
	{regexp.MustCompile(`(│ YARD_STATE .*│ )(never|<while>) *│`), "$1<while>│"}, // has the first state after half a minute
	{regexp.MustCompile(`[─┬┴┼]+`), "─"},
	{regexp.MustCompile(` +`), " "},
}

// normalize returns the parts of lines that are the same in each run, sorted, because
// some commands sort by size or by time of the answer.
func normalize(command string, lines []string) []string {
	text := strings.Join(lines, "\n")
	for _, p := range volatile {
		text = p.is.ReplaceAllString(text, p.like)
	}
	like := strings.Split(text, "\n")
	slices.Sort(like)
	if strings.HasPrefix(command, "nats kv history") {
		return slices.Compact(like) // the number of elections differs
	}
	return like
}

// shellWords splits a command line with single quotes.
func shellWords(line string) (words []string) {
	var word strings.Builder
	begun, quoted := false, false
	for _, c := range line + " " {
		switch {
		case c == '\'':
			begun, quoted = true, !quoted
		case c == ' ' && !quoted && begun:
			words = append(words, word.String())
			word.Reset()
			begun = false
		case c != ' ' || quoted:
			word.WriteRune(c)
			begun = true
		}
	}
	return words
}

var errUnknownDirective = errors.New("not supported by the tour's test; extend it")

// natsBinary runs the program nats.
type natsBinary struct {
	t   *testing.T
	cmd func(args ...string) *osexec.Cmd
}

func newProgram(t *testing.T, path string, m *clustertest.Member) *natsBinary {
	home := t.TempDir()
	return &natsBinary{t, func(args ...string) *osexec.Cmd {
		c := osexec.CommandContext(t.Context(), path, args...)
		c.Env = append(os.Environ(), "NATS_URL="+m.Node().Addresses().NATS, "HOME="+home, "XDG_CONFIG_HOME="+home, "NO_COLOR=1")
		return c
	}}
}

func (p *natsBinary) Do(args []string) (string, error) {
	out, err := p.cmd(args...).CombinedOutput()
	if _, refused := errors.AsType[*osexec.ExitError](err); refused {
		err = nil // only the output is compared
	}
	return string(out), err
}

func (p *natsBinary) Follow(args []string) (output func() string, stop func(), err error) {
	var out outputBuffer
	c := p.cmd(args...)
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		return nil, nil, err
	}
	return out.String, sync.OnceFunc(func() {
		_ = c.Process.Kill() // it may have exited
		_ = c.Wait()         // it was killed
	}), nil
}

// outputBuffer collects the output of a running program.
type outputBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *outputBuffer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *outputBuffer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}
