package scheduler

import (
	"context"
	"fmt"
	"time"

	"yardmaster/job"
)

// WhyQuestion asks what keeps a job, or any of its kind, from being started.
type WhyQuestion struct {
	Queue    string `json:"queue"`
	Function string `json:"function,omitempty"`
	Job      job.ID `json:"job,omitzero"`      // zero: any job
	Dispatch uint32 `json:"dispatch,omitzero"` // of Job
}

// Why is what only the authority knows of that. Of pauses, limits and turns
// every node's ledger knows.
type Why struct {
	Blocked string   `json:"blocked,omitempty"` // why nothing is started; "": jobs are
	Unsure  bool     `json:"unsure,omitempty"`  // the lease may be over: nothing is started meanwhile
	Workers string   `json:"workers,omitempty"` // the queue whose Overhop workers may run it; "": none may
	Runner  string   `json:"runner,omitempty"`  // the RRQ runner that may run it; "": none may
	Room    int      `json:"room,omitempty"`    // jobs that those would take now
	Placing bool     `json:"placing,omitempty"` // a worker is chosen, and the commit on its way
	Sent    *Sent    `json:"sent,omitempty"`    // of a dispatch that is out; nil: it is not followed
	Lanes   []string `json:"lanes,omitempty"`   // what is wrong with lanes, by number; "": nothing
	Epoch   uint64   `json:"epoch"`
}

// Sent is how the authority follows a dispatch.
type Sent struct {
	Taken  bool  `json:"taken"`   // its node has said that it has it
	Silent bool  `json:"silent"`  // its node is not heard
	SentMS int64 `json:"sent_ms"` // since it was sent last; 0 if it was not by this tenure
}

// Why asks the present tenure.
func (s *Scheduler) Why(ctx context.Context, q WhyQuestion) (Why, error) {
	m := s.tenure()
	if m == nil {
		return Why{}, ErrNoTenure
	}
	answer := make(chan Why, 1)
	m.post(func() { answer <- m.why(&q, time.Now()) })
	select {
	case w := <-answer:
		return w, nil
	case <-m.gone:
		return Why{}, ErrNoTenure
	case <-ctx.Done():
		return Why{}, ctx.Err()
	}
}

func (m *mind) why(q *WhyQuestion, now time.Time) Why {
	k := dispatchKey{q.Job, q.Dispatch}
	w := Why{Blocked: m.blocked, Unsure: !m.trusted().After(now), Epoch: m.epoch}
	w.Workers, w.Runner = m.cfg.Hands(q.Queue, q.Function)
	for _, r := range []roomKey{{job.Overhop, w.Workers}, {job.RRQ, w.Runner}} {
		if room := m.rooms[r]; r.key != "" && room != nil {
			w.Room += room.room()
		}
	}
	_, w.Placing = m.placing[k]
	if f := m.flights[k]; f != nil {
		n := m.nodes[f.node]
		w.Sent = &Sent{Taken: f.confirmed, Silent: n == nil || n.silent}
		if !f.sentAt.IsZero() {
			w.Sent.SentMS = now.Sub(f.sentAt).Milliseconds()
		}
	}
	for i, lane := range m.lanes {
		if lane.trouble != "" {
			for len(w.Lanes) < i {
				w.Lanes = append(w.Lanes, "")
			}
			w.Lanes = append(w.Lanes, fmt.Sprintf("lane %d is not read: %s", i, lane.trouble))
		}
	}
	return w
}

// room is how many more jobs the seats in line take.
func (r *room) room() (free int) {
	for _, s := range r.ready {
		free += s.free()
	}
	return free
}

// Hands names who may run a job: the queue whose Overhop workers may, and the
// RRQ runner; "" for none.
func (c *Config) Hands(queue, function string) (workers, runner string) {
	if runner, _ := job.SplitFunction(function); runner != "" {
		return "", runner
	}
	if runner := c.Routes[queue]; runner != "" {
		return "", runner
	}
	if function != "" {
		runner = c.DefaultRunner
	}
	return queue, runner
}
