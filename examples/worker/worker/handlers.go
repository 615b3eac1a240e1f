package worker

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// handlers holds the handlers by the job's function. A job without a function succeeds
// without a result.
var handlers = map[string]overhop.Handler{
	"echo":  echo,
	"sleep": sleep,
	"fail":  fail,
	"retry": retry,
}

// handler returns the handler for [overhop.Worker].
func (o *Options) handler() overhop.Handler {
	return func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		if err := pause(ctx, o.Delay); err != nil {
			return nil, err
		}
		if o.FailRate > 0 && rand.Float64() < o.FailRate {
			return nil, &overhop.FailError{Message: "random failure", Type: "random"}
		}
		switch handle, ok := handlers[q.Function]; {
		case ok:
			return handle(ctx, q)
		case q.Function == "":
			return nil, nil
		}
		return nil, &overhop.FailError{Type: "handler_not_found", Final: true, Message: fmt.Sprintf(
			"the built-in worker has no function %q, only %s", q.Function, strings.Join(slices.Sorted(maps.Keys(handlers)), ", "))}
	}
}

// echo returns the payload.
func echo(_ context.Context, q *overhop.Quest) (overhop.Raw, error) { return q.Payload, nil }

// sleep waits {"ms": n} milliseconds, or until ctx ends.
func sleep(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
	ms, ok := q.Payload.Get("ms").Int()
	if !ok || ms < 0 || ms > time.Hour.Milliseconds() {
		return nil, invalidParams("sleep needs params {\"ms\": n}, n from 0 to an hour")
	}
	return nil, pause(ctx, time.Duration(ms)*time.Millisecond)
}

// fail always fails. With {"final": true} the job is not retried.
func fail(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
	final, _ := q.Payload.Get("final").Bool()
	return nil, &overhop.FailError{Message: "failed on request", Type: "demo", Final: final}
}

// retry fails {"times": n} attempts, 1 by default, and then returns the number
// of the attempt.
func retry(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
	times, ok := q.Payload.Get("times").Int()
	if !ok {
		times = 1
	}
	if int64(q.Attempt) <= times {
		return nil, &overhop.FailError{Message: fmt.Sprintf("failing attempt %d of %d on request", q.Attempt, times), Type: "demo"}
	}
	return overhop.AppendInt(nil, int64(q.Attempt)), nil
}

// invalidParams returns the error for a job that cannot succeed in any attempt.
func invalidParams(message string) error {
	return &overhop.FailError{Message: message, Type: "invalid_params", Final: true}
}

// pause waits for d, or until ctx ends, whose cause it then returns.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
