package agent

import (
	"context"
	"sync"
)

// errands runs small tasks, a few at a time, within an agent's Run.
type errands struct {
	max  int
	work *sync.WaitGroup

	mu      sync.Mutex
	ctx     context.Context // nil before Run
	running int
	queue   []func(context.Context)
}

func (e *errands) begin(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ctx = ctx
	for e.running < min(e.max, len(e.queue)) {
		e.running++
		e.work.Go(e.run)
	}
}

func (e *errands) add(task func(context.Context)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue = append(e.queue, task)
	if e.ctx != nil && e.ctx.Err() == nil && e.running < e.max {
		e.running++
		e.work.Go(e.run)
	}
}

// run does tasks until there is none.
func (e *errands) run() {
	for {
		e.mu.Lock()
		if len(e.queue) == 0 || e.ctx.Err() != nil {
			e.running--
			e.mu.Unlock()
			return
		}
		task := e.queue[0]
		e.queue = e.queue[1:]
		e.mu.Unlock()
		task(e.ctx)
	}
}
