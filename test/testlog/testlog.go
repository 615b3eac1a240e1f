// Package testlog routes the log of the code under test to the test's log.
package testlog

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
)

// New returns a logger that writes to t's log, which is shown if the test fails
// or with -v. Records logged after the test has ended are dropped, because
// writing to the log of a finished test panics.
func New(t testing.TB) *slog.Logger { return From(t, slog.LevelDebug) }

// From is like [New], and drops records below a level.
func From(t testing.TB, level slog.Level) *slog.Logger {
	w := &writer{t: t}
	t.Cleanup(w.end)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: withoutTime}))
}

// Discard returns a logger that drops every record, for benchmarks.
func Discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Recorder collects log records, for tests that check what was logged. It is a
// slog.Handler that ignores the attributes and groups of derived loggers.
type Recorder struct {
	mu      sync.Mutex
	records []slog.Record
}

// NewRecorder returns a logger and the Recorder that collects its records. The
// records are written to t's log as well.
func NewRecorder(t testing.TB) (*slog.Logger, *Recorder) {
	r := new(Recorder)
	return slog.New(slog.NewMultiHandler(r, New(t).Handler())), r
}

// Enabled implements slog.Handler.
func (r *Recorder) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (r *Recorder) Handle(_ context.Context, record slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, record.Clone())
	return nil
}

// WithAttrs implements slog.Handler.
func (r *Recorder) WithAttrs([]slog.Attr) slog.Handler { return r }

// WithGroup implements slog.Handler.
func (r *Recorder) WithGroup(string) slog.Handler { return r }

// Messages returns the messages of all records at level or above, in order.
func (r *Recorder) Messages(level slog.Level) (messages []string) {
	r.each(level, func(record slog.Record) { messages = append(messages, record.Message) })
	return messages
}

// Lines returns the message and attributes of all records at level or above,
// one string per record, in order.
func (r *Recorder) Lines(level slog.Level) (lines []string) {
	r.each(level, func(record slog.Record) {
		line := record.Message
		record.Attrs(func(a slog.Attr) bool {
			line += " " + a.String()
			return true
		})
		lines = append(lines, line)
	})
	return lines
}

// each calls fn for each record at level or above, in order.
func (r *Recorder) each(level slog.Level, fn func(slog.Record)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range r.records {
		if record.Level >= level {
			fn(record)
		}
	}
}

// writer passes log lines to a test until the test ends.
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

// withoutTime removes the time attribute: in a test's log the order is enough.
func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey && len(groups) == 0 {
		return slog.Attr{}
	}
	return a
}
