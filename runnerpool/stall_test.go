package runnerpool

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
)

func TestStall_RunnersThatDoNotStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() }) // after the parallel tests below
	port := taken.Addr().(*net.TCPAddr).Port
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, mode, reason, note string
		change                   func(*RunnerConfig)
	}{
		{"crash before bind", "crash-before-bind", "exited before it listened: exit status 3", job.StalledCrashLoop, nil},
		{"never binds", "never-binds", "does not listen in time; does it take its socket from RRQ_RUNNER_TCP_SOCKET or --tcp-socket?", job.StalledCrashLoop, nil},
		{"binds elsewhere", "elsewhere", "does not listen in time", job.StalledCrashLoop, nil},
		{"stranger answers", "daemon", "another process listens on the runner's port; give each node and runner its own ports", job.StalledCrashLoop, nil},
		{"port taken", "", fmt.Sprintf("port %d: port is in use by another process; free it or change tcp_port", port), job.StalledPortTaken, func(c *RunnerConfig) { c.TCPPort = port }},
		{"binary missing", "", "program /no/such/runner not found; check cmd and PATH", job.StalledCannotStart, func(c *RunnerConfig) { c.Cmd = []string{"/no/such/runner"} }},
		{"binary no program", "", text + " may not be executed; check its mode", job.StalledCannotStart, func(c *RunnerConfig) { c.Cmd = []string{text} }},
		{"directory missing", "", "working directory /no/such/dir does not exist; check cwd", job.StalledCannotStart, func(c *RunnerConfig) { c.Cwd = "/no/such/dir" }},
		{"crash loop", "crash-before-bind", "crash loop, 5 exits within 1m; last: exited before it listened: exit status 3; see the node's log for its output", job.StalledCrashLoop, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig(test.mode, test.change)
			cfg.ConnectTimeoutMS = 300
			if test.mode == "crash-before-bind" {
				cfg.ConnectTimeoutMS = 0
			}
			y := startHarness(t, cfg)
			y.awaitReason(test.reason)
			n := y.awaitNote()
			if !strings.HasPrefix(n.Worker, "rrq/r/") || n.Worker == "rrq/r/0" || !n.Stalled || n.Detail != test.note {
				t.Errorf("note is %+v", n)
			}
			if s := y.awaitReason(test.reason); s.CrashLooping != 1 {
				t.Errorf("status is %+v", s)
			}
			if len(y.offers) != 0 || len(y.notes) != 0 {
				t.Errorf("offers are %v, %d more notes; want none", y.offers, len(y.notes))
			}
		})
	}
}

// A runner that cannot be started is tried again, whatever the reason, and its
// recovery is reported once it has answered.
func TestStall_RunnersThatStartLater(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() }) // if the test ends early
	program := filepath.Join(t.TempDir(), "runner")
	for name, test := range map[string]struct {
		change func(*RunnerConfig)
		mend   func() error
	}{
		"port":    {func(c *RunnerConfig) { c.TCPPort = taken.Addr().(*net.TCPAddr).Port }, taken.Close},
		"program": {func(c *RunnerConfig) { c.Cmd = []string{program} }, func() error { return os.Symlink(os.Args[0], program) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			y := startHarness(t, testConfig("", test.change))
			stalled := y.awaitNote()
			if err := test.mend(); err != nil {
				t.Fatal(err)
			}
			y.expect(y.run("echo", nil), job.Success, true, "")
			n := y.awaitNote()
			if n.Stalled || n.Detail != job.RecoveredProven || n.Worker != stalled.Worker {
				t.Errorf("after %+v the note is %+v", stalled, n)
			}
			if s := y.Status()[0]; s.CrashLooping != 0 || s.Reason != "" || s.Up != 1 {
				t.Errorf("status is %+v", s)
			}
		})
	}
}

// A runner that exits on every job is not offered for ever. It is reported
// once, and has recovered when it has answered a job.
func TestCrashLoopByJobs(t *testing.T) {
	t.Parallel()
	y := startHarness(t, testConfig("", nil))
	for range crashLoopExits {
		if o := y.run("crash", nil); o.Status != job.Lost {
			t.Fatalf("outcome is %s", o.Status)
		}
	}
	if s := y.awaitReason("crash loop"); s.CrashLooping != 1 {
		t.Errorf("status is %+v", s)
	}
	if n := y.awaitNote(); !n.Stalled || n.Detail != job.StalledCrashLoop {
		t.Errorf("note is %+v", n)
	}
	y.run("crash", nil) // it had lived long enough to be offered again
	y.awaitReason("crash loop")
	y.run("echo", nil)
	if n := y.awaitNote(); n.Stalled || n.Detail != job.RecoveredProven {
		t.Errorf("note is %+v", n)
	}
	if len(y.notes) != 0 {
		t.Errorf("one more note: %+v", <-y.notes)
	}
}

// A crash loop continues although the growing delays leave fewer exits in the
// window.
func TestRestartDelay_KeepsCrashLoop(t *testing.T) {
	m := New(testConfig("", nil), "n", newRecorder(), slog.New(slog.DiscardHandler)).members[0]
	r := crashHistory{backoff: backoff.Backoff{Base: minRestartDelay, Max: maxRestartDelay}}
	now := time.Now()
	for range 10 * crashLoopExits {
		now = now.Add(m.restartDelay(&r, errors.New("boom"), now))
	}
	if !m.isCrashLooping() || len(r.exits) >= crashLoopExits {
		t.Errorf("crash loop is %t after exits at %v", m.isCrashLooping(), r.exits)
	}
	m.endCrashLoop()
	m.noteAnswered()
	if m.restartDelay(&r, errors.New("boom"), now); m.isCrashLooping() {
		t.Error("crash loop after one exit since the last answer")
	}
}
