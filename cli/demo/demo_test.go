package demo_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cli"
	"github.com/yardmaster-dev/yardmaster/cli/demo"
)

// asProgram is the environment variable that turns the test binary into the
// program that the demo starts. Runners inherit it, because of its prefix.
const asProgram = "RRQ_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		code := cli.Run(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, cli.Program{Version: "test"})
		stop()
		os.Exit(code)
	}
	os.Setenv(asProgram, "1") // for the children
	os.Exit(m.Run())
}

// output collects a demo's output and signals when it contains certain text.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	want  string        // to wait for
	found chan struct{} // closed when it was written
}

func newOutput(text string) *output { return &output{want: text, found: make(chan struct{})} }

func (s *output) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(b)
	if s.want != "" && strings.Contains(s.text.String(), s.want) {
		s.want = ""
		close(s.found)
	}
	return len(b), nil
}

func (s *output) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// run runs a demo in a temporary directory and returns its report.
func run(t *testing.T, o demo.Options) demo.Report {
	t.Helper()
	out := newOutput("")
	o.Out, o.Dir = out, t.TempDir()
	report, err := demo.Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if left := processesIn(t, o.Dir); len(left) > 0 {
		t.Errorf("left running: %v", left)
	}
	if !report.Good() || report.Accepted != o.Jobs || report.FailedAsIntended != o.Jobs/10 ||
		report.Completed != o.Jobs-o.Jobs/10 || report.Retried < o.Jobs/5 {
		t.Errorf("report %+v\n%s", report, out)
	}
	return report
}

func TestDemo_OneNode(t *testing.T) {
	report := run(t, demo.Options{Nodes: 1, Jobs: 100, Spread: time.Second})
	if report.FailoverMS != 0 || report.Killed {
		t.Errorf("no node was to be killed: %+v", report)
	}
}

func TestDemo_OneNodeComesBack(t *testing.T) {
	report := run(t, demo.Options{Nodes: 1, Jobs: 200, Spread: 2 * time.Second, Kill: true})
	if report.FailoverMS <= 0 || !report.Killed {
		t.Errorf("no node was killed: %+v", report)
	}
}

func TestDemo_KillAuthority(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	report := run(t, demo.Options{Nodes: 3, Jobs: 600, Spread: 4 * time.Second, Kill: true})
	if report.FailoverMS <= 0 || report.FailoverMS > 10_000 {
		t.Errorf("failover took %d ms", report.FailoverMS)
	}
}

// TestDemo_Interrupted checks that an interrupted demo leaves no process behind.
func TestDemo_Interrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	out := newOutput("ready after")
	dir := t.TempDir()
	ended := make(chan error, 1)
	go func() {
		_, err := demo.Run(ctx, demo.Options{Nodes: 1, Jobs: 1000, Out: out, Dir: dir})
		ended <- err
	}()
	select {
	case <-out.found:
	case err := <-ended:
		t.Fatalf("ended too early: %v\n%s", err, out)
	}
	if len(processesIn(t, dir)) < 3 {
		t.Fatalf("node and workers should run: %v", processesIn(t, dir))
	}
	interrupt()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if left := processesIn(t, dir); len(left) > 0 {
		t.Errorf("left running: %v", left)
	}
}

// TestDemo_NodeExits checks that the output of a node that fails to start is in
// the error.
func TestDemo_NodeExits(t *testing.T) {
	script := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho no such luck\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	_, err := demo.Run(t.Context(), demo.Options{Nodes: 1, Jobs: 20, Binary: script, Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "node n1 has ended (exit status 3)") || !strings.Contains(err.Error(), "no such luck") {
		t.Errorf("error %v", err)
	}
}

func TestDemo_Options(t *testing.T) {
	for _, tt := range []struct {
		o    demo.Options
		flag string
	}{
		{demo.Options{Nodes: 2, Jobs: 100}, "nodes"},
		{demo.Options{Nodes: 1, Jobs: 19}, "jobs"},
		{demo.Options{Nodes: 1, Jobs: 100_001}, "jobs"},
	} {
		var wrong *demo.OptionError
		if _, err := demo.Run(t.Context(), tt.o); !errors.As(err, &wrong) || wrong.Flag != tt.flag {
			t.Errorf("%+v: %v", tt.o, err)
		}
	}
}

// processesIn returns the command lines of the processes that name dir.
func processesIn(t *testing.T, dir string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && bytes.Contains(text, []byte(dir)) {
			found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return found
}
