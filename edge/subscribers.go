package edge

import (
	"slices"
	"strings"
)

// Subscribers describes this node's workers of a queue.
type Subscribers struct {
	Count   int          `json:"count"`   // workers with a subscription
	Stalled int          `json:"stalled"` // of those, workers that did not acknowledge a job or let a lease expire, and have not recovered
	Credits int          `json:"credits"` // jobs they would take now, in total
	Workers []Subscriber `json:"workers,omitempty"`
}

// Subscriber is one worker of a queue.
type Subscriber struct {
	Worker  string `json:"worker"`
	Credits int    `json:"credits"` // jobs it would take now
	Running int    `json:"running"` // jobs of all queues
	Stalled bool   `json:"stalled,omitempty"`
}

// maxSubscribers is the number of workers that are listed.
const maxSubscribers = 20

// Subscribers returns the workers of a queue on this node. Those with the most
// credits are listed first.
func (s *Server) Subscribers(queue string) (all Subscribers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.workers {
		sub := c.byQueue[queue]
		if sub == nil {
			continue
		}
		one := Subscriber{Worker: c.wid, Credits: s.available(sub), Running: len(c.jobs), Stalled: sub.stalled || c.leaseExpired}
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
