package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// The charts of the curve of waiting jobs.
const (
	chartHeap     = "Heap per waiting job"
	chartLoaded   = "Heap per waiting job after a restart"
	chartResident = "Resident memory of a node"
	chartFill     = "Jobs accepted while they are filled in"
	chartStart    = "Start in another queue"
	chartCopied   = "The same while the ledger is copied"
	chartCopy     = "Longest pause by a copy of the ledger"
	chartRestart  = "Restart of a follower"
)

// Parameters of the curve of waiting jobs.
const (
	queueWaiting = "bench-waiting"
	scaleRate    = 200 // jobs per second of the load by which latencies are measured
	// minForHeap is the number of jobs from which the growth of the heap is shown: with fewer,
	// caches that have bounds, such as those of bodies and of Raft's log, take more.
	minForHeap = million
	// minForLoaded is the same for a node that has just started. Its caches are empty.
	minForLoaded = 100_000
	copyInterval = 500 * time.Millisecond // between two copies of the ledger of a node
	// settleTime is after a load until JetStream has dropped the blocks that it caches.
	settleTime     = 12 * time.Second
	restartTimeout = 5 * time.Minute
)

// waitingSeries is the metric with the number of jobs that wait.
const waitingSeries = `yard_queue_jobs{queue="` + queueWaiting + `",state="waiting"}`

// measureWaiting measures a cluster with more and more waiting jobs.
func (b *bench) measureWaiting(t *task, sizes []int, add func(int, *Point)) {
	cl := b.newClusterForRound(t, procs.Options{Nodes: 3, Profile: true})
	must.Do(cl.AddQueue(t, queueWaiting, 0))
	var empty []footprint // of all nodes at the first size, to which the others are compared
	var emptyLoaded footprint
	for i, size := range sizes {
		p, accepted := &Point{}, 0.0
		if size > cl.parked {
			b.logf("  filling from %d to %d waiting jobs", cl.parked, size)
			accepted = cl.fill(t, size)
			b.logf("  measuring with %d waiting jobs", size)
		}
		if size >= minForHeap {
			must.Do(backoff.Sleep(t, settleTime))
		}
		full := cl.footprints(t)
		if i == 0 {
			empty = full
		}
		for i, n := range cl.Nodes {
			if size >= minForHeap && sizes[0] == 0 {
				p.set(chartHeap, n.Name, "bytes", float64(full[i].inUse-empty[i].inUse)/float64(size))
			}
		}
		n, ready, whole := cl.restart(t)
		loaded := footprintOf(t, n)
		if i == 0 {
			emptyLoaded = loaded
		}
		if size >= minForLoaded && sizes[0] == 0 {
			p.set(chartLoaded, "", "bytes", float64(loaded.inUse-emptyLoaded.inUse)/float64(size))
		}
		b.setStarts(t, cl, p)
		p.set(chartRestart, "in all", "s", whole.Seconds())
		p.set(chartRestart, "the start", "s", ready.Seconds())
		for i, f := range full {
			p.set(chartResident, cl.Nodes[i].Name, "MB", float64(f.resident)/1e6)
		}
		if accepted > 0 {
			p.set(chartFill, "", jobsPerSecond, accepted)
		}
		add(size, p)
	}
}

// setStarts measures the latency of jobs of another queue, and adds it to a point: without and
// with copies of the ledger, and the longest time that a copy took.
func (b *bench) setStarts(t *task, cl *benchCluster, p *Point) {
	f := b.rounds(t, func(t *task) round {
		return cl.overhop(t, queuePlain, enqueued(queuePlain), true, b.open(scaleRate))
	})
	p.setLatency(chartStart, &f)
	longest := time.Duration(0)
	f = b.rounds(t, func(t *task) round {
		r, pause := b.whileCopied(t, cl)
		longest = max(longest, pause)
		return r
	})
	p.setLatency(chartCopied, &f)
	p.set(chartCopy, "", milliseconds, ms(longest))
}

// footprints returns the footprint of each node.
func (c *benchCluster) footprints(t *task) (all []footprint) {
	for _, n := range c.Nodes {
		all = append(all, footprintOf(t, n))
	}
	return all
}

// fill enqueues jobs to a queue without workers until it has n, waits until the ledger of each
// node has them, and returns the rate at which they were accepted.
func (c *benchCluster) fill(t *task, n int) float64 {
	l := c.newLoad(plain(queueWaiting))
	l.begin()
	l.run(t, func(t *task, l *load) { l.async(t, n-c.parked, window) })
	c.parked = n
	for _, node := range c.Nodes {
		c.awaitParked(t, node)
	}
	return l.acceptRate()
}

// awaitParked waits until the ledger of a node has all waiting jobs, and everything that it
// wants to publish is published, as long as there is progress.
func (c *benchCluster) awaitParked(t *task, n *procs.Node) {
	progress, last := time.Now(), -1.0
	must.Do(c.Until(t, fmt.Sprintf("%s has %d waiting jobs", n.Name, c.parked), func() error {
		m, err := metricsOf(t, n)
		if err != nil {
			return err
		}
		if sum := m[waitingSeries] - m["yard_outbox_bytes"]; sum != last {
			progress, last = time.Now(), sum
		}
		if time.Since(progress) > waitTimeout {
			must.Do(fmt.Errorf("%s has %v of %d waiting jobs, %v bytes to publish, and none more for %v", n.Name, m[waitingSeries], c.parked, m["yard_outbox_bytes"], waitTimeout))
		}
		if m[waitingSeries] != float64(c.parked) || m["yard_outbox_bytes"] > 0 {
			return errors.New("not yet")
		}
		return nil
	}))
}

// restart stops a node that is not the authority with SIGTERM and starts it again. It returns
// the node and the time from its start, and from SIGTERM, until it is ready and has applied all that the
// others had committed when it was started.
func (c *benchCluster) restart(t *task) (n *procs.Node, ready, whole time.Duration) {
	owner := must.Get(c.Authority(t))
	n = c.Nodes[len(c.Nodes)-1]
	if n == owner {
		n = c.Nodes[0]
	}
	ctx, cancel := context.WithTimeout(t, restartTimeout)
	defer cancel()
	stopped := time.Now()
	n.Term()
	if err := n.Wait(ctx); ctx.Err() != nil {
		must.Do(err)
	}
	started := time.Now()
	must.Do(n.Start())
	committed := must.Get(metricsOf(ctx, owner))["yard_raft_committed_index"]
	must.Do(c.Until(ctx, n.Name+" is ready", func() error {
		if err := readyOf(ctx, n); err != nil {
			return err
		}
		m, err := metricsOf(ctx, n)
		if err != nil {
			return err
		}
		if m["yard_raft_applied_index"] < committed || m[waitingSeries] != float64(c.parked) {
			return fmt.Errorf("it has applied %v of %v, and has %v jobs", m["yard_raft_applied_index"], committed, m[waitingSeries])
		}
		return nil
	}))
	ready, whole = time.Since(started), time.Since(stopped)
	must.Do(c.AwaitReady(t))
	c.awaitLanes(t)
	c.dial(t)
	return n, ready, whole
}

// whileCopied measures the latency of jobs while each node copies its ledger again and again,
// and returns the longest time that a copy took. Jobs are added to those that wait, because the
// copy of a queue that has not changed is the last one.
func (b *bench) whileCopied(t *task, cl *benchCluster) (r round, longest time.Duration) {
	var copying sync.WaitGroup
	longests, faults := make([]time.Duration, len(cl.Nodes)), make([]error, len(cl.Nodes))
	var added atomic.Int64
	r = cl.overhop(t, queuePlain, enqueued(queuePlain), true, func(t *task, l *load) {
		ctx, stop := context.WithCancel(t)
		defer func() {
			stop()
			copying.Wait()
			cl.parked += int(added.Load())
		}()
		for i, n := range cl.Nodes {
			copying.Go(func() { longests[i], faults[i] = copyAgain(ctx, n, &added) })
		}
		b.open(scaleRate)(t, l)
	})
	must.Do(errors.Join(faults...))
	for _, d := range longests {
		longest = max(longest, d)
	}
	return r, longest
}

// copyAgain makes a node copy its ledger every copyInterval until ctx ends, and returns the
// longest time that a copy took, according to the node. A list of a queue's jobs reads from a
// copy that is made like that of a snapshot. Before each copy, copyAgain adds a waiting job, which
// it counts in added.
func copyAgain(ctx context.Context, n *procs.Node, added *atomic.Int64) (longest time.Duration, err error) {
	w, err := dialWorker(ctx, n.Edge)
	if err != nil {
		return 0, err
	}
	defer w.nc.Close()
	list := overhop.AppendValue(nil, overhop.Fields{"q": queueIdle, "status": "waiting"})
	for backoff.Sleep(ctx, copyInterval) == nil {
		if err := w.ask(overhop.TEnqueue, appendEnqueue(nil, queueWaiting, "", "", 0, 0), overhop.TOK); err != nil {
			return longest, err
		}
		added.Add(1)
		if err := w.ask(overhop.TLsJob, list, overhop.TOK); err != nil {
			return longest, err
		}
		m, err := metricsOf(ctx, n)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return longest, err
		}
		longest = max(longest, time.Duration(m["yard_snapshot_pause_seconds"]*float64(time.Second)))
	}
	return longest, nil
}

// readyOf returns an error unless a node says that it is ready.
func readyOf(ctx context.Context, n *procs.Node) error {
	answer, err := get(ctx, n, "/readyz")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is not ready: %s", n.Name, answer.Status)
	}
	return nil
}

// metricsOf returns the metrics of a node, by their names with labels.
func metricsOf(ctx context.Context, n *procs.Node) (map[string]float64, error) {
	answer, err := get(ctx, n, "/metrics")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	values := make(map[string]float64)
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			values[line[:at]] = v
		}
	}
	return values, lines.Err()
}

// get sends a request to the HTTP port of a node.
func get(ctx context.Context, n *procs.Node, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+path, nil)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(request)
}
