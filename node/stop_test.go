package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/health/consistency"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// stops returns the lines of a log about stops at exactly this level, and fails the test if
// there are others.
func stops(t *testing.T, log *testlog.Recorder, level slog.Level) []string {
	t.Helper()
	ofLevel := func(l slog.Level) []string {
		return slices.DeleteFunc(log.Lines(l), func(line string) bool { return !strings.HasPrefix(line, stopMessage) })
	}
	lines := ofLevel(level)
	if all := ofLevel(slog.LevelDebug); len(all) != len(lines) || len(ofLevel(level+1)) > 0 {
		t.Errorf("not at level %s: %q", level, all)
	}
	return lines
}

// A node logs once why it stops: a signal, or the failure of a part; and when it starts, why
// the last process crashed.
func TestRun_LogsStop(t *testing.T) {
	removed := func(n *Node, _ context.CancelCauseFunc) {
		id, err := json.Marshal(n.id.ServerID())
		if err != nil {
			t.Error(err)
		}
		if _, err := n.member.Handlers()["notify_removed"](t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	signal := func(_ *Node, cancel context.CancelCauseFunc) { cancel(errors.New("terminated signal received")) }
	for _, c := range []struct {
		name  string
		stop  func(*Node, context.CancelCauseFunc)
		level slog.Level
		want  string
		code  int
	}{
		{"signal", signal, slog.LevelInfo, "reason=terminated signal received", 0},
		{"removed", removed, slog.LevelWarn, "was taken out of the yard", ExitRemoved},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, recorded := newSingleNode(t)
			if err := os.WriteFile(filepath.Join(n.cfg.Node.DataDir, crashFile), []byte("panic: no such slot\n\ngoroutine 7 [running]:\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			ended := make(chan error, 1)
			go func() { ended <- n.Run(ctx) }()
			var err error
			select {
			case <-n.Serving():
				c.stop(n, cancel)
				err = <-ended
			case err = <-ended:
			}
			var exit *ExitError
			if errors.As(err, &exit) && exit.Code != c.code || exit == nil && (c.code != 0 || err != nil) {
				t.Errorf("ended with %v, want exit code %d", err, c.code)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has several parts: %v", err)
			}
			if lines := stops(t, recorded, c.level); len(lines) != 1 || !strings.Contains(lines[0], c.want) {
				t.Errorf("logged %q, want one line with %q", lines, c.want)
			}
			if lines := recorded.Lines(slog.LevelError); len(lines) == 0 || !strings.HasPrefix(lines[0], "node crashed when it last ran err=panic: no such slot") {
				t.Errorf("the crash before is not logged: %q", lines)
			}
		})
	}
}

// newSingleNode returns the node of a new yard, which is not running, and what it logs.
func newSingleNode(t *testing.T) (*Node, *testlog.Recorder) {
	log, recorded := testlog.NewRecorder(t)
	cfg := config.Config{Node: config.Node{DataDir: t.TempDir()}, NATS: config.NATS{Listen: "127.0.0.1:0", MaxStore: 256 << 20}, HTTP: config.HTTP{Listen: "off"}}
	cfg.Server.Port = -1
	n, err := New(cfg.WithDefaults(), "v1.2.3", log)
	if err != nil {
		t.Fatal(err)
	}
	return n, recorded
}

// A node that is stopped while it waits for its cluster logs why, too.
func TestRun_LogsStopWhileStarting(t *testing.T) {
	n, recorded := newSingleNode(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupt signal received"))
	_ = n.Run(ctx) // the error depends on how far it came
	if lines := stops(t, recorded, slog.LevelInfo); len(lines) != 1 || !strings.Contains(lines[0], "interrupt signal received") {
		t.Errorf("logged %q", lines)
	}
}

// Failures of parts are logged as errors, with their remedy, apart from those that are no
// faults of the node.
func TestLogStop(t *testing.T) {
	for _, c := range []struct {
		failure error
		level   slog.Level
		want    string
	}{
		{fmt.Errorf("%w: snapshot corrupt", embedded.ErrDamaged), slog.LevelError, "restore the yard from a backup"},
		{&consistency.DivergedError{Text: "this node's ledger is not the yard's", Advice: "replace it"}, slog.LevelError, "not the yard's; replace it"},
		{errors.New("NATS server failed: no listener"), slog.LevelError, "NATS server failed"},
		{&consensus.RemovedError{}, slog.LevelWarn, "was taken out of the yard"},
		{fmt.Errorf("JetStream has stopped writing: %w", ErrRestart), slog.LevelWarn, "started again"},
	} {
		log, recorded := testlog.NewRecorder(t)
		(&Node{log: log}).logStop(t.Context(), c.failure)
		if lines := stops(t, recorded, c.level); len(lines) != 1 || !strings.Contains(lines[0], c.want) {
			t.Errorf("%v: logged %q, want %q", c.failure, lines, c.want)
		}
	}
}

// crashEnv selects how the test binary ends itself as the process of a node.
const crashEnv = "YARD_TEST_CRASH"

// The trace of a panic outside the node's loops is kept, and the next process logs it, once.
func TestRecordCrashes(t *testing.T) {
	if dir := os.Getenv(crashEnv); dir != "" {
		if err := recordCrashes(dir, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		go panic("no such slot")
		select {}
	}
	t.Cleanup(func() {
		if err := debug.SetCrashOutput(nil, debug.CrashOptions{}); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	for range 2 { // the second crash replaces the first
		cmd := exec.Command(os.Args[0], "-test.run=^TestRecordCrashes$")
		cmd.Env = append(os.Environ(), crashEnv+"="+dir)
		output, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 {
			t.Fatalf("ended with %v: %s", err, output)
		}
		log, recorded := testlog.NewRecorder(t)
		for range 2 {
			if err := recordCrashes(dir, log); err != nil {
				t.Fatal(err)
			}
		}
		last := filepath.Join(dir, "crash.last")
		if lines := recorded.Lines(slog.LevelDebug); len(lines) != 1 || lines[0] != "node crashed when it last ran err=panic: no such slot trace="+last {
			t.Errorf("logged %q", lines)
		}
		if trace, err := os.ReadFile(last); err != nil || !strings.Contains(string(output), string(trace)) || !strings.Contains(string(trace), "stop_test.go") {
			t.Errorf("the file has %q, %v; the process wrote %q", trace, err, output)
		}
	}
}

// A panic and a failure of the disk end the process at once; the log has the reason.
func TestCrash_LogsStop(t *testing.T) {
	n := &Node{log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	switch os.Getenv(crashEnv) {
	case "panic":
		loops := n.newLoops(t.Context())
		loops.Go(func(context.Context) error { panic("no such slot") })
		t.Fatal(loops.stop())
	case "disk":
		n.exitAtOnce(errors.New("input/output error"))
	}
	for crash, want := range map[string]struct {
		code int
		line string
	}{
		"panic": {2, `level=ERROR msg="node stopping" err="panic: no such slot"`},
		"disk":  {ExitDisk, `level=ERROR msg="node stopping" exit_code=5 err="input/output error; repair the disk`},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCrash_LogsStop$")
		cmd.Env = append(os.Environ(), crashEnv+"="+crash)
		output, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != want.code {
			t.Errorf("%s: ended with %v, want exit code %d", crash, err, want.code)
		}
		if text := string(output); strings.Count(text, stopMessage) != 1 || !strings.Contains(text, want.line) {
			t.Errorf("%s: logged\n%s\nwant %s", crash, text, want.line)
		}
	}
}
