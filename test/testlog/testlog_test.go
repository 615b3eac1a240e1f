package testlog

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
)

// fakeTB is a test that collects its log lines and ends on request.
type fakeTB struct {
	testing.TB
	lines    []string
	cleanups []func()
}

func (f *fakeTB) Logf(format string, args ...any) {
	f.lines = append(f.lines, fmt.Sprintf(format, args...))
}
func (f *fakeTB) Cleanup(do func()) { f.cleanups = append(f.cleanups, do) }

func (f *fakeTB) end() {
	for _, do := range f.cleanups {
		do()
	}
}

func TestNew_SilentAfterTest(t *testing.T) {
	f := &fakeTB{TB: t}
	log := New(f).With("node", "n1")
	log.Debug("first", "n", 1)
	f.end()
	var late sync.WaitGroup
	late.Go(func() { log.Info("too late") })
	late.Wait()
	if want := []string{"level=DEBUG msg=first node=n1 n=1"}; !slices.Equal(f.lines, want) {
		t.Errorf("logged %q, want %q", f.lines, want)
	}
}

func TestRecorder(t *testing.T) {
	f := &fakeTB{TB: t}
	log, seen := NewRecorder(f)
	log.Info("quiet")
	log.With("a", 1).WithGroup("g").Error("loud", "b", 2)
	if got, want := seen.Messages(slog.LevelWarn), []string{"loud"}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	if want := "level=ERROR msg=loud a=1 g.b=2"; len(f.lines) != 2 || f.lines[1] != want {
		t.Errorf("shown %q, want %q", f.lines, want)
	}
}
