package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"
)

// runAt runs a verb with a terminal of so many columns as its standard output, and returns its lines there.
// Standard error is no terminal.
func (f *fakeAPI) runAt(t *testing.T, columns uint16, args ...string) (lines []string, stderr string) {
	t.Helper()
	keyboard, terminal, err := pty.Open()
	if err != nil {
		t.Skip("no pseudo-terminal: ", err)
	}
	defer keyboard.Close()
	if err := pty.Setsize(keyboard, &pty.Winsize{Rows: 24, Cols: columns}); err != nil {
		t.Fatal(err)
	}
	var received, notes strings.Builder
	var reading sync.WaitGroup
	reading.Go(func() {
		if _, err := io.Copy(&received, keyboard); err != nil && !errors.Is(err, syscall.EIO) && !errors.Is(err, os.ErrClosed) {
			t.Errorf("read the terminal: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code := Run(ctx, append(args, "--server", f.url), Streams{In: strings.NewReader(""), Out: terminal, Err: &notes}, Program{})
	terminal.Close()
	reading.Wait() // it ends when all is read
	if code != 0 {
		t.Fatalf("%v: exit code %d: %s", args, code, notes.String())
	}
	return strings.Split(strings.TrimRight(strings.ReplaceAll(received.String(), "\r\n", "\n"), "\n"), "\n"), notes.String()
}

// Tables fit a terminal, with names of queues as long as they may be, and with texts that are hostile. What is
// left out for it is named, and nothing is left out without a terminal.
func TestTerminalWidth(t *testing.T) {
	for _, verb := range []struct {
		args, endpoint string
		always, spared string // titles: those that are always shown, and those that are left out in 80 columns
	}{
		{"queue list", "queue-list", "QUEUE STATE WAITING ACTIVE FAILED", "EXPIRED CANCELLED"},
		{"job list", "job-list", "JOB QUEUE STATE FUNCTION", "PARAMS KEY ATTEMPT"},
		{"dlq list", "dlq-list", "LETTER JOB QUEUE ERROR", "STATE ATTEMPTS"},
		{"cron list", "cron-list", "ENTRY STATE SCHEDULE QUEUE NEXT", "FROM SKIPPED MISSED"},
		{"limit list", "limit-list", "LIMIT STATE RUNNING WAITING", ""},
		{"operation list", "operation-list", "OPERATION ACTION STATE CHANGED QUERY", ""},
		{"schema list", "schema-list", "QUEUE FUNCTION MODE", ""},
		{"workers", "worker-list", "NODE NAME WORKER", ""},
		{"cluster members", "cluster-members", "MEMBER STATE REACHABLE VOTE LAG", "RAFT ROUTE"},
	} {
		t.Run(verb.args, func(t *testing.T) {
			text := strings.Repeat("q", 81)
			f := startFakeAPI(t, cannedReplies{endpointNamed(t, verb.endpoint).Subject: func([]byte) ([]byte, error) {
				return []byte(replyOnce(t, verb.endpoint, text)), nil
			}})
			all := strings.Split(f.run(t, strings.Fields(verb.args)...).out, "\n")
			for _, text = range []string{text, hostile, strings.Repeat("表", 81), "word " + strings.Repeat("x", 81)} {
				for _, columns := range []uint16{80, 120, 1000} {
					lines, notes := f.runAt(t, columns, strings.Fields(verb.args)...)
					for i, line := range lines {
						if strings.TrimSpace(line) == "" {
							break // texts are below the table
						}
						if got := ansi.StringWidth(line); got > int(columns) && strings.Count(line, "  ") > 2 {
							t.Errorf("line %d has %d columns, the terminal %d: %s", i, got, columns, line)
						}
					}
					for _, title := range strings.Fields(verb.always) {
						if !strings.Contains(lines[0], title) {
							t.Errorf("%s is missing in %d columns: %s", title, columns, lines[0])
						}
					}
					for _, title := range strings.Fields(verb.spared) {
						if !strings.Contains(all[0], title) {
							t.Errorf("%s is missing without a terminal: %s", title, all[0])
						}
						if isShown := strings.Contains(" "+lines[0]+" ", " "+title+" "); columns != 120 && isShown != (columns == 1000) {
							t.Errorf("%s in %d columns: %s", title, columns, lines[0])
						}
					}
					if said := strings.Contains(notes, "not shown, for lack of width; --json shows all"); said != (strings.Join(strings.Fields(lines[0]), " ") != strings.Join(strings.Fields(all[0]), " ")) {
						t.Errorf("%d columns, titles %q, without a terminal %q, notes %q", columns, lines[0], all[0], notes)
					}
				}
			}
		})
	}
}

// replyOnce is replyWith for a page that is the last one.
func replyOnce(t *testing.T, endpoint, text string) string {
	reply := replyWith(t, endpoint, text)
	for _, next := range []string{fmt.Sprintf(`"next":%q`, text), `"next":7`} {
		reply = strings.Replace(reply, next, `"next":null`, 1)
	}
	return reply
}

// A snapshot of the overview fits the terminal.
func TestTerminalWidth_Top(t *testing.T) {
	long := strings.Repeat("q", 81)
	f := startFakeAPI(t, cannedReplies{"yard.api.v1.overview": strings.ReplaceAll(overviewReply, `"mail"`, `"`+long+`"`)})
	if !strings.Contains(overviewReply, `"mail"`) {
		t.Fatal("the overview has no queue mail")
	}
	for _, columns := range []uint16{40, 80, 120} {
		lines, _ := f.runAt(t, columns, "top", "--once")
		found := false
		for _, line := range lines {
			if got := ansi.StringWidth(line); got > int(columns) {
				t.Errorf("%d columns of %d: %s", got, columns, line)
			}
			found = found || strings.HasPrefix(line, "qqqqq") && strings.Contains(line, "qq…qq")
		}
		if !found || !strings.Contains(strings.Join(lines, "\n"), "WAITING") {
			t.Errorf("in %d columns:\n%s", columns, strings.Join(lines, "\n"))
		}
	}
}
