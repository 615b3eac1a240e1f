package nodetest_test

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

	"yardmaster/internal/nodetest"
	"yardmaster/node"
)

const tourPage = "../../docs/nats-cli.md"

// TestTour plays the tour that an operator reads: it asks what each line's
// command asks, and the page has to show what comes. With -rewrite it writes
// what came; read the diff.
func TestTour(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	t.Run("Requests", func(t *testing.T) {
		playTour(t, func(m *nodetest.Member) natsTool { return newStandIn(t, m) }, *rewrite)
	})
	t.Run("Program", func(t *testing.T) {
		path, err := osexec.LookPath("nats")
		if err != nil {
			t.Skip("nats is not installed: its requests are played, the program itself is not")
		}
		playTour(t, func(m *nodetest.Member) natsTool { return newProgram(t, path, m) }, false)
	})
}

// natsTool carries out the command lines of `nats`.
type natsTool interface {
	// Do runs one to its end and gives what it says.
	Do(args []string) (string, error)
	// Follow starts one that goes on, and returns when it hears.
	Follow(args []string) (said func() string, stop func(), err error)
}

// step is a line of the tour: a command, or a stage direction, and what is said
// to it.
type step struct {
	text string
	said []string
}

// tour is a page being played.
type tour struct {
	t     *testing.T
	y     *nodetest.Yard
	tool  natsTool
	write bool

	said func() string // by the command that goes on, nil: none
	stop func()
}

func playTour(t *testing.T, tool func(*nodetest.Member) natsTool, write bool) {
	page, err := os.ReadFile(tourPage)
	if err != nil {
		t.Fatal(err)
	}
	y := nodetest.Start(t, 3, func(c *node.Config) { c.Scheduler.RetryBase = 20 * time.Millisecond })
	p := &tour{t: t, y: y, tool: tool(y.Members[0]), write: write}
	p.settled()
	steps := 0
	played := console.ReplaceAllStringFunc(string(page), func(block string) string {
		script := readScript(console.FindStringSubmatch(block)[1])
		for i := range script {
			if p.play(&script[i]); t.Failed() && !write {
				t.FailNow() // what follows builds on it
			}
			steps++
		}
		return "```console\n" + writeScript(script) + "```\n"
	})
	if steps < 30 {
		t.Errorf("the tour has %d lines, it had more", steps)
	}
	if write {
		if err := os.WriteFile(tourPage, []byte(played), 0o644); err != nil {
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
			last.said = append(last.said, line)
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
		for _, line := range s.said {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// play does what a step says, and looks until the page tells what it sees.
func (p *tour) play(s *step) {
	command, filter, _ := strings.Cut(s.text, " | jq ")
	words := shellWords(command)
	if strings.HasPrefix(s.text, "# ") {
		p.stage(s.text)
		return
	}
	if _, real := p.tool.(*program); real && strings.HasPrefix(s.text, "nats stream view") {
		return // it wants a terminal
	}
	switch last := words[len(words)-1]; {
	case s.text == "wait", s.text == "kill %1":
		p.until(s, false, func() (string, error) { return p.said(), nil })
		p.stop()
	case last == "&":
		command, pattern, _ := strings.Cut(strings.TrimSuffix(s.text, " &"), " | grep ")
		said, stop, err := p.tool.Follow(shellWords(command)[1:])
		if err != nil {
			p.t.Fatalf("%s: %v", s.text, err)
		}
		p.said, p.stop = func() string { return grep(pattern, said()) }, stop
		p.t.Cleanup(stop)
	default:
		p.until(s, changes(words), func() (string, error) {
			said, err := p.tool.Do(words[1:])
			if err == nil && filter != "" {
				said, err = jq(shellWords(filter), said)
			}
			return said, err
		})
	}
}

// data marks a command whose output is what was answered, and nothing else.
var data = regexp.MustCompile(` --(raw|json)`)

func grep(pattern, text string) (found string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, pattern) {
			found += line
		}
	}
	return found
}

// stage is what the operator does not do with nats.
func (p *tour) stage(direction string) {
	switch direction {
	case "# a worker takes the jobs of mail":
		p.y.Members[1].Worker(p.t, "mail", 2, echo)
	case "# n1 holds the authority":
		p.authorityAt("n1")
	default:
		p.t.Fatalf("nobody knows how to do: %s", direction)
	}
}

// settled: n1 decides, and every lane is led where its jobs come in.
func (p *tour) settled() {
	p.authorityAt("n1")
	p.y.Eventually("lanes are led by their members", func() error {
		status, err := p.y.Members[0].Status()
		for i, lane := range status.Lanes {
			if lane.Leader != p.y.Members[i].Name {
				err = fmt.Errorf("lane %d is led by %q", i, lane.Leader)
			}
		}
		return err
	})
}

func (p *tour) authorityAt(name string) {
	p.y.Eventually(name+" holds the authority", func() error {
		question := fmt.Sprintf(`{"command":"AcquireAuthority","owner":%q,"lease_id":"tour","leased_until":"tour"}`, name)
		if err := p.y.Members[0].Ask("yard.exec", question, nil); err != nil {
			return err
		}
		if now := p.y.WaitAuthority(); now.Name != name {
			return fmt.Errorf("it is %s", now.Name)
		}
		return nil
	})
	p.y.WaitReady()
}

// until looks until what is seen is what the page shows, or only once at what
// the looking changes.
func (p *tour) until(s *step, once bool, look func() (string, error)) {
	p.t.Helper()
	patience := 20 * time.Second
	if p.write {
		patience = 2 * time.Second
	}
	deadline := time.Now().Add(patience)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		said, err := look()
		lines := slices.DeleteFunc(strings.Split(said, "\n"), func(line string) bool { return strings.TrimSpace(line) == "" })
		alike := err == nil && slices.Equal(likeness(s.text, lines), likeness(s.text, s.said))
		if _, real := p.tool.(*program); real && !data.MatchString(s.text) {
			alike = err == nil && len(lines) > 0 // its versions lay things out in their own ways
		}
		if alike && len(lines) > 0 && p.write {
			s.said = lines // all of the page is of one day
		}
		if alike && (len(lines) > 0 || !p.write) {
			return
		}
		if once || time.Now().After(deadline) {
			if !p.write {
				p.t.Errorf("$ %s\n%s%v\nthe page has\n%s", s.text, strings.Join(lines, "\n"), err, strings.Join(s.said, "\n"))
			} else if err != nil {
				p.t.Errorf("$ %s\n%v", s.text, err)
			} else {
				s.said = lines
			}
			return
		}
		<-again.C
	}
}

// changes tells that a command does something: it is given once.
func changes(words []string) bool {
	if words[1] == "pub" {
		return true
	}
	reads := regexp.MustCompile(`(list|show|explain|status|snapshot|readiness|health|wait)$`)
	return words[1] == "req" && !reads.MatchString(words[2])
}

// passing is what differs each time, and what stands for it in a comparison.
var passing = []struct {
	is   *regexp.Regexp
	like string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "<id>"},
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
	{regexp.MustCompile(`(Sequence|Yard-At|Yard-Index|Yard-Lanes|revision): \d+`), "$1: #"},
	{regexp.MustCompile(`=-?[\d.]+(B|s|%)?\b`), "=#"},
	{regexp.MustCompile(`\b\d[\d.]*(ns|µs|ms|s|m|h|d)([\d.]+[smh])*\b`), "<while>"},
	{regexp.MustCompile(`│ [\d,.]+( ?[KMG]?i?B)? `), "│ # "},
	{regexp.MustCompile(`[─┬┴┼]+`), "─"},
	{regexp.MustCompile(` +`), " "},
}

// likeness is what of some lines is the same each time, in an order of its own:
// some commands sort by size or by who answers first.
func likeness(command string, lines []string) []string {
	text := strings.Join(lines, "\n")
	for _, p := range passing {
		text = p.is.ReplaceAllString(text, p.like)
	}
	like := strings.Split(text, "\n")
	slices.Sort(like)
	if strings.HasPrefix(command, "nats kv history") {
		return slices.Compact(like) // how many elections there were before is not told
	}
	return like
}

// shellWords splits a command as a shell does that knows single quotes.
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

var errNotKnown = errors.New("the tour's player does not know that; teach it")

// program is nats itself.
type program struct {
	t   *testing.T
	cmd func(args ...string) *osexec.Cmd
}

func newProgram(t *testing.T, path string, m *nodetest.Member) *program {
	home := t.TempDir()
	return &program{t, func(args ...string) *osexec.Cmd {
		c := osexec.CommandContext(t.Context(), path, args...)
		c.Env = append(os.Environ(), "NATS_URL="+m.Node().Addresses().NATS, "HOME="+home, "XDG_CONFIG_HOME="+home, "NO_COLOR=1")
		return c
	}}
}

func (p *program) Do(args []string) (string, error) {
	out, err := p.cmd(args...).CombinedOutput()
	if _, refused := errors.AsType[*osexec.ExitError](err); refused {
		err = nil // what it says is compared
	}
	return string(out), err
}

func (p *program) Follow(args []string) (said func() string, stop func(), err error) {
	var out words
	c := p.cmd(args...)
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		return nil, nil, err
	}
	return out.String, sync.OnceFunc(func() {
		_ = c.Process.Kill() // it may have ended
		_ = c.Wait()         // by that
	}), nil
}

// words are what a program says while others listen.
type words struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *words) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}
