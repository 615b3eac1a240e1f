package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"yardmaster/edge/overhop"
)

// handlers is what this worker can do, by the job's function. Any other
// function, and a job without one, ends well with no result.
var handlers = map[string]overhop.Handler{
	"echo":  echo,
	"sleep": sleep,
	"fail":  fail,
	"retry": retry,
}

func nothing(context.Context, *overhop.Quest) (overhop.Raw, error) { return nil, nil }

// handler is the one that [overhop.Worker] calls.
func (o *Options) handler() overhop.Handler {
	return func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		if err := pause(ctx, o.Delay); err != nil {
			return nil, err
		}
		if o.FailRate > 0 && rand.Float64() < o.FailRate {
			return nil, &overhop.FailError{Message: "failed by dice", Type: "dice"}
		}
		do, ok := handlers[q.Function]
		if !ok {
			do = nothing
		}
		return do(ctx, q)
	}
}

// echo gives the payload back.
func echo(_ context.Context, q *overhop.Quest) (overhop.Raw, error) { return q.Payload, nil }

// sleep takes {"ms": n} milliseconds, or until the job is no longer ours.
func sleep(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
	ms, ok := q.Payload.Get("ms").Int()
	if !ok || ms < 0 || ms > time.Hour.Milliseconds() {
		return nil, wrong("sleep needs params {\"ms\": n}, n from 0 to an hour")
	}
	return nil, pause(ctx, time.Duration(ms)*time.Millisecond)
}

// fail always fails, and lets the yard try again. With {"final": true} it
// says that there is no use.
func fail(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
	final, _ := q.Payload.Get("final").Bool()
	return nil, &overhop.FailError{Message: "failed on request", Type: "demo", Final: final}
}

// retry fails {"times": n} attempts, 1 if it is not given, and then ends well
// with the number of the attempt that did.
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

// wrong is for a job that no attempt could ever do.
func wrong(message string) error {
	return &overhop.FailError{Message: message, Type: "invalid_params", Final: true}
}

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
