// Package testlog shows a test what the code under test logs.
package testlog

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
)

// New gives a logger that writes to a test's log, which is shown if the test
// fails or with -v. What is logged after the test has ended is dropped: a
// goroutine that outlives its test must not panic in the next one.
func New(t testing.TB) *slog.Logger {
	w := &writer{t: t}
	t.Cleanup(w.end)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: withoutTime}))
}

// Discard gives a logger for benchmarks and for noise.
func Discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Recorder keeps what is logged, for tests that look at it.
type Recorder struct {
	mu      sync.Mutex
	records []slog.Record
}

// NewRecorder gives a logger and the recorder behind it; the test's own log
// shows the lines too.
func NewRecorder(t testing.TB) (*slog.Logger, *Recorder) {
	r := new(Recorder)
	return slog.New(&recording{next: New(t).Handler(), to: r}), r
}

// Messages gives the messages at a level or above, in order.
func (r *Recorder) Messages(level slog.Level) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var messages []string
	for _, record := range r.records {
		if record.Level >= level {
			messages = append(messages, record.Message)
		}
	}
	return messages
}

// Lines gives the messages at a level or above with their facts, in order.
func (r *Recorder) Lines(level slog.Level) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for _, record := range r.records {
		if record.Level < level {
			continue
		}
		line := record.Message
		record.Attrs(func(a slog.Attr) bool {
			line += " " + a.String()
			return true
		})
		lines = append(lines, line)
	}
	return lines
}

// writer passes lines to a test until it ends.
type writer struct {
	mu    sync.Mutex
	t     testing.TB
	ended bool
}

func (w *writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.t.Logf("%s", bytes.TrimSuffix(line, []byte("\n")))
	}
	return len(line), nil
}

func (w *writer) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}

// withoutTime leaves the time out: a test's log has its order.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey && len(groups) == 0 {
		return slog.Attr{}
	}
	return a
}

type recording struct {
	next slog.Handler
	to   *Recorder
}

func (r *recording) Enabled(context.Context, slog.Level) bool { return true }

func (r *recording) Handle(ctx context.Context, record slog.Record) error {
	r.to.mu.Lock()
	r.to.records = append(r.to.records, record.Clone())
	r.to.mu.Unlock()
	return r.next.Handle(ctx, record)
}

func (r *recording) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &recording{next: r.next.WithAttrs(attrs), to: r.to}
}

func (r *recording) WithGroup(name string) slog.Handler {
	return &recording{next: r.next.WithGroup(name), to: r.to}
}
