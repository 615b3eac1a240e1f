package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
)

// defaultConcurrency is how many jobs of a queue run at once if the worker does not say.
const defaultConcurrency = 10

// concurrency returns how many jobs of a queue the worker runs at once.
func (w *Worker) concurrency(queue string) uint32 {
	return uint32(cmp.Or(w.Queues[queue], w.Concurrency, defaultConcurrency))
}

// validate returns an error that names the first setting that is out of range, or names a
// queue or a function without a handler.
func (w *Worker) validate() error {
	if len(w.handlers) == 0 {
		return errors.New("worker has no handlers: call Handle before Run")
	}
	if w.Concurrency < 0 || w.Concurrency > math.MaxInt32 {
		return fmt.Errorf("worker: Concurrency is %d; it is 1 or more, or 0 for %d", w.Concurrency, defaultConcurrency)
	}
	if w.ShutdownGrace < 0 {
		return fmt.Errorf("worker: ShutdownGrace is %s; it is not negative", duration.Format(w.ShutdownGrace))
	}
	functions := map[string]bool{}
	for _, queue := range slices.Sorted(maps.Keys(w.handlers)) {
		if err := job.ValidQueue(queue); err != nil {
			return fmt.Errorf("worker: a handler is of the queue %q: %w", queue, err)
		}
		for function := range w.handlers[queue] {
			functions[function] = true
		}
	}
	for _, queue := range slices.Sorted(maps.Keys(w.Queues)) {
		switch n := w.Queues[queue]; {
		case w.handlers[queue] == nil:
			return fmt.Errorf("worker: Queues has the queue %q, for which there is no handler", queue)
		case n < 0 || n > math.MaxInt32:
			return fmt.Errorf("worker: Queues has %d for queue %q; it is 1 or more, or 0 for Concurrency", n, queue)
		}
	}
	for _, function := range slices.Sorted(maps.Keys(w.Functions)) {
		switch n := w.Functions[function]; {
		case !functions[function]:
			return fmt.Errorf("worker: Functions has the function %q, for which there is no handler", function)
		case n < 1:
			return fmt.Errorf("worker: Functions has %d for function %q; it is 1 or more", n, function)
		}
	}
	return nil
}

// How long a job waits whose function is at its limit.
const (
	limitDelay    = time.Second // at first; later a quarter of the job's age
	limitMaxDelay = 30 * time.Second
)

// errAtLimit is wrapped by the errors of jobs that are given back for the limit of their
// function.
var errAtLimit = errors.New("the function is at its limit in this worker")

// limited returns the handler of a function within its limit, if it has one: a job beyond the
// limit is given back, so that it does not occupy a slot of its queue.
func (w *Worker) limited(function string, handler HandlerFunc) HandlerFunc {
	running := w.running[function]
	if running == nil {
		return handler
	}
	return func(ctx context.Context, job *JobInfo) (any, error) {
		select {
		case running <- struct{}{}:
			defer func() { <-running }()
			return handler(ctx, job)
		default:
			delay := min(max(time.Since(job.Accepted)/4, limitDelay), limitMaxDelay)
			return nil, fmt.Errorf("%w: %w", errAtLimit, Snooze(delay))
		}
	}
}
