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

	"yardmaster/cluster"
	"yardmaster/drill/yard"
	"yardmaster/node"
)

// stamps is the pool of stampRunners that latencies are taken with.
const stamps = "stamps"

// pool names the pool of a shape.
func (d dialect) pool(s shape) string { return string(d) + "-" + s.String() }

// rrqYard is a yard whose nodes have a pool of every shape.
type rrqYard struct {
	*yards
	starts string             // what stampRunners write
	rates  map[string]float64 // jobs/s of a function, as it was last measured
	absent map[dialect]error  // languages there are no pools of, and why
}

// openRRQ starts such a yard. A pool costs nothing while it is idle.
func (b *bench) openRRQ(nodes int, y *rrqYard) func(context.Context, string) (func(), error) {
	return func(ctx context.Context, dir string) (func(), error) {
		*y = rrqYard{starts: filepath.Join(dir, "starts"), rates: make(map[string]float64), absent: make(map[dialect]error)}
		pools := poolConfig(stamps, stampCommand(b.Binary, y.starts), shape{1, 64})
		for d, shapes := range map[dialect][]shape{golang: goShapes, python: pythonShapes} {
			cmd, err := d.command(b.Binary)
			if err != nil {
				y.absent[d] = err
				continue
			}
			for _, s := range shapes {
				pools += poolConfig(d.pool(s), cmd, s)
			}
		}
		open := b.openYard(yard.Options{Nodes: nodes, Config: pools}, &y.yards)
		return open(ctx, dir)
	}
}

// poolConfig is the table of a pool.
func poolConfig(name string, cmd []string, s shape) string {
	var words []string
	for _, word := range cmd {
		words = append(words, fmt.Sprintf("%q", word))
	}
	return fmt.Sprintf("[rrq.runners.%s]\ncmd = [%s]\nsocket_via = \"env\"\npool_size = %d\nmax_in_flight = %d\n",
		name, strings.Join(words, ", "), s.processes, s.flight)
}

// saturate measures how many jobs a second a pool of a shape on each node runs.
func (y *rrqYard) saturate(ctx context.Context, d dialect, s shape, length time.Duration) (round, error) {
	if err := y.absent[d]; err != nil {
		return round{}, err
	}
	function := d.pool(s) + "#echo"
	if y.rates[function] == 0 {
		r, err := y.rrq(ctx, enqueued(queueRRQ), function, 50+4*s.slots()*len(y.Nodes)) // also wakes what is idle
		if err != nil {
			return r, err
		}
		y.rates[function] = r.value
	}
	r, err := y.rrq(ctx, enqueued(queueRRQ), function, max(100, int(y.rates[function]*length.Seconds())))
	y.rates[function] = max(r.value, 1)
	return r, err
}

// start measures from when an enqueue call was due until its handler began.
func (y *rrqYard) start(ctx context.Context, hand func(context.Context, *load) error) (round, error) {
	if err := os.Truncate(y.starts, 0); err != nil && !os.IsNotExist(err) {
		return round{}, err
	}
	l := y.newLoad(enqueued(queueRRQ))
	l.function = stamps + "#noop"
	r, err := y.runnersEnd(ctx, l, hand)
	if err != nil {
		return r, err
	}
	starts, err := readStarts(y.starts)
	if err != nil {
		return r, err
	}
	if len(starts) != r.jobs {
		return r, fmt.Errorf("the runners began %d of %d jobs", len(starts), r.jobs)
	}
	took := make([]float64, 0, len(starts))
	for due, at := range starts {
		took = append(took, ms(time.Unix(0, at).Sub(l.began)-time.Duration(due)))
	}
	r.value, r.p99, r.accepted = quantile(took, 0.5), quantile(took, 0.99), 0
	return r, nil
}

// rrq measures a function's jobs, handed in as fast as they are taken.
func (y *yards) rrq(ctx context.Context, w way, function string, n int) (round, error) {
	l := y.newLoad(w)
	l.function = function
	return y.runnersEnd(ctx, l, func(ctx context.Context, l *load) error { return l.async(ctx, n, window) })
}

// runnersEnd measures a load that a pool runs. Nobody outside hears of its
// ends; they are counted by the yard.
func (y *yards) runnersEnd(ctx context.Context, l *load, hand func(context.Context, *load) error) (round, error) {
	before, err := y.delivered(ctx)
	if err != nil {
		return round{}, err
	}
	m := startMeter(y.CPU)
	l.begin()
	if err := l.run(ctx, hand); err != nil {
		return round{}, err
	}
	if err := y.awaitDelivered(ctx, before+l.accepted.Load()); err != nil {
		return round{}, err
	}
	l.lastEnd = time.Now()
	l.settled.Store(l.accepted.Load())
	r := m.end(l.round(false))
	return r, y.verify(ctx, before, l)
}

// lookEvery is how often the yard is asked whether it is through: what a rate
// over a second may be wrong by, in percent.
const lookEvery = 10 * time.Millisecond

// awaitDelivered waits until so many dispatches have ended well, as the
// authority has it.
func (y *yards) awaitDelivered(ctx context.Context, want int64) error {
	a, err := y.Authority(ctx)
	if err != nil {
		return err
	}
	nc := y.callers[slices.Index(y.Nodes, a)].nc
	late := time.Now().Add(4 * patience)
	for {
		m, err := nc.Request(cluster.SubjectStatus, []byte("{}"), patience)
		if err == nil {
			err = refusal(m)
		}
		if err != nil {
			return fmt.Errorf("ask %s how far it is: %w", a.Name, err)
		}
		var s node.Status
		if err := json.Unmarshal(m.Data, &s); err != nil {
			return fmt.Errorf("read the status of %s: %w", a.Name, err)
		}
		if int64(s.Backlog.Delivered) >= want {
			return nil
		}
		if time.Now().After(late) {
			return fmt.Errorf("%d of %d jobs are delivered, %d failed", s.Backlog.Delivered, want, s.Backlog.Failed)
		}
		if err := pauseUntil(ctx, time.Now().Add(lookEvery)); err != nil {
			return err
		}
	}
}
