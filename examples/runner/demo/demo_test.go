package demo

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// example is the same runner in Python.
var example = filepath.Join("..", "..", "runner-python", "runner.py")

// runners holds functions that run the same handlers in each language at an
// address.
var runners = map[string]func(ctx context.Context, t *testing.T, addr string) error{
	"go": func(ctx context.Context, _ *testing.T, addr string) error {
		return Main(ctx, []string{"--tcp-socket", addr})
	},
	"python": func(ctx context.Context, t *testing.T, addr string) error {
		cmd := exec.CommandContext(ctx, "python3", example, "--tcp-socket", addr)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = 20 * time.Second
		cmd.Stderr = t.Output()
		if err := cmd.Run(); ctx.Err() == nil {
			return fmt.Errorf("%s: %w", example, err)
		}
		return nil
	},
}

// startRunner runs a runner on a free port and returns a connection to it.
func startRunner(t *testing.T, language string) *rrq.Conn {
	t.Helper()
	if _, err := exec.LookPath("python3"); language == "python" && err != nil {
		t.Skip("no python3 on this machine")
	}
	addr := testnet.Address(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- runners[language](ctx, t, addr) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("runner: %v", err)
		}
	})
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			done <- nil
			t.Fatalf("runner ended: %v", err)
		case <-tick.C:
			if conn, err := rrq.Dial(t.Context(), addr); err == nil {
				t.Cleanup(func() { _ = conn.Close() })
				return conn
			}
		}
	}
}

func do(t *testing.T, c *rrq.Conn, function, params string, attempt uint32) rrq.Outcome {
	t.Helper()
	id := fmt.Sprintf("j#%d", attempt)
	r := rrq.Request{RequestID: id, JobID: "j", Function: function, Params: []byte(params),
		Context: rrq.Context{Attempt: attempt, EnqueueTime: time.Now(), Fence: 77, DispatchID: id}}
	o, err := c.Do(t.Context(), &r)
	if err != nil {
		t.Fatalf("%s: %v", function, err)
	}
	return o
}

func TestHandlers(t *testing.T) {
	for language := range runners {
		t.Run(language, func(t *testing.T) { testHandlers(t, language) })
	}
}

func testHandlers(t *testing.T, language string) {
	witnessed := filepath.Join(t.TempDir(), "witness")
	t.Setenv(WitnessEnv, witnessed)
	c := startRunner(t, language)
	for _, test := range []struct {
		function, params string
		attempt          uint32
		status, result   string
	}{
		{"echo", `{"n":9007199254740993}`, 1, rrq.Success, `{"n":9007199254740993}`},
		{"sleep", `{"ms":1}`, 2, rrq.Success, `{"ms":1}`},
		{"fail", `{"message":"x"}`, 3, rrq.Error, ``},
		{"retry", `{"times":1,"after":0.5}`, 1, rrq.Retry, ``},
		{"retry", `{"times":1}`, 2, rrq.Success, `{"attempt":2}`},
		{"big", `{"bytes":3}`, 6, rrq.Success, `"xxx"`},
		{"big", `{"bytes":17000000}`, 7, rrq.Error, ``},
		{"hash", `{"text":"ü"}`, 6, rrq.Success, `{"bytes":2,"sha256":"607474ca475a9724d7360aba71a56d5df77e61350e3f724cfa1f46e857e2d85f"}`},
		{"crash", `{"times":6}`, 7, rrq.Success, `{"times":6}`},
		{"sleep", `{"ms":"x"}`, 8, rrq.Error, ``},
		{"nobody", `{}`, 9, rrq.Error, ``},
	} {
		o := do(t, c, test.function, test.params, test.attempt)
		if o.Status != test.status || string(o.Result) != test.result {
			t.Errorf("%s %s gives %s %s %+v", test.function, test.params, o.Status, o.Result, o.Fault)
		}
		if test.function == "nobody" && o.Fault.Type != rrq.HandlerNotFound {
			t.Errorf("unknown function gives %+v", o.Fault)
		}
	}
	b, err := os.ReadFile(witnessed)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 20 || lines[0] != "j#1 j 1 77" || lines[1] != "end j#1" || lines[2] != "j#2 j 2 77" {
		t.Errorf("witness has %d lines: %q", len(lines), lines)
	}
}

// What one language can be asked for, so can the other.
func TestSameHandlers(t *testing.T) {
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, found := range regexp.MustCompile(`(?m)^@handler\("(.+)"\)$`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, found[1])
	}
	slices.Sort(names)
	if want := slices.Sorted(maps.Keys(handlers)); !slices.Equal(names, want) {
		t.Errorf("%s has the handlers %q, here are %q", example, names, want)
	}
}

func TestMainRefusesSockets(t *testing.T) {
	for _, socket := range []string{"", "9000", "10.0.0.1:9000", "0.0.0.0:9000", "127.0.0.1:0", "127.0.0.1:70000", "example.org:9000"} {
		t.Setenv(SocketEnv, socket)
		if err := Main(t.Context(), nil); err == nil {
			t.Errorf("socket %q was taken", socket)
		}
	}
	for _, socket := range []string{"127.0.0.1:9000", "localhost:9000", "[::1]:9000"} {
		if _, err := loopback(socket); err != nil {
			t.Error(err)
		}
	}
}
