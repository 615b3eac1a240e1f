package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// stamps is the name of the pool of stamping runners, with which latencies are
// measured.
const stamps = "stamps"

// pool returns the name of the pool of a shape.
func (d dialect) pool(s shape) string { return string(d) + "-" + s.String() }

// rrqCluster is a cluster whose nodes have a pool of every shape.
type rrqCluster struct {
	*benchCluster
	starts string             // file that stamping runners write to
	rates  map[string]float64 // last measured jobs/s, by function
	absent map[dialect]error  // why there are no pools of a language
}

// openRRQ returns a function that starts such a cluster. Idle pools do not affect the
// measurements.
func (b *bench) openRRQ(nodes int, cl *rrqCluster) func(context.Context, string) (func(), error) {
	return func(ctx context.Context, dir string) (func(), error) {
		*cl = rrqCluster{starts: filepath.Join(dir, "starts"), rates: make(map[string]float64), absent: make(map[dialect]error)}
		pools := poolConfig(stamps, stampCommand(b.self, cl.starts), shape{1, 64})
		for d, shapes := range map[dialect][]shape{golang: goShapes, python: pythonShapes} {
			cmd, err := d.command(b.Binary)
			if err != nil {
				cl.absent[d] = err
				continue
			}
			for _, s := range shapes {
				pools += poolConfig(d.pool(s), cmd, s)
			}
		}
		open := b.openCluster(procs.Options{Nodes: nodes, Config: pools}, &cl.benchCluster)
		return open(ctx, dir)
	}
}

// poolConfig returns the configuration of a pool.
func poolConfig(name string, cmd []string, s shape) string {
	var words []string
	for _, word := range cmd {
		words = append(words, fmt.Sprintf("%q", word))
	}
	return fmt.Sprintf("[rrq.runners.%s]\ncmd = [%s]\nsocket_via = \"env\"\npool_size = %d\nmax_in_flight = %d\n",
		name, strings.Join(words, ", "), s.processes, s.inFlight)
}

// saturate measures the maximum rate of jobs with a pool of one shape on each node.
func (cl *rrqCluster) saturate(ctx context.Context, d dialect, s shape, length time.Duration) (round, error) {
	if err := cl.absent[d]; err != nil {
		return round{}, err
	}
	function := d.pool(s) + "#echo"
	if cl.rates[function] == 0 {
		r, err := cl.rrq(ctx, enqueued(queueRRQ), function, 50+4*s.slots()*len(cl.Nodes)) // warms up the pool as well
		if err != nil {
			return r, err
		}
		cl.rates[function] = r.value
	}
	r, err := cl.rrq(ctx, enqueued(queueRRQ), function, max(100, int(cl.rates[function]*length.Seconds())))
	cl.rates[function] = max(r.value, 1)
	return r, err
}

// start measures the latency from the due time of the enqueue call to the begin of the
// handler.
func (cl *rrqCluster) start(ctx context.Context, generate func(context.Context, *load) error) (round, error) {
	if err := os.Truncate(cl.starts, 0); err != nil && !os.IsNotExist(err) {
		return round{}, err
	}
	l := cl.newLoad(enqueued(queueRRQ))
	l.function = stamps + "#noop"
	r, err := cl.runnersEnd(ctx, l, generate)
	if err != nil {
		return r, err
	}
	starts, err := readStarts(cl.starts)
	if err != nil {
		return r, err
	}
	if len(starts) != r.jobs {
		return r, fmt.Errorf("the runners started %d of %d jobs", len(starts), r.jobs)
	}
	took := make([]float64, 0, len(starts))
	for due, at := range starts {
		took = append(took, ms(time.Unix(0, at).Sub(l.began)-time.Duration(due)))
	}
	r.value, r.p99, r.accepted = quantile(took, 0.5), quantile(took, 0.99), 0
	return r, nil
}

// rrq measures jobs of a function, enqueued as fast as they are accepted.
func (c *benchCluster) rrq(ctx context.Context, w way, function string, n int) (round, error) {
	l := c.newLoad(w)
	l.function = function
	return c.runnersEnd(ctx, l, func(ctx context.Context, l *load) error { return l.async(ctx, n, window) })
}

// runnersEnd measures a load that a pool runs. Its ends are counted by the cluster,
// because runners report only to their node.
func (c *benchCluster) runnersEnd(ctx context.Context, l *load, generate func(context.Context, *load) error) (round, error) {
	before, err := c.delivered(ctx)
	if err != nil {
		return round{}, err
	}
	m := startMeter(c.cpu)
	l.begin()
	if err := l.run(ctx, generate); err != nil {
		return round{}, err
	}
	if err := c.awaitDelivered(ctx, before+l.accepted.Load()); err != nil {
		return round{}, err
	}
	l.lastEnd = time.Now()
	l.settled.Store(l.accepted.Load())
	r := m.end(l.round(false))
	return r, c.verify(ctx, before, l)
}

// pollInterval is the time between two polls for the end of a load: the error of a
// rate measured over a second, in percent.
const pollInterval = 10 * time.Millisecond

// awaitDelivered waits until the authority counts this number of delivered
// dispatches.
func (c *benchCluster) awaitDelivered(ctx context.Context, want int64) error {
	a, err := c.Authority(ctx)
	if err != nil {
		return err
	}
	nc := c.callers[slices.Index(c.Nodes, a)].nc
	deadline := time.Now().Add(4 * waitTimeout)
	for {
		m, err := nc.Request(api.SubjectStatus, []byte("{}"), waitTimeout)
		if err == nil {
			err = refusal(m)
		}
		if err != nil {
			return fmt.Errorf("request the status of %s: %w", a.Name, err)
		}
		var s api.Status
		if err := json.Unmarshal(m.Data, &s); err != nil {
			return fmt.Errorf("read the status of %s: %w", a.Name, err)
		}
		if int64(s.Backlog.Delivered) >= want {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d jobs are delivered, %d failed", s.Backlog.Delivered, want, s.Backlog.Failed)
		}
		if err := pauseUntil(ctx, time.Now().Add(pollInterval)); err != nil {
			return err
		}
	}
}
