package usercode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
)

type pointerError struct{ text string }

func (e *pointerError) Error() string { return e.text }

type panicError struct{ reason any }

func (e panicError) Error() string { panic(e.reason) }
func (e panicError) Unwrap() error { panic(e.reason) }

// loopError wraps itself and another error.
type loopError struct{ next error }

func (e *loopError) Error() string   { return "loop" }
func (e *loopError) Unwrap() []error { return []error{e, e.next} }

func TestText(t *testing.T) {
	for want, err := range map[string]error{
		"EOF": io.EOF,
		"the error, a nil *usercode.pointerError, cannot be read: its method Error panicked: runtime error: invalid memory address or nil pointer dereference": (*pointerError)(nil),
		"the error, a usercode.panicError, cannot be read: its method Error panicked: oh":                                                                      panicError{"oh"},
		"the error, a usercode.panicError, cannot be read: its method Error panicked: %!v(PANIC=Error method: oh)":                                             panicError{panicError{"oh"}},
		"the error, a usercode.panicError, cannot be read: its method Error panicked: a usercode.panicError, whose text cannot be read":                        panicError{panicError{panicError{"oh"}}},
		"a\uFFFDb": errors.New("a\xffb"),
	} {
		if got := Text(err); got != want {
			t.Errorf("text of a %T is %q, want %q", err, got, want)
		}
	}
	long := Text(errors.New(strings.Repeat("ä", MaxText)))
	if len(long) > MaxText || !strings.HasSuffix(long, "ä…") {
		t.Errorf("a long text has %d bytes and ends with %q", len(long), long[len(long)-8:])
	}
}

// As and Is find what errors.As and errors.Is find, and end where those do not.
func TestAs(t *testing.T) {
	wanted := &pointerError{"wanted"}
	loop := &loopError{wanted}
	for _, err := range []error{
		wanted, fmt.Errorf("a: %w", wanted), errors.Join(io.EOF, fmt.Errorf("b: %w", wanted)), io.EOF, nil,
		fmt.Errorf("%w and %w", io.EOF, errors.Join(wanted)),
	} {
		got, ok := As[*pointerError](err)
		if want, found := errors.AsType[*pointerError](err); ok != found || got != want {
			t.Errorf("As of %v is %v, %t", err, got, ok)
		}
		if got := Is(err, wanted); got != errors.Is(err, wanted) {
			t.Errorf("Is of %v is %t", err, got)
		}
	}
	for _, err := range []error{loop, panicError{"oh"}, errors.Join(panicError{"oh"}, wanted)} {
		if _, ok := As[*pointerError](err); ok {
			t.Errorf("As finds something in a %T", err)
		}
		if Is(err, io.EOF) {
			t.Errorf("Is finds something in a %T", err)
		}
	}
}

func TestLogger(t *testing.T) {
	log := Logger(slog.New(panicHandler{slog.DiscardHandler}))
	log.With("a", 1).WithGroup("g").Info("message")
	if Logger(log) != log {
		t.Error("a logger is wrapped twice")
	}
}

// panicHandler panics for each record.
type panicHandler struct{ slog.Handler }

func (panicHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (panicHandler) Handle(context.Context, slog.Record) error { panic("oh") }
func (h panicHandler) WithAttrs([]slog.Attr) slog.Handler      { return h }
func (h panicHandler) WithGroup(string) slog.Handler           { return h }
