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

	"yardmaster/job"
)

// The end is noticed by the process, not by its sockets, which a child may
// hold; and what it forked goes with it.
func TestForkedChildren(t *testing.T) {
	y := startYard(t, testConfig("", nil))
	child, err := strconv.Atoi(string(y.do("fork", nil).Result.Data))
	if err != nil {
		t.Fatal(err)
	}
	if o := y.do("crash", nil); o.Status != job.Lost {
		t.Fatalf("outcome is %+v", o)
	}
	awaitGone(t, child, 2*time.Second)
	child, err = strconv.Atoi(string(y.do("fork", nil).Result.Data))
	if err != nil {
		t.Fatal(err)
	}
	y.close()
	awaitGone(t, child, 2*time.Second)
}

// awaitReason waits until a pool that is not up says why.
func (y *yard) awaitReason(part string) PoolStatus {
	y.t.Helper()
	late, tick := time.After(patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		s := y.Status()[0]
		if s.Up == 0 && strings.Contains(s.Reason, part) {
			return s
		}
		select {
		case <-tick.C:
		case <-late:
			y.t.Fatalf("status is %+v, want reason %q", s, part)
		}
	}
}

// Somebody else who answers on the port is not taken for the runner.
func TestStrangerOnThePort(t *testing.T) {
	own, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	port := own.Addr().(*net.TCPAddr).Port
	if err := listener(port, syscall.Getpgrp()); err != nil {
		t.Errorf("own listener: %v", err)
	}
	y := startYard(t, testConfig("", nil))
	runner, err := strconv.Atoi(y.pid())
	if err != nil {
		t.Fatal(err)
	}
	if err := listener(port, runner); err == nil || !strings.Contains(err.Error(), errStranger.Error()) {
		t.Errorf("the test's listener is taken for the runner's: %v", err)
	}
	if err := listener(y.Status()[0].Members[0].Port, runner); err != nil {
		t.Errorf("the runner's own listener: %v", err)
	}
}

// kill -9 of the node: its runner dies with it, what the runner forked at the
// node's next start, and nobody else.
func TestKilledNodeLeavesNoOrphan(t *testing.T) {
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
	if _, alive := stat(forked); !alive {
		t.Fatal("the forked process did not survive the node: nothing to reap")
	}
	cfg := testConfig("", nil)
	cfg.Dir = dir
	y := startYard(t, cfg)
	y.expect(y.do("echo", nil), job.Success, true, "")
	awaitGone(t, forked, 2*time.Second)
	y.close()
	if b, err := os.ReadFile(filepath.Join(dir, "runners.json")); err != nil || len(b) > 0 {
		t.Errorf("list of runners after a clean stop is %q, %v", b, err)
	}
}

// A copy of the directory of a node that runs names runners which have a node.
func TestReapSparesALivingNodesRunners(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	node, runner, forked, err := startNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = node.Process.Kill()
		_ = node.Wait() // killed
		if _, err := newRoster(dir).reap(); err != nil {
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
	if n, err := newRoster(copied).reap(); n != 0 || err != nil {
		t.Errorf("reaped %d, %v", n, err)
	}
	for _, pid := range []int{runner, forked} {
		if s, alive := stat(pid); !alive || s.state == 'Z' {
			t.Errorf("process %d of a living node was ended", pid)
		}
	}
}

// With a warden, what the runner forked ends with the node as well.
func TestWardenEndsWhatRunnersForked(t *testing.T) {
	node, runner, forked, err := startNode(t.TempDir(), wardenArg)
	if err != nil {
		t.Fatal(err)
	}
	if _, alive := stat(forked); !alive {
		t.Fatal("the warden ended a process of a living node")
	}
	if err := node.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = node.Wait() // killed
	awaitGone(t, runner, 2*time.Second)
	awaitGone(t, forked, 2*time.Second)
}

// A warden ends with the pools it belongs to, is replaced if it ends before, and
// knows no life by a word that could mean any.
func TestWardenEndsWithThePools(t *testing.T) {
	cfg := testConfig("", nil)
	cfg.Warden = []string{os.Args[0], wardenArg}
	y := startYard(t, cfg)
	first := awaitWarden(t, y.roster.marker, 0)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := awaitWarden(t, y.roster.marker, first)
	if err := syscall.Kill(second, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	y.expect(y.do("echo", nil), job.Success, true, "")
	if _, alive := stat(second); !alive {
		t.Error("the warden heeded a SIGTERM")
	}
	y.close()
	awaitGone(t, second, 2*time.Second)
	for _, life := range []string{"", "YARD_RUNNER=", "YARD_RUNNER=/x", "PATH=/"} {
		if n, err := Warden(strings.NewReader(""), life); n != 0 || err == nil {
			t.Errorf("Warden(%q) = %d, %v", life, n, err)
		}
	}
}

// awaitWarden waits for the warden of a life that is not the former one, until it
// ignores what it ignores.
func awaitWarden(t *testing.T, life string, former int) int {
	t.Helper()
	late, tick := time.After(10*time.Second), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		for pid, s := range processes() {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err != nil || s.state == 'Z' || pid == former || !bytes.HasSuffix(line, []byte(wardenArg+"\x00"+life+"\x00")) {
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

// A pid that was given to somebody else since is left alone.
func TestReapSparesStrangers(t *testing.T) {
	dir := t.TempDir()
	self := fmt.Sprintf(`{"pid":%d,"start":1,"marker":"YARD_RUNNER=x","worker":"r/1"}`+"\n"+`{"pid":`, os.Getppid())
	if err := os.WriteFile(filepath.Join(dir, "runners.json"), []byte(self), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := newRoster(dir).reap(); n != 0 || err != nil {
		t.Errorf("reaped %d, %v", n, err)
	}
}

// buffer is a log that may be read while it is written.
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
		y := runYard(t, cfg, slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
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
