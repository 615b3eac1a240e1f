package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
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
func (b *bench) openRRQ(nodes int, cl *rrqCluster) func(*task) {
	return func(t *task) {
		*cl = rrqCluster{starts: filepath.Join(t.dir, "starts"), rates: make(map[string]float64), absent: make(map[dialect]error)}
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
		b.openCluster(procs.Options{Nodes: nodes, Config: pools}, &cl.benchCluster)(t)
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
func (cl *rrqCluster) saturate(t *task, d dialect, s shape, length time.Duration) round {
	must.Do(cl.absent[d])
	function := d.pool(s) + "#echo"
	if cl.rates[function] == 0 {
		warmUp := cl.rrq(t, enqueued(queueRRQ), function, 50+4*s.slots()*len(cl.Nodes))
		cl.rates[function] = warmUp.value
	}
	r := cl.rrq(t, enqueued(queueRRQ), function, max(100, int(cl.rates[function]*length.Seconds())))
	cl.rates[function] = max(r.value, 1)
	return r
}

// start measures the latency from the due time of the enqueue call to the begin of the
// handler.
func (cl *rrqCluster) start(t *task, generate generator) round {
	if err := os.Truncate(cl.starts, 0); !os.IsNotExist(err) {
		must.Do(err)
	}
	l := cl.newLoad(enqueued(queueRRQ))
	l.function = stamps + "#noop"
	r := cl.runnersEnd(t, l, generate)
	starts := must.Get(readStarts(cl.starts))
	if len(starts) != r.jobs {
		must.Do(fmt.Errorf("the runners started %d of %d jobs", len(starts), r.jobs))
	}
	took := make([]float64, 0, len(starts))
	for due, at := range starts {
		took = append(took, ms(time.Unix(0, at).Sub(l.began)-time.Duration(due)))
	}
	r.value, r.p99, r.accepted = quantile(took, 0.5), quantile(took, 0.99), 0
	return r
}

// rrq measures jobs of a function, enqueued as fast as they are accepted.
func (c *benchCluster) rrq(t *task, w way, function string, n int) round {
	l := c.newLoad(w)
	l.function = function
	return c.runnersEnd(t, l, func(t *task, l *load) { l.async(t, n, window) })
}

// runnersEnd measures a load that a pool runs. Its ends are counted by the cluster,
// because runners report only to their node.
func (c *benchCluster) runnersEnd(t *task, l *load, generate generator) round {
	before := c.delivered(t)
	m := startMeter(c.cpu)
	l.begin()
	l.run(t, generate)
	c.awaitDelivered(t, before+l.accepted.Load())
	l.lastEnd = time.Now()
	l.settled.Store(l.accepted.Load())
	r := m.end(l.round(false))
	c.verify(t, before, l)
	return r
}

// pollInterval is the time between two polls for the end of a load: the error of a
// rate measured over a second, in percent.
const pollInterval = 10 * time.Millisecond

// awaitDelivered waits until the authority counts this number of delivered
// dispatches.
func (c *benchCluster) awaitDelivered(t *task, want int64) {
	nc := c.callers[slices.Index(c.Nodes, must.Get(c.Authority(t)))].nc
	deadline := time.Now().Add(4 * waitTimeout)
	for {
		m := must.Get(nc.Request(api.SubjectStatus, []byte("{}"), waitTimeout))
		must.Do(refusal(m))
		var s api.Status
		must.Do(json.Unmarshal(m.Data, &s))
		if int64(s.Backlog.Delivered) >= want {
			return
		}
		if time.Now().After(deadline) {
			must.Do(fmt.Errorf("%d of %d jobs are delivered, %d failed", s.Backlog.Delivered, want, s.Backlog.Failed))
		}
		must.Do(backoff.Sleep(t, pollInterval))
	}
}
