package agent

import (
	"context"
	"sync"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// taskPool runs tasks in the order they were added, at most max at a time, while the
// context given to start is not done. Tasks added before start wait for it.
type taskPool struct {
	max int
	wg  *sync.WaitGroup

	mu      crash.Mutex
	ctx     context.Context // nil before Run
	running int
	queue   []func(context.Context)
}

func (p *taskPool) start(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ctx = ctx
	for p.running < min(p.max, len(p.queue)) {
		p.running++
		p.wg.Go(p.run)
	}
}

func (p *taskPool) add(task func(context.Context)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, task)
	if p.ctx != nil && p.ctx.Err() == nil && p.running < p.max {
		p.running++
		p.wg.Go(p.run)
	}
}

// run runs queued tasks until the queue is empty or the context is done.
func (p *taskPool) run() {
	for {
		p.mu.Lock()
		if len(p.queue) == 0 || p.ctx.Err() != nil {
			p.running--
			p.mu.Unlock()
			return
		}
		task := p.queue[0]
		p.queue = p.queue[1:]
		p.mu.Unlock()
		task(p.ctx)
	}
}
