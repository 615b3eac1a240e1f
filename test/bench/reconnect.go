package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
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
func (b *bench) measureRejoin(t *task, d victimKind) (r rejoined) {
	cl := b.newClusterForRound(t, procs.Options{Nodes: 3})
	victim, left := cl.split(t, d.authority)
	wires := openIdle(t, victim, d.workers)
	conns := openOverhopConns(t, left.Nodes, steady.workers)
	crowd := newCrowd(t, wires, left.Nodes)
	t.cleanup(crowd.close)
	newLoad := func() *load {
		return &load{transports: conns.entries(), subject: queuePlain, key: cl.newKey(), seen: make(map[int64]bool)}
	}
	r.before = cl.openLoad(t, left, d.workers, newLoad(), b.open(rejoinRate))
	r.meanwhile = cl.openLoad(t, left, d.workers, newLoad(), func(t *task, l *load) {
		began := crowd.watch()
		victim.Kill()
		l.openLoopWhile(t, rejoinRate, func(time.Duration) bool {
			took := time.Since(began)
			return took < rejoinWindow || !crowd.allBack() && took < rejoinTimeout
		})
	})
	if d.workers > 0 {
		var err error
		r.most, r.all, err = crowd.result()
		must.Do(err)
	}
	return r
}

// split selects the victim, and returns it and the other nodes.
func (c *benchCluster) split(t *task, authority bool) (victim *procs.Node, left *benchCluster) {
	owner := must.Get(c.Authority(t))
	left = &benchCluster{Cluster: &procs.Cluster{}}
	for _, n := range c.Nodes {
		if victim == nil && (n == owner) == authority {
			victim = n
		} else {
			left.Nodes = append(left.Nodes, n)
		}
	}
	return victim, left
}

// openLoad runs an open-loop load with workers at the surviving nodes, and with this
// number of idle workers connected at the begin.
func (c *benchCluster) openLoad(t *task, left *benchCluster, idle int, l *load, generate generator) round {
	h := startWorkers(t, left.Nodes, steady, queuePlain, l)
	defer h.close()
	c.awaitCapacity(t, idle+steady.capacity())
	l.begin()
	l.run(t, generate)
	must.Do(l.awaitEnds(t))
	must.Do(l.failure())
	left.await(t, left.Nodes[0], "no dispatch is left", func(s *api.Status) error {
		if out := s.Backlog.Pending + s.Backlog.Notified; out > 0 {
			return fmt.Errorf("%d dispatches are left", out)
		}
		return nil
	})
	return l.round(true)
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
