package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"yardmaster/drill/yard"
	"yardmaster/edge/overhop"
)

// Room of the no-op workers: enough for a full pipeline, and no more
// connections than a node with a few busy workers has.
const (
	connections = 2 // at each node
	credits     = 1000
)

// hands are Overhop workers that end every job at once.
type hands struct {
	load    atomic.Pointer[load] // whose jobs they run
	clients []*overhop.Client

	running sync.WaitGroup
	stop    context.CancelFunc
}

// openHands connects workers to every node and subscribes them to a queue.
func openHands(ctx context.Context, y *yard.Yard, queue string) (*hands, error) {
	running, stop := context.WithCancel(ctx)
	h := &hands{stop: stop}
	for _, n := range y.Nodes {
		for range connections {
			if err := h.connect(ctx, running, n.Edge, queue); err != nil {
				h.close()
				return nil, fmt.Errorf("worker at %s: %w", n.Name, err)
			}
		}
	}
	return h, nil
}

func (h *hands) connect(ctx, running context.Context, addr, queue string) error {
	var c *overhop.Client
	c, err := overhop.Dial(ctx, addr, overhop.Options{Name: "bench", Quests: func(q overhop.Quest) { h.run(c, &q) }})
	if err != nil {
		return err
	}
	h.running.Go(func() {
		if err := c.Run(running); err != nil {
			h.fail(err)
		}
	})
	h.clients = append(h.clients, c)
	_, err = c.Subscribe(ctx, queue, credits)
	return err
}

// run is the handler that does nothing, called between two frames.
func (h *hands) run(c *overhop.Client, q *overhop.Quest) {
	l := h.load.Load()
	due, ok := q.Payload.Get("due").Int()
	if l == nil || !ok {
		h.fail(fmt.Errorf("a worker got job %s, which is none of this load", q.JID))
		return
	}
	l.started(due)
	c.Ack(q, nil)
	c.Done(q, nil, 1, func(_ overhop.Raw, err error) {
		if err != nil {
			l.fail(fmt.Errorf("end of job %s: %w", q.JID, err))
			return
		}
		l.ended()
	})
}

func (h *hands) fail(err error) {
	if l := h.load.Load(); l != nil {
		l.fail(err)
	}
}

func (h *hands) close() {
	h.stop()
	h.running.Wait()
}
