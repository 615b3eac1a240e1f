package edge

import (
	"slices"
	"strings"
)

// Subscribers are this node's workers of a queue.
type Subscribers struct {
	Count   int          `json:"count"`   // subscribed
	Stalled int          `json:"stalled"` // of those, let a time to acknowledge or a lease pass, and were not heard since
	Credits int          `json:"credits"` // jobs they would take now, together
	Workers []Subscriber `json:"workers,omitempty"`
}

// Subscriber is one of them.
type Subscriber struct {
	Worker  string `json:"worker"`
	Credits int    `json:"credits"` // jobs it would take now
	Running int    `json:"running"` // jobs of all queues in its hands
	Stalled bool   `json:"stalled,omitempty"`
}

// maxSubscribers is how many workers are named.
const maxSubscribers = 20

// Subscribers tells who serves a queue here; those with the most credits are
// named first.
func (s *Server) Subscribers(queue string) (all Subscribers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.workers {
		sub := c.byQueue[queue]
		if sub == nil {
			continue
		}
		one := Subscriber{Worker: c.wid, Credits: s.room(sub), Running: len(c.jobs), Stalled: sub.stalled || c.overdue}
		all.Count++
		all.Credits += one.Credits
		if one.Stalled {
			all.Stalled++
		}
		all.Workers = append(all.Workers, one)
	}
	slices.SortFunc(all.Workers, func(a, b Subscriber) int {
		if a.Credits != b.Credits {
			return b.Credits - a.Credits
		}
		return strings.Compare(a.Worker, b.Worker)
	})
	all.Workers = slices.Clip(all.Workers[:min(len(all.Workers), maxSubscribers)])
	return all
}
