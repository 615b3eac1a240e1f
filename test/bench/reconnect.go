package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// The parameters of the death of a node with all idle workers. These reconnect to the
// other nodes, each after a random delay, while other workers run an open-loop load
// that does not use the dead node.
const (
	rejoinRate    = 200 // jobs per second
	rejoinWindow  = 5 * time.Second
	rejoinJitter  = 500 * time.Millisecond // maximum delay before a worker's first attempt
	rejoinTimeout = time.Minute
)

var steady = workerPlan{workers: 16, credits: 16} // the workers of that load

// victimKind selects the node that dies: the authority, which is the worst case, or
// another; and its number of idle workers.
type victimKind struct {
	authority bool
	workers   int
}

// rejoined is the result of the death of a node.
type rejoined struct {
	before, meanwhile round         // latency before and after the death
	most, all         time.Duration // from the death until 95 % and 100 % are subscribed
}

// measureRejoin starts a cluster, kills one node and measures the effects.
func (b *bench) measureRejoin(ctx context.Context, dir string, d victimKind) (r rejoined, err error) {
	cl, err := b.newClusterForRound(ctx, dir, procs.Options{Nodes: 3})
	if err != nil {
		return r, err
	}
	defer cl.close()
	victim, left, err := cl.split(ctx, d.authority)
	if err != nil {
		return r, err
	}
	wires, err := openIdle(ctx, victim, d.workers)
	if err != nil {
		return r, err
	}
	conns, err := openOverhopConns(ctx, left.Nodes, steady.workers)
	if err != nil {
		closeWires(wires)
		return r, err
	}
	defer conns.close()
	crowd := newCrowd(ctx, wires, left.Nodes)
	defer crowd.close()
	newLoad := func() *load {
		return &load{transports: conns.entries(), subject: queuePlain, key: cl.newKey(), seen: make(map[int64]bool)}
	}
	if r.before, err = cl.openLoad(ctx, left, d.workers, newLoad(), b.open(rejoinRate)); err != nil {
		return r, err
	}
	r.meanwhile, err = cl.openLoad(ctx, left, d.workers, newLoad(), func(ctx context.Context, l *load) error {
		began := crowd.watch()
		victim.Kill()
		return l.openLoopWhile(ctx, rejoinRate, func(time.Duration) bool {
			took := time.Since(began)
			return took < rejoinWindow || !crowd.allBack() && took < rejoinTimeout
		})
	})
	if err == nil && d.workers > 0 {
		r.most, r.all, err = crowd.result()
	}
	return r, err
}

// split selects the victim, and returns it and the other nodes.
func (c *benchCluster) split(ctx context.Context, authority bool) (victim *procs.Node, left *benchCluster, err error) {
	owner, err := c.Authority(ctx)
	if err != nil {
		return nil, nil, err
	}
	left = &benchCluster{Cluster: &procs.Cluster{}}
	for _, n := range c.Nodes {
		if victim == nil && (n == owner) == authority {
			victim = n
		} else {
			left.Nodes = append(left.Nodes, n)
		}
	}
	return victim, left, nil
}

// openLoad runs an open-loop load with workers at the surviving nodes, and with this
// number of idle workers connected at the begin.
func (c *benchCluster) openLoad(ctx context.Context, left *benchCluster, idle int, l *load, generate func(context.Context, *load) error) (round, error) {
	h, err := startWorkers(ctx, left.Nodes, steady, queuePlain, l)
	if err != nil {
		return round{}, err
	}
	defer h.close()
	if err := c.awaitCapacity(ctx, idle+steady.capacity()); err != nil {
		return round{}, err
	}
	l.begin()
	if err := l.run(ctx, generate); err != nil {
		return round{}, err
	}
	if err := l.awaitEnds(ctx); err != nil {
		return round{}, err
	}
	return l.round(true), errors.Join(l.failure(), left.await(ctx, "no dispatch is left", func() error {
		s, err := left.Nodes[0].Status(ctx)
		if out := s.Backlog.Pending + s.Backlog.Notified; err == nil && out > 0 {
			err = fmt.Errorf("%d dispatches are left", out)
		}
		return err
	}))
}

// idleCrowd is a set of idle workers that reconnect once when their connection ends.
type idleCrowd struct {
	nodes   []*procs.Node // to reconnect to
	count   int
	running sync.WaitGroup
	stop    context.CancelFunc

	mu    sync.Mutex
	began time.Time
	took  []time.Duration // from began until each worker was subscribed again
	fault error           // first error of a reconnect
}

func newCrowd(ctx context.Context, wires []*wire, nodes []*procs.Node) *idleCrowd {
	ctx, stop := context.WithCancel(ctx)
	c := &idleCrowd{nodes: nodes, count: len(wires), stop: stop}
	for _, w := range wires {
		c.running.Go(func() {
			c.stayConnected(ctx, w)
			if w := c.reconnect(ctx); w != nil {
				c.stayConnected(ctx, w)
			}
		})
	}
	return c
}

// stayConnected reads from a connection until it or ctx ends.
func (c *idleCrowd) stayConnected(ctx context.Context, w *wire) {
	defer context.AfterFunc(ctx, func() { w.nc.Close() })()
	defer w.nc.Close()
	for {
		if _, err := w.next(); err != nil {
			return
		}
	}
}

// reconnect tries one node after the other until it is subscribed. It returns nil if
// ctx ends.
func (c *idleCrowd) reconnect(ctx context.Context) *wire {
	wait := backoff.Backoff{Base: 200 * time.Millisecond, Max: 2 * time.Second}
	pause := rand.N(rejoinJitter)
	for i := rand.IntN(len(c.nodes)); ; i++ {
		if backoff.Sleep(ctx, pause) != nil {
			return nil
		}
		w, err := dialIdle(ctx, c.nodes[i%len(c.nodes)].Edge)
		c.mu.Lock()
		switch {
		case err == nil:
			c.took = append(c.took, time.Since(c.began))
		case c.fault == nil:
			c.fault = err
		}
		c.mu.Unlock()
		if err == nil {
			return w
		}
		pause = wait.Next()
	}
}

// watch starts the measurement, just before the node with all workers dies.
func (c *idleCrowd) watch() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began, c.took = time.Now(), nil
	return c.began
}

// allBack reports whether all workers are subscribed again.
func (c *idleCrowd) allBack() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.took) >= c.count
}

// result returns the times until 95 % and until all workers were subscribed again.
func (c *idleCrowd) result() (most, all time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.took) != c.count {
		err = fmt.Errorf("%d of %d workers are subscribed again within %v", len(c.took), c.count, rejoinTimeout)
		return 0, 0, errors.Join(err, c.fault)
	}
	slices.Sort(c.took)
	return c.took[(len(c.took)*95+99)/100-1], c.took[len(c.took)-1], nil
}

func (c *idleCrowd) close() {
	c.stop()
	c.running.Wait()
}
