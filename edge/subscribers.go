package edge

import (
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
)

// maxSubscribers is the number of workers that are listed.
const maxSubscribers = 20

// Subscribers returns the workers of a queue on this node. Those with the most
// credits are listed first.
func (s *Server) Subscribers(queue string) (all api.Subscribers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.workers {
		sub := c.byQueue[queue]
		if sub == nil {
			continue
		}
		one := api.Subscriber{Worker: c.wid, Credits: s.available(sub), Running: len(c.jobs), Stalled: sub.stalled || c.leaseExpired}
		all.Count++
		all.Credits += one.Credits
		if one.Stalled {
			all.Stalled++
		}
		all.Workers = append(all.Workers, one)
	}
	slices.SortFunc(all.Workers, func(a, b api.Subscriber) int {
		if a.Credits != b.Credits {
			return b.Credits - a.Credits
		}
		return strings.Compare(a.Worker, b.Worker)
	})
	all.Workers = slices.Clip(all.Workers[:min(len(all.Workers), maxSubscribers)])
	return all
}
