package edge

import (
	"context"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// handleStatus answers with this node's figures, under the names of the
// reference server, and with the yard's under "cluster".
func (c *conn) handleStatus(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	if err := overhop.ParseEmpty(p); err != nil {
		return nil, err
	}
	st, err := c.s.cluster.Status(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	cfg := &c.s.cfg
	return overhop.Fields{
		"application": overhop.Fields{
			"name": "yardmaster", "version": cfg.Version, "build_date_utc": cfg.Built,
			"started_at": c.s.started, "now": now,
			"uptime_seconds": int64(now.Sub(c.s.started) / time.Second), "pid": os.Getpid(),
		},
		"memory": memoryStats(),
		"pools":  c.s.connStats(),
		"storage": overhop.Fields{
			"engine": "jetstream+raft", "data_path": st.DataPath, "path_exists": st.PathExists,
			"persisted_queues_count": st.Queues, "data_size_bytes": st.DataSize,
		},
		"queues": overhop.Fields{
			"bootstrapped": st.Bootstrapped, "total": st.Queues,
			"active": st.Queues - st.PausedQueues, "paused": st.PausedQueues,
		},
		"cluster": st.Cluster,
	}.Raw(), nil
}

// Counts holds the numbers of the edge's connections, registered workers and
// subscriptions, and the sum of the subscriptions' credits: how many jobs the
// workers would take now.
type Counts struct{ Connections, Registered, Subscriptions, Credits int }

// Counts returns the present numbers.
func (s *Server) Counts() Counts {
	n := s.deliveries.counts()
	s.mu.Lock()
	defer s.mu.Unlock()
	n.Connections = len(s.conns)
	return n
}

// counts returns the numbers of workers, of their subscriptions and credits.
func (ds *deliveries) counts() Counts {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	n := Counts{Registered: len(ds.workers)}
	for _, w := range ds.workers {
		n.Subscriptions += len(w.subs)
		for _, sub := range w.subs {
			n.Credits += int(sub.credits)
		}
	}
	return n
}

func (s *Server) connStats() overhop.Fields {
	n, anonymous := s.deliveries.counts(), s.listAnonymous()
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
		"workers_total": n.Registered, "worker_subscriptions_total": n.Subscriptions,
	}
}

// memoryStats returns the memory use of the process, where the system provides
// it.
func memoryStats() overhop.Fields {
	m := overhop.Fields{"source": "none", "available": false, "vm_rss_kb": nil, "vm_size_kb": nil, "vm_peak_kb": nil}
	if runtime.GOOS != "linux" {
		return m
	}
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return m
	}
	m["source"], m["available"] = "/proc/self/status", true
	keys := map[string]string{"VmRSS": "vm_rss_kb", "VmSize": "vm_size_kb", "VmPeak": "vm_peak_kb"}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		if key := keys[name]; key != "" {
			if kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err == nil {
				m[key] = kb
			}
		}
	}
	return m
}

// maxSubscribers is the number of workers that are listed.
const maxSubscribers = 20

// Subscribers returns the workers of a queue on this node. Those with the most
// credits are listed first.
func (s *Server) Subscribers(queue string) (all api.Subscribers) {
	ds := &s.deliveries
	ds.mu.Lock()
	defer ds.mu.Unlock()
	for _, w := range ds.workers {
		sub := w.byQueue[queue]
		if sub == nil {
			continue
		}
		one := api.Subscriber{Worker: w.wid, Credits: sub.available(), Running: len(w.jobs), Stalled: sub.stalled || w.leaseExpired}
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
