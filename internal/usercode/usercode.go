// Package usercode reads the errors and panics of code that a library calls, such as a job's
// handler. A method of such a value may panic itself, as Error does on a nil pointer in an error,
// and an error may wrap itself; neither ends or blocks the caller.
//
// A method that calls [runtime.Goexit] does end the goroutine. Callers that have to do something
// afterwards do it in a deferred call.
package usercode

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"unicode/utf8"
)

// MaxText is the largest number of bytes that Text and PanicText return.
const MaxText = 16 << 10

// Text returns the text of an error, cut to [MaxText] bytes of valid UTF-8. If its method Error
// panics, the text names the type of the error and the panic:
//
//	the error, a nil *mail.AddressError, cannot be read: its method Error panicked: runtime error: invalid memory address or nil pointer dereference
func Text(err error) (text string) {
	defer func() {
		if reason := recover(); reason != nil {
			text = fmt.Sprintf("the error, a %s, cannot be read: its method Error panicked: %s", typeOf(err), PanicText(reason))
		}
	}()
	return Cut(err.Error(), MaxText)
}

// PanicText returns the text of a value that recover has returned, cut as by [Text].
func PanicText(reason any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("a %s, whose text cannot be read", typeOf(reason))
		}
	}()
	return Cut(fmt.Sprint(reason), MaxText)
}

// typeOf returns the type of v, after "nil" if v is a nil pointer: "nil *net.OpError", for example.
func typeOf(v any) string {
	if value := reflect.ValueOf(v); value.Kind() == reflect.Pointer && value.IsNil() {
		return fmt.Sprintf("nil %T", v)
	}
	return fmt.Sprintf("%T", v)
}

// Cut returns text cut to limit bytes, with "…" at the end if it was longer. U+FFFD replaces invalid
// UTF-8.
func Cut(text string, limit int) string {
	const mark = "…"
	if len(text) > limit {
		end := limit - len(mark)
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + mark
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// maxErrors is the number of errors of a tree that As and Is examine.
const maxErrors = 1000

// As returns the first error in the tree of err that is a T, as [errors.AsType] does. It
// returns false if a method of an error panics before, or after the first 1000 errors.
func As[T error](err error) (found T, ok bool) {
	ok = walk(err, func(err error) bool {
		if match, ok := err.(T); ok {
			found = match
			return true
		}
		with, ok := err.(interface{ As(any) bool })
		return ok && with.As(&found)
	})
	return found, ok
}

// Is reports whether an error in the tree of err is target, as [errors.Is] does. The dynamic type of
// target must be comparable. Is reports false if a method of an error panics before, or after the
// first 1000 errors.
func Is(err, target error) bool {
	return walk(err, func(err error) bool {
		if err == target {
			return true
		}
		with, ok := err.(interface{ Is(error) bool })
		return ok && with.Is(target)
	})
}

// walk reports whether match returns true for an error in the tree of err. A panic ends the walk.
func walk(err error, match func(error) bool) (found bool) {
	defer func() {
		if recover() != nil {
			found = false
		}
	}()
	left := maxErrors
	var search func(error) bool
	search = func(err error) bool {
		for ; err != nil && left > 0; left-- {
			if match(err) {
				return true
			}
			switch wrapping := err.(type) {
			case interface{ Unwrap() error }:
				err = wrapping.Unwrap()
			case interface{ Unwrap() []error }:
				left--
				for _, wrapped := range wrapping.Unwrap() {
					if search(wrapped) {
						return true
					}
				}
				return false
			default:
				return false
			}
		}
		return false
	}
	return search(err)
}

// Do calls f and returns its error. A panic becomes an error that names what was called, by a format
// and its arguments:
//
//	MarshalJSON of a main.Order panicked: no JSON
func Do(f func() error, format string, args ...any) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("%s panicked: %s", fmt.Sprintf(format, args...), PanicText(reason))
		}
	}()
	return f()
}

// Logger returns a logger that writes to log, or to [slog.Default] if log is nil. A panic of log's
// handler does not reach the caller.
func Logger(log *slog.Logger) *slog.Logger {
	if log == nil {
		log = slog.Default()
	}
	if _, ok := log.Handler().(handler); ok {
		return log
	}
	return slog.New(handler{log.Handler()})
}

// handler is a handler of log records that returns the panics of another one as errors.
type handler struct{ slog.Handler }

// Enabled implements [slog.Handler].
func (h handler) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	_ = Do(func() error {
		enabled = h.Handler.Enabled(ctx, level)
		return nil
	}, "Enabled")
	return enabled
}

// Handle implements [slog.Handler].
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	return Do(func() error { return h.Handler.Handle(ctx, r) }, "the handler of log records")
}

// WithAttrs implements [slog.Handler].
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (h handler) WithGroup(name string) slog.Handler { return handler{h.Handler.WithGroup(name)} }
