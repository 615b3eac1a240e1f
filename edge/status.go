package edge

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// handleStatus answers with this node's figures, under the names of the
// reference server, and with the figures of the cluster under "cluster".
func (c *conn) handleStatus(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	if err := overhop.ParseEmpty(p); err != nil {
		return nil, err
	}
	status, err := c.server.cluster.Status(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	cfg := &c.server.cfg
	return overhop.Fields{
		"application": overhop.Fields{
			"name": "yardmaster", "version": cfg.Version, "build_date_utc": cfg.Built,
			"started_at": c.server.started, "now": now,
			"uptime_seconds": int64(now.Sub(c.server.started) / time.Second), "pid": os.Getpid(),
		},
		"memory": memoryStats(),
		"pools":  c.server.connStats(),
		"storage": overhop.Fields{
			"engine": "jetstream+raft", "data_path": status.DataPath, "path_exists": status.PathExists,
			"persisted_queues_count": status.Queues, "data_size_bytes": status.DataSize,
		},
		"queues": overhop.Fields{
			"bootstrapped": status.Bootstrapped, "total": status.Queues,
			"active": status.Queues - status.PausedQueues, "paused": status.PausedQueues,
		},
		"cluster": status.Cluster,
	}.Raw(), nil
}

// Counts returns the present numbers of the edge's connections, registered
// workers and subscriptions, and the sum of the subscriptions' credits.
func (s *Server) Counts() api.WorkerStatus {
	s.mu.Lock()
	counts := api.WorkerStatus{Connections: len(s.conns)}
	s.mu.Unlock()

	s.deliveries.mu.Lock()
	defer s.deliveries.mu.Unlock()
	counts.Registered = len(s.deliveries.workers)
	for _, w := range s.deliveries.workers {
		counts.Subscriptions += len(w.subs)
		for _, sub := range w.subs {
			counts.Credits += int(sub.credits)
		}
	}
	return counts
}

// connStats returns the numbers of workers, of their subscriptions, and of
// connections that have not registered: of all, of those that have sent HELLO,
// and of those that were asked with IDENT to register.
func (s *Server) connStats() overhop.Fields {
	counts, anonymous := s.Counts(), s.listAnonymous()
	helloed, challenged := 0, 0
	for _, c := range anonymous {
		c.sessionMu.Lock()
		if c.session.Helloed() {
			helloed++
		}
		if c.session.Challenged() {
			challenged++
		}
		c.sessionMu.Unlock()
	}
	return overhop.Fields{
		"anonymous_total": len(anonymous), "anonymous_helloed": helloed, "anonymous_ident_challenged": challenged,
		"workers_total": counts.Registered, "worker_subscriptions_total": counts.Subscriptions,
	}
}

// memoryStats returns the memory use of the process in KiB, where the system
// provides it.
func memoryStats() overhop.Fields {
	const source = "/proc/self/status"
	text, err := os.ReadFile(source)
	if err != nil {
		return overhop.Fields{"source": "none", "available": false, "vm_rss_kb": nil, "vm_size_kb": nil, "vm_peak_kb": nil}
	}
	stats := overhop.Fields{"source": source, "available": true, "vm_rss_kb": nil, "vm_size_kb": nil, "vm_peak_kb": nil}
	names := map[string]string{"VmRSS": "vm_rss_kb", "VmSize": "vm_size_kb", "VmPeak": "vm_peak_kb"}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":") // such as "VmRSS:  1234 kB"
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if name := names[key]; name != "" && err == nil {
			stats[name] = kb
		}
	}
	return stats
}

// maxSubscribers is the number of workers that are listed.
const maxSubscribers = 20

// Subscribers returns the workers of a queue on this node. Those with the most
// credits are listed first.
func (s *Server) Subscribers(queue string) (all api.Subscribers) {
	ds := s.deliveries
	ds.mu.Lock()
	defer ds.mu.Unlock()
	for _, w := range ds.workers {
		sub := w.byQueue[queue]
		if sub == nil {
			continue
		}
		subscriber := api.Subscriber{
			Worker: w.id, Name: w.name(), Credits: sub.available(), Running: len(w.jobs), Stalled: sub.stalled || w.leaseExpired,
		}
		all.Count++
		all.Credits += subscriber.Credits
		if subscriber.Stalled {
			all.Stalled++
		}
		if w.drained {
			all.Drained++
		}
		all.Workers = append(all.Workers, subscriber)
	}
	slices.SortFunc(all.Workers, func(a, b api.Subscriber) int {
		return cmp.Or(cmp.Compare(b.Credits, a.Credits), cmp.Compare(a.Worker, b.Worker))
	})
	all.Workers = slices.Clip(all.Workers[:min(len(all.Workers), maxSubscribers)])
	return all
}
