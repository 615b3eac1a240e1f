package cli

import (
	"bytes"
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

	"github.com/creack/pty"
)

// overviewReply is an overview of a yard with one queue.
const overviewReply = `{"node":"n1","at":"2026-11-27T10:00:00Z","as_of":{"index":7,"at":"2026-11-27T10:00:00Z"},"certain":true,
	"points":{"step_ms":10000,"accepted":[null,10],"completed":[null,10],"failed":[null,0],"retried":[null,0]},
	"last_minute":{"accepted":600},"backlog":{"waiting":3},"members":[{"name":"n1","state":"up"}],"authority":{"owner":"n1"},
	"readiness":{"ready":true},"queues":[{"name":"mail","state":"running","counted":true,"backlog":{"waiting":3}}]}`

func topReplies() cannedReplies {
	return cannedReplies{
		"yard.api.v1.overview":      overviewReply,
		"yard.api.v1.queue.explain": `{"verdict":"No worker serves queue mail.","active":[],"reasons":[]}`,
	}
}

// TestTop_Once checks what is shown without a terminal.
func TestTop_Once(t *testing.T) {
	f := startFakeAPI(t, topReplies())
	got := f.run(t, "top", "--window", "15m")
	for _, want := range []string{"all queues  ready  authority n1  n1 up  15m", "accepted 10.0/s", "mail                                  3"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("%q is missing in\n%s%s", want, got.out, got.err)
		}
	}
	if strings.Contains(got.out, "\x1b") || got.code != 0 {
		t.Errorf("code %d, output %q", got.code, got.out)
	}
	if asked := fmt.Sprint(f.requests()); asked != `[overview {"window":"15m","queue":""}]` {
		t.Errorf("requests %s", asked)
	}
	if got := f.run(t, "top", "mail", "--once"); !strings.Contains(got.out, "No worker serves queue mail.") {
		t.Errorf("the queue is shown as\n%s%s", got.out, got.err)
	}
	sameJSON(t, f.run(t, "top", "--json").out, overviewReply)
}

// screen is what a terminal has received.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await blocks until the terminal has received a text.
func (s *screen) await(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(s.String(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the terminal has not received %q, but %q", text, s.String())
		}
	}
}

// TestTop_Terminal runs the verb in a pseudo-terminal, with colours and without: it shows the yard, a
// queue and the help, and quits.
func TestTop_Terminal(t *testing.T) {
	for _, noColor := range []bool{false, true} {
		t.Setenv("TERM", "xterm-256color")
		if t.Setenv("NO_COLOR", ""); noColor {
			t.Setenv("NO_COLOR", "1")
		} else {
			os.Unsetenv("NO_COLOR")
		}
		f := startFakeAPI(t, topReplies())
		keyboard, terminal, err := pty.Open()
		if err != nil {
			t.Skip("no pseudo-terminal: ", err)
		}
		if err := pty.Setsize(keyboard, &pty.Winsize{Rows: 30, Cols: 120}); err != nil {
			t.Fatal(err)
		}
		received := new(screen)
		var reading sync.WaitGroup
		reading.Go(func() {
			if _, err := io.Copy(received, keyboard); err != nil && !errors.Is(err, syscall.EIO) && !errors.Is(err, os.ErrClosed) {
				t.Errorf("read the terminal: %v", err)
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		code := make(chan int, 1)
		go func() {
			code <- Run(ctx, []string{"top", "--server", f.url}, Streams{In: terminal, Out: terminal, Err: terminal}, Program{})
		}()
		received.await(t, "authority ")
		send := func(keys string) {
			if _, err := keyboard.WriteString(keys); err != nil {
				t.Fatal(err)
			}
		}
		send("\r")
		received.await(t, "No worker serves")
		send("?")
		received.await(t, "Rates are of the last minute")
		send("?q")
		if got := <-code; got != 0 {
			t.Errorf("exit code %d", got)
		}
		cancel()
		terminal.Close()
		reading.Wait() // it ends when all is read
		keyboard.Close()
		if coloured := strings.Contains(received.String(), "\x1b[32m"); coloured == noColor {
			t.Errorf("NO_COLOR %v, and the output is coloured: %v", noColor, coloured)
		}
		if !strings.Contains(received.String(), "\x1b[?1049l") {
			t.Error("the terminal is left on its other screen")
		}
	}
}
