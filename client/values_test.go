package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/client"
)

// typedNil is an error whose method needs a receiver.
type typedNil struct{ text string }

func (e *typedNil) Error() string { return e.text }

// badError is an error with methods that call its functions, or work well for a nil function.
type badError struct {
	text   func() string
	unwrap func() error
	is     func(error) bool
	as     func(any) bool
}

func (e badError) Error() string {
	if e.text != nil {
		return e.text()
	}
	return "a bad error"
}

func (e badError) Unwrap() error {
	if e.unwrap != nil {
		return e.unwrap()
	}
	return nil
}

func (e badError) Is(target error) bool { return e.is != nil && e.is(target) }
func (e badError) As(target any) bool   { return e.as != nil && e.as(target) }

// exits is text, JSON and a log value that ends its goroutine.
type exits struct{}

func (exits) Error() string                { runtime.Goexit(); return "" }
func (exits) MarshalJSON() ([]byte, error) { runtime.Goexit(); return nil, nil }
func (exits) LogValue() slog.Value         { runtime.Goexit(); return slog.Value{} }

// panics is text, JSON and a log value with methods that panic. The text of their panic may not be
// readable either.
type panics struct{}

func (panics) Error() string                { panic((*typedNil)(nil)) }
func (panics) String() string               { panic((*typedNil)(nil)) }
func (panics) MarshalJSON() ([]byte, error) { panic("no JSON") }
func (panics) LogValue() slog.Value         { panic("no value") }

// keyPanics is a key of a map, or text, whose method panics.
type keyPanics struct{ int }

func (keyPanics) MarshalText() ([]byte, error) { panic("no text") }

// badParams are params that cannot be decoded.
type badParams struct{ Fails bool }

func (*badParams) UnmarshalJSON([]byte) error { panic("no params") }

// loop is a value within itself.
type loop struct{ Next *loop }

// badLog is a handler of log records that panics.
type badLog struct{ slog.Handler }

func (badLog) Handle(context.Context, slog.Record) error { panic("no log") }
func (h badLog) WithAttrs([]slog.Attr) slog.Handler      { return h }

// badValues are handlers, each with a part of its job's error; "" if the job completes.
var badValues = map[string]struct {
	handler client.HandlerFunc
	message string
}{
	"typed nil":         {fails((*typedNil)(nil)), "the error, a nil *client_test.typedNil, cannot be read: its method Error panicked: runtime error: invalid memory address"},
	"wrapped typed nil": {fails(client.Permanent((*typedNil)(nil))), "the error, a *client.failure, cannot be read"},
	"coded typed nil":   {fails(client.Coded(fmt.Errorf("send: %w", (*typedNil)(nil)), "c", nil)), "send: <nil>"},
	"Error panics":      {fails(panics{}), "the error, a client_test.panics, cannot be read: its method Error panicked: <nil>"},
	"Error exits":       {fails(exits{}), "handler ended its goroutine"},
	"Unwrap panics":     {fails(badError{unwrap: func() error { panic(1) }}), "a bad error"},
	"Unwrap exits":      {fails(badError{unwrap: func() error { runtime.Goexit(); return nil }}), "handler ended its goroutine"},
	"Is panics":         {fails(badError{is: func(error) bool { panic(1) }}), "a bad error"},
	"As panics":         {fails(badError{as: func(any) bool { panic(1) }}), "a bad error"},
	"wraps itself":      {fails(wrapsItself()), "a bad error"},
	"joins itself":      {fails(joinsItself{}), "joins itself"},
	"long error":        {fails(errors.New(strings.Repeat("x", 9<<20))), "xxx"},
	"binary error":      {fails(errors.New("\xff\xfe")), "\uFFFD"},
	"binary code":       {fails(client.Coded(errors.New("m"), "\xff", nil)), "m"},

	"details panic":     {fails(client.Coded(errors.New("m"), "c", panics{})), "m"},
	"details exit":      {fails(client.Coded(errors.New("m"), "c", exits{})), "handler ended its goroutine"},
	"details loop":      {fails(client.Coded(errors.New("m"), "c", itself())), "m"},
	"details too large": {fails(client.Coded(errors.New("m"), "c", make([]byte, 9<<20))), "m (its details are omitted: "},

	"panic":           {func(context.Context, *client.JobInfo) (any, error) { panic("oh") }, "handler panicked: oh"},
	"panic of nil":    {func(context.Context, *client.JobInfo) (any, error) { panic(nil) }, "handler panicked: panic called with nil argument"},
	"panic panics":    {func(context.Context, *client.JobInfo) (any, error) { panic(panics{}) }, "handler panicked: "},
	"panic exits":     {func(context.Context, *client.JobInfo) (any, error) { panic(exits{}) }, "handler ended its goroutine"},
	"exits":           {func(context.Context, *client.JobInfo) (any, error) { runtime.Goexit(); return nil, nil }, "handler ended its goroutine"},
	"result panics":   {returns(map[string]any{"a": []any{panics{}}}), "result cannot be encoded: value at a[0]: MarshalJSON of a client_test.panics panicked: no JSON"},
	"result exits":    {returns(exits{}), "handler ended its goroutine"},
	"key panics":      {returns(map[keyPanics]int{{1}: 1}), "result cannot be encoded: value: MarshalText of a client_test.keyPanics panicked: no text"},
	"text panics":     {returns(keyPanics{}), "result cannot be encoded: value: MarshalText of a client_test.keyPanics panicked: no text"},
	"result loops":    {returns(itself()), "result cannot be encoded: value at Next.Next."},
	"NaN":             {returns(math.NaN()), "result cannot be encoded: value: NaN cannot be sent"},
	"infinity":        {returns(math.Inf(1)), "result cannot be encoded: value: +Inf cannot be sent"},
	"keys of floats":  {returns(map[float64]int{1.5: 1}), "result cannot be encoded: value: map keys must be text or integers, not float64"},
	"binary text":     {returns("\xff"), "result cannot be encoded: value: text is not UTF-8"},
	"channel":         {returns(make(chan int)), "result cannot be encoded: value: a chan int cannot be sent"},
	"huge result":     {returns(make([]byte, 9<<20)), "result: "},
	"params":          {decodes[badParams](), "UnmarshalJSON of a client_test.badParams panicked: no params"},
	"middleware":      {func(context.Context, *client.JobInfo) (any, error) { return nil, nil }, "handler panicked: middleware"},
	"progress":        {reports(panics{}), "progress data: value: MarshalJSON of a client_test.panics panicked: no JSON"},
	"progress exits":  {reports(exits{}), "handler ended its goroutine"},
	"log panics":      {logs(panics{}), ""},
	"log exits":       {logs(exits{}), "handler ended its goroutine"},
	"log of nil":      {logs((*typedNil)(nil)), ""},
	"log of bytes":    {logs("\xff\x00"), ""},
	"log of 10 MB":    {logs(strings.Repeat("x", 10<<20)), ""},
	"snooze too long": {fails(client.Snooze(math.MaxInt64)), "the delay is 0 to ten years"},
}

func fails(err error) client.HandlerFunc {
	return func(context.Context, *client.JobInfo) (any, error) { return nil, err }
}

func returns(result any) client.HandlerFunc {
	return func(context.Context, *client.JobInfo) (any, error) { return result, nil }
}

func decodes[A any]() client.HandlerFunc {
	return func(_ context.Context, job *client.JobInfo) (any, error) { return nil, job.Decode(new(A)) }
}

func reports(data any) client.HandlerFunc {
	return func(ctx context.Context, job *client.JobInfo) (any, error) { return nil, job.Progress(ctx, 1, data) }
}

func logs(value any) client.HandlerFunc {
	return func(ctx context.Context, job *client.JobInfo) (any, error) {
		return nil, job.LogHandler(ctx).Handle(ctx, recordOf(value))
	}
}

func recordOf(value any) slog.Record {
	var r slog.Record
	r.Message = "message"
	r.Add("value", value)
	return r
}

func wrapsItself() error {
	var e badError
	e.unwrap = func() error { return e }
	return e
}

// joinsItself wraps itself twice.
type joinsItself struct{}

func (joinsItself) Error() string   { return "joins itself" }
func (joinsItself) Unwrap() []error { return []error{joinsItself{}, joinsItself{}} }

func itself() *loop {
	var l loop
	l.Next = &l
	return &l
}

// Whatever a handler does and returns, its job ends with an error that names the problem, and the
// worker runs the next job, even if its log panics.
func TestWorker_BadValues(t *testing.T) {
	c := open(t, client.Options{Log: slog.New(badLog{slog.DiscardHandler})})
	w := c.Worker()
	w.Queues = map[string]int{"bad": 1}
	w.Use(func(next client.HandlerFunc) client.HandlerFunc {
		return func(ctx context.Context, job *client.JobInfo) (any, error) {
			if job.Function == "middleware" {
				panic("middleware")
			}
			return next(ctx, job)
		}
	})
	for name, bad := range badValues {
		w.Handle("bad", name, bad.handler)
	}
	w.Handle("bad", "good", func(context.Context, *client.JobInfo) (any, error) { return 1, nil })
	if err := c.Queues().Create(t.Context(), "bad"); err != nil {
		t.Fatal(err)
	}
	work(t, w)
	for name, bad := range badValues {
		t.Run(name, func(t *testing.T) {
			id := enqueue(t, c, client.Spec{Queue: "bad", Function: name, MaxAttempts: 1, Params: map[string]int{"n": 1}})
			next := enqueue(t, c, client.Spec{Queue: "bad", Function: "good"})
			_, err := c.Wait(t.Context(), id)
			failed, ok := errors.AsType[*client.JobError](err)
			switch {
			case bad.message == "" && err != nil, bad.message != "" && !ok:
				t.Errorf("the job ended with %v", err)
			case ok && !strings.Contains(failed.Message, bad.message):
				t.Errorf("the job's error is %.300q, want %q", failed.Message, bad.message)
			}
			if _, err := c.Wait(t.Context(), next); err != nil {
				t.Errorf("the next job: %v", err)
			}
		})
	}
}

// Params with methods that panic are an error for the caller, also where the library encodes them in
// other goroutines.
func TestClient_EnqueueMany_BadParams(t *testing.T) {
	c := connect(t)
	answers := c.EnqueueMany(t.Context(), []client.Spec{{Queue: "q", Params: panics{}}, {Queue: "q", Params: map[string]any{"a": keyPanics{}}}, {Queue: "q"}})
	for i, want := range []string{"MarshalJSON of a client_test.panics panicked: no JSON", "value at a: MarshalText of a client_test.keyPanics panicked"} {
		if err := answers[i].Err; !errors.Is(err, client.ErrInvalidJob) || !strings.Contains(err.Error(), want) {
			t.Errorf("job %d: %v, want %s", i, err, want)
		}
	}
	if answers[2].Err != nil {
		t.Error(answers[2].Err)
	}
}
