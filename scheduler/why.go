package scheduler

import (
	"context"
	"fmt"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// Why tells why a waiting job is not started, as this tenure sees it.
type Why struct {
	Text   string `json:"text,omitempty"`   // "": nothing, or only other jobs
	Runner string `json:"runner,omitempty"` // the RRQ runner without room for it; its nodes know why
}

// Why asks the present tenure about a waiting job of a queue.
func (s *Scheduler) Why(ctx context.Context, queue, function string) (Why, error) {
	m := s.tenure()
	if m == nil {
		return Why{}, ErrNoTenure
	}
	answer := make(chan Why, 1)
	m.post(func() { answer <- m.why(queue, function, time.Now()) })
	select {
	case w := <-answer:
		return w, nil
	case <-m.gone:
		return Why{}, ErrNoTenure
	case <-ctx.Done():
		return Why{}, ctx.Err()
	}
}

// why goes by what choose goes by, in its order.
func (m *mind) why(queue, function string, now time.Time) (w Why) {
	if m.blocked != "" {
		return Why{Text: m.blocked}
	}
	if !m.trusted().After(now) {
		return Why{Text: "the authority's lease is not certain: nothing is started meanwhile"}
	}
	m.ledger().View(func(l *ledger.Ledger) {
		q, known := l.Queue(queue)
		switch {
		case l.OutboxBytes() >= ledger.MaxOutbox/4*3:
			w.Text = "history cannot be written: nothing is started until it can"
		case known && q.Paused:
			w.Text = fmt.Sprintf("queue %s is paused", queue)
		case l.Room(queue) == 0:
			w.Text = fmt.Sprintf("queue %s runs as many jobs at once as its limit allows: %d", queue, q.Config.Limit)
		}
	})
	if w.Text != "" {
		return w
	}
	return m.whyNoRoom(queue, function)
}

// whyNoRoom tells what the hands that may run a job are short of.
func (m *mind) whyNoRoom(queue, function string) Why {
	workers, runner := m.hands(queue, function)
	for _, k := range []roomKey{{job.Overhop, workers}, {job.RRQ, runner}} {
		if r := m.rooms[k]; k.key != "" && r != nil && r.free() {
			return Why{}
		}
	}
	w := Why{Runner: runner}
	if workers != "" {
		w.Text = "no worker has credit for queue " + workers
	}
	return w
}

// hands names who may run a job: the queue whose Overhop workers may, and the
// runner; "" for none.
func (m *mind) hands(queue, function string) (workers, runner string) {
	if runner, _ := job.SplitFunction(function); runner != "" {
		return "", runner
	}
	if runner := m.cfg.Routes[queue]; runner != "" {
		return "", runner
	}
	if function != "" {
		runner = m.cfg.DefaultRunner
	}
	return queue, runner
}
