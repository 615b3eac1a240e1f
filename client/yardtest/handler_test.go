package yardtest_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/yardtest"
)

// measure is a job with values of all kinds.
type measure struct {
	Name  string  `json:"name"`
	Half  float64 `json:"half"`
	Big   uint64  `json:"big"`
	Bytes []byte  `json:"bytes,omitempty"`
	local int
}

func (measure) Kind() string { return "measure" }

// TestRunHandler checks what is recorded of an attempt.
func TestRunHandler(t *testing.T) {
	t.Parallel()
	var seen client.JobInfo
	h := func(ctx context.Context, job *client.Job[measure]) (measure, error) {
		seen = *job.JobInfo
		job.Logger(ctx).Warn("careful", "n", 1)
		return job.Args, errors.Join(
			job.Progress(ctx, 50, map[string]string{"step": "a"}), job.Progress(ctx, 100, nil), job.Log(ctx, "one", "two"))
	}
	args := measure{Name: "ann", Half: 0.5, Big: 1<<64 - 1, local: 7}
	run := yardtest.RunHandler(t.Context(), t, h, args)
	if args.local = 0; run.Err != nil || !reflect.DeepEqual(run.Result, args) {
		t.Errorf("result %+v, %v; want %+v, as a worker gets it", run.Result, run.Err, args)
	}
	if seen.Attempt != 1 || seen.Fence != 1 || seen.Function != "measure" || seen.Queue != "default" || time.Since(seen.Accepted) > time.Minute {
		t.Errorf("the attempt is %+v", seen)
	}
	if got, want := fmt.Sprintf("%+v", run.Log), "[{Level:warn Text:careful n=1} {Level: Text:one} {Level: Text:two}]"; got != want {
		t.Errorf("log %s, want %s", got, want)
	}
	if got, want := asJSON(run.Progress), `[{"Percent":50,"Data":{"step":"a"}},{"Percent":100,"Data":null}]`; got != want {
		t.Errorf("progress %s, want %s", got, want)
	}
	args = measure{Bytes: []byte{0, 255}}
	run = yardtest.RunHandler(t.Context(), t, h, args, func(job *client.JobInfo) { job.Attempt, job.Fence, job.MaxAttempts = 3, 9, 5 })
	if run.Err != nil || !reflect.DeepEqual(run.Result, args) || seen.Attempt != 3 || seen.Fence != 9 || seen.MaxAttempts != 5 {
		t.Errorf("result %+v, %v of %+v", run.Result, run.Err, seen)
	}
}

// TestRunHandler_Errors checks what becomes of the errors of a handler.
func TestRunHandler_Errors(t *testing.T) {
	t.Parallel()
	cause := errors.New("no such user")
	run := func(do func(ctx context.Context) (any, error)) yardtest.HandlerRun[any] {
		t.Helper()
		return yardtest.RunHandler(t.Context(), t, func(ctx context.Context, _ *client.Job[measure]) (any, error) { return do(ctx) }, measure{})
	}
	failed := func(err error) yardtest.HandlerRun[any] {
		t.Helper()
		r := run(func(context.Context) (any, error) { return nil, fmt.Errorf("deliver: %w", err) })
		if !errors.Is(r.Err, err) {
			t.Errorf("error is %v, want %v", r.Err, err)
		}
		return r
	}
	if r := failed(cause); r.Final || r.RetryAfter != nil || r.Snooze != nil {
		t.Errorf("an error: %+v", r)
	}
	if r := failed(client.Permanent(cause)); !r.Final {
		t.Errorf("a permanent one: %+v", r)
	}
	if r := failed(client.RetryAfter(time.Minute)); r.Final || r.RetryAfter == nil || *r.RetryAfter != time.Minute {
		t.Errorf("a retry: %+v", r)
	}
	if r := failed(client.Snooze(0)); r.Snooze == nil || *r.Snooze != time.Second {
		t.Errorf("a snooze of 0 is %+v", r)
	}
	if r := failed(client.Snooze(time.Hour)); r.Final || r.Snooze == nil || *r.Snooze != time.Hour {
		t.Errorf("a snooze: %+v", r)
	}
	for want, do := range map[string]func(context.Context) (any, error){
		"panic":          func(context.Context) (any, error) { panic("out of paper") },
		"invalid_result": func(context.Context) (any, error) { return func() {}, nil },
	} {
		r := run(do)
		if e, ok := errors.AsType[*client.JobError](r.Err); !ok || e.Type != want {
			t.Errorf("%s: error is %v", want, r.Err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := yardtest.RunHandler(ctx, t, func(ctx context.Context, _ *client.Job[measure]) (any, error) {
		cancel()
		<-ctx.Done()
		return nil, client.StopReason(ctx)
	}, measure{})
	if !errors.Is(stopped.Err, client.ErrStopping) {
		t.Errorf("after the end of the context: %+v", stopped)
	}
	message := fails(t, func() {
		yardtest.RunHandler(t.Context(), &stub{T: t}, func(context.Context, *client.Job[unsendable]) (any, error) { return nil, nil }, unsendable{})
	})
	if !strings.Contains(message, "encode yardtest_test.unsendable") {
		t.Errorf("args that cannot be sent: %q", message)
	}
}

type unsendable struct{ F func() }

func (unsendable) Kind() string { return "f" }

// A handler is called once, without a yard.
func ExampleRunHandler() {
	deliver := func(ctx context.Context, job *client.Job[SendMail]) (string, error) {
		if job.Attempt == 1 {
			return "", fmt.Errorf("greylisted: %w", client.RetryAfter(time.Minute))
		}
		return "sent to " + job.Args.To, job.Progress(ctx, 100, nil)
	}
	test := func(t *testing.T) {
		run := yardtest.RunHandler(t.Context(), t, deliver, SendMail{To: "ann"})
		if run.RetryAfter == nil || *run.RetryAfter != time.Minute {
			t.Errorf("the first attempt: %+v", run)
		}
		run = yardtest.RunHandler(t.Context(), t, deliver, SendMail{To: "ann"}, func(job *client.JobInfo) { job.Attempt = 2 })
		if run.Result != "sent to ann" || run.Progress[0].Percent != 100 {
			t.Errorf("the second attempt: %+v", run)
		}
	}
	run("TestDeliver", test)
	// Output: TestDeliver passed
}
