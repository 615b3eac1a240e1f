package runnerpool

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// The end of a process is detected by the process, not by its sockets, which a
// child may keep open. Processes that it forked are killed.
func TestForkedChildren(t *testing.T) {
	y := startHarness(t, testConfig("", nil))
	child, err := strconv.Atoi(string(y.run("fork", nil).Result.Data))
	if err != nil {
		t.Fatal(err)
	}
	if o := y.run("crash", nil); o.Status != job.Lost {
		t.Fatalf("outcome is %+v", o)
	}
	awaitGone(t, child, 2*time.Second)
	child, err = strconv.Atoi(string(y.run("fork", nil).Result.Data))
	if err != nil {
		t.Fatal(err)
	}
	y.close()
	awaitGone(t, child, 2*time.Second)
}

// awaitReason waits until a pool that is not up shows a reason.
func (h *harness) awaitReason(part string) api.Pool {
	h.t.Helper()
	late, tick := time.After(testTimeout), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		s := h.Status()[0]
		if s.Up == 0 && strings.Contains(s.Reason, part) {
			return s
		}
		select {
		case <-tick.C:
		case <-late:
			h.t.Fatalf("status is %+v, want reason %q", s, part)
		}
	}
}

// Another process that listens on the port is not taken for the runner.
func TestForeignListenerOnPort(t *testing.T) {
	own, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	port := own.Addr().(*net.TCPAddr).Port
	if err := checkListener(port, syscall.Getpgrp()); err != nil {
		t.Errorf("own listener: %v", err)
	}
	y := startHarness(t, testConfig("", nil))
	runner, err := strconv.Atoi(y.pid())
	if err != nil {
		t.Fatal(err)
	}
	if err := checkListener(port, runner); err == nil || !strings.Contains(err.Error(), errForeignListener.Error()) {
		t.Errorf("the test's listener is taken for the runner's: %v", err)
	}
	if err := checkListener(y.Status()[0].Members[0].Port, runner); err != nil {
		t.Errorf("the runner's own listener: %v", err)
	}
}

// After kill -9 of the node its runner dies at once, processes that the runner
// forked at the node's next start, and no other process.
func TestKilledNode_LeavesNoOrphan(t *testing.T) {
	dir := t.TempDir()
	node, runner, forked, err := startNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = node.Wait() // killed
	awaitGone(t, runner, 2*time.Second)
	if _, alive := readStat(forked); !alive {
		t.Fatal("the forked process did not survive the node")
	}
	cfg := testConfig("", nil)
	cfg.Dir = dir
	y := startHarness(t, cfg)
	y.expect(y.run("echo", nil), job.Success, true, "")
	awaitGone(t, forked, 2*time.Second)
	y.close()
	if b, err := os.ReadFile(filepath.Join(dir, "runners.json")); err != nil || len(b) > 0 {
		t.Errorf("record of runners after a clean stop is %q, %v", b, err)
	}
}

// A copy of the data directory of a running node names runners that are not
// orphans.
func TestReap_SparesRunnersOfLivingNode(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	node, runner, forked, err := startNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = node.Process.Kill()
		_ = node.Wait() // killed
		if _, err := newGroupFile(dir).reap(); err != nil {
			t.Error(err)
		}
	}()
	list, err := os.ReadFile(filepath.Join(dir, "runners.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(copied, "runners.json"), list, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := newGroupFile(copied).reap(); n != 0 || err != nil {
		t.Errorf("reaped %d, %v", n, err)
	}
	for _, pid := range []int{runner, forked} {
		if s, alive := readStat(pid); !alive || s.state == 'Z' {
			t.Errorf("process %d of a running node was killed", pid)
		}
	}
}

// With a warden, processes that the runner forked die with the node, too.
func TestWarden_KillsForkedProcesses(t *testing.T) {
	node, runner, forked, err := startNode(t.TempDir(), wardenArg)
	if err != nil {
		t.Fatal(err)
	}
	if _, alive := readStat(forked); !alive {
		t.Fatal("the warden killed a process of a running node")
	}
	if err := node.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = node.Wait() // killed
	awaitGone(t, runner, 2*time.Second)
	awaitGone(t, forked, 2*time.Second)
}

// A warden exits with its pools, is restarted if it exits before, and refuses a
// prefix that could match other nodes.
func TestWarden_EndsWithPools(t *testing.T) {
	cfg := testConfig("", nil)
	cfg.Warden = []string{os.Args[0], wardenArg}
	y := startHarness(t, cfg)
	first := awaitWarden(t, y.groups.marker, 0)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := awaitWarden(t, y.groups.marker, first)
	if err := syscall.Kill(second, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	y.expect(y.run("echo", nil), job.Success, true, "")
	if _, alive := readStat(second); !alive {
		t.Error("the warden exited on SIGTERM")
	}
	y.close()
	awaitGone(t, second, 2*time.Second)
	for _, prefix := range []string{"", "YARD_RUNNER=", "YARD_RUNNER=/x", "PATH=/"} {
		if n, err := Warden(strings.NewReader(""), prefix); n != 0 || err == nil {
			t.Errorf("Warden(%q) = %d, %v", prefix, n, err)
		}
	}
}

// awaitWarden waits for a warden with the given prefix, other than previous,
// that ignores signals, and returns its pid.
func awaitWarden(t *testing.T, prefix string, previous int) int {
	t.Helper()
	late, tick := time.After(10*time.Second), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		for pid, s := range processes() {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err != nil || s.state == 'Z' || pid == previous || !bytes.HasSuffix(line, []byte(wardenArg+"\x00"+prefix+"\x00")) {
				continue
			}
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, mask, _ := strings.Cut(string(status), "SigIgn:\t")
			ignored, _ := strconv.ParseUint(strings.TrimSpace(mask[:min(len(mask), 16)]), 16, 64)
			if err == nil && ignored>>(syscall.SIGTERM-1)&1 == 1 {
				return pid
			}
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("no warden in 10 s")
		}
	}
}

// A pid that was reused by another process is left alone.
func TestReap_SparesForeignProcesses(t *testing.T) {
	dir := t.TempDir()
	self := fmt.Sprintf(`{"pid":%d,"start":1,"marker":"YARD_RUNNER=x","worker":"r/1"}`+"\n"+`{"pid":`, os.Getppid())
	if err := os.WriteFile(filepath.Join(dir, "runners.json"), []byte(self), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := newGroupFile(dir).reap(); n != 0 || err != nil {
		t.Errorf("reaped %d, %v", n, err)
	}
}

// buffer is a log that can be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestSocketHandOverAndOutput(t *testing.T) {
	for _, test := range []struct {
		via      string
		cmd      []string
		env, arg bool
	}{
		{via: SocketBoth, env: true, arg: true},
		{via: SocketEnv, env: true},
		{via: SocketArg, arg: true},
		{via: SocketBoth, cmd: []string{os.Args[0], socketArg, socketPlaceholder}, env: true, arg: true},
	} {
		log := &buffer{}
		cfg := testConfig("tells", func(c *RunnerConfig) {
			c.SocketVia = test.via
			if test.cmd != nil {
				c.Cmd = test.cmd
			}
		})
		y := runHarness(t, cfg, slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		w := y.awaitOffer(1)
		addr := "127.0.0.1:" + strings.TrimPrefix(w, "r/")
		y.close()
		got := log.String()
		want := []string{
			`"line":"args: "`, `"line":"env:"`,
			`"level":"DEBUG","msg":"runner output","runner":"r","member":0,"port":` + strings.TrimPrefix(w, "r/") +
				`,"stream":"stderr","record":{"level":"debug","n":12345678901234567890}`,
			`"line":"` + strings.Repeat("x", maxLine) + `","truncated":true`,
			`"stream":"stdout","line":"end"`,
		}
		if test.arg {
			want[0] = `"line":"args: --tcp-socket ` + addr + `"`
		}
		if test.env {
			want[1] = `"line":"env: ` + addr + `"`
		} else {
			want[1] = `"line":"env: "`
		}
		for _, part := range want {
			if !strings.Contains(got, part) {
				t.Errorf("%s: log lacks %.200s:\n%.3000s", test.via, part, got)
			}
		}
	}
}

// A runner that refuses the socket argument is started again without it, at once. What
// works is remembered. A runner that fails for another reason is not misjudged.
func TestSocketHandOver_Auto(t *testing.T) {
	for _, test := range []struct {
		mode, remembered string
		warnings         int
	}{
		{"good", SocketBoth, 0},
		{"arg-only", SocketBoth, 0},
		{"strict", SocketEnv, 1},
	} {
		t.Run(test.mode, func(t *testing.T) {
			log := &buffer{}
			y := runHarness(t, testConfig(test.mode, nil), slog.New(slog.NewTextHandler(log, nil)))
			y.expect(y.run("echo", nil), job.Success, true, "")
			if s := y.Status()[0].Members[0]; s.Restarts != 0 {
				t.Errorf("it counts as a restart: %+v", s)
			}
			y.run("crash", nil)
			y.expect(y.run("echo", nil), job.Success, true, "")
			if n := strings.Count(log.String(), "starting it without --tcp-socket"); n != test.warnings {
				t.Errorf("started %d times without the argument, want %d:\n%s", n, test.warnings, log.String())
			}
			y.close()
			if got := y.members[0].cfg.SocketVia; got != test.remembered {
				t.Errorf("remembered %q, want %q", got, test.remembered)
			}
		})
	}
	y := startHarness(t, testConfig("crash-before-bind", nil))
	y.awaitReason("exited before it listened: exit status 3")
	y.close()
	if got := y.members[0].cfg.SocketVia; got != SocketAuto {
		t.Errorf("a runner that never listened is remembered as %q", got)
	}
}
