package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"yardmaster/drill/yard"
	"yardmaster/internal/backoff"
)

// A node dies that has all the idle workers. They come back to the others at
// once, each after a moment of its own; other workers go on with an open load
// that never was on the dead node.
const (
	rejoinRate     = 200 // jobs a second
	rejoinWindow   = 5 * time.Second
	rejoinJitter   = 500 * time.Millisecond // before a worker's first try
	rejoinPatience = time.Minute
)

var steady = staff{workers: 16, credits: 16} // who run that load

// death says which node dies: the authority's, which is the worst, or another;
// and how many idle workers it has.
type death struct {
	authority bool
	workers   int
}

// rejoined is what one death came to.
type rejoined struct {
	before, meanwhile round         // from due to started
	most, all         time.Duration // from the death until 95 % and 100 % are subscribed
}

func (b *bench) measureRejoin(ctx context.Context, dir string, d death) (r rejoined, err error) {
	y, err := b.freshYard(ctx, dir, yard.Options{Nodes: 3})
	if err != nil {
		return r, err
	}
	defer y.close()
	victim, left, err := y.split(ctx, d.authority)
	if err != nil {
		return r, err
	}
	wires, err := openIdle(ctx, victim, d.workers)
	if err != nil {
		return r, err
	}
	entrance, err := openDoors(ctx, left.Nodes, steady.workers)
	if err != nil {
		closeWires(wires)
		return r, err
	}
	defer entrance.close()
	crowd := newCrowd(ctx, wires, left.Nodes)
	defer crowd.close()
	newLoad := func() *load {
		return &load{entries: entrance.entries(), subject: queuePlain, key: y.newKey(), seen: make(map[int64]bool)}
	}
	if r.before, err = y.steadily(ctx, left, d.workers, newLoad(), b.open(rejoinRate)); err != nil {
		return r, err
	}
	r.meanwhile, err = y.steadily(ctx, left, d.workers, newLoad(), func(ctx context.Context, l *load) error {
		began := crowd.watch()
		victim.Kill()
		return l.openWhile(ctx, rejoinRate, func(time.Duration) bool {
			took := time.Since(began)
			return took < rejoinWindow || !crowd.back() && took < rejoinPatience
		})
	})
	if err == nil && d.workers > 0 {
		r.most, r.all, err = crowd.result()
	}
	return r, err
}

// split chooses who dies, and gives the others.
func (y *yards) split(ctx context.Context, authority bool) (victim *yard.Node, left *yards, err error) {
	owner, err := y.Authority(ctx)
	if err != nil {
		return nil, nil, err
	}
	left = &yards{Yard: &yard.Yard{}}
	for _, n := range y.Nodes {
		if victim == nil && (n == owner) == authority {
			victim = n
		} else {
			left.Nodes = append(left.Nodes, n)
		}
	}
	return victim, left, nil
}

// steadily runs an open load by the steady workers, at the nodes that are left
// in the end; all live when it begins, with so many idle workers.
func (y *yards) steadily(ctx context.Context, left *yards, idle int, l *load, hand func(context.Context, *load) error) (round, error) {
	h, err := openHands(ctx, left.Nodes, steady, queuePlain, l)
	if err != nil {
		return round{}, err
	}
	defer h.close()
	if err := y.awaitRoom(ctx, idle+steady.room()); err != nil {
		return round{}, err
	}
	l.begin()
	if err := l.run(ctx, hand); err != nil {
		return round{}, err
	}
	if err := l.awaitEnds(ctx); err != nil {
		return round{}, err
	}
	return l.round(true), errors.Join(l.failure(), left.await(ctx, "nothing is left", func() error {
		s, err := left.Nodes[0].Status(ctx)
		if out := s.Backlog.Pending + s.Backlog.Notified; err == nil && out > 0 {
			err = fmt.Errorf("%d dispatches are", out)
		}
		return err
	}))
}

// crowd are idle workers that come back when their connection ends.
type crowd struct {
	nodes   []*yard.Node // to come back to
	count   int
	running sync.WaitGroup
	stop    context.CancelFunc

	mu    sync.Mutex
	began time.Time
	took  []time.Duration // from began, of those who are back
	fault error           // the first that a worker met on its way
}

func newCrowd(ctx context.Context, wires []*wire, nodes []*yard.Node) *crowd {
	ctx, stop := context.WithCancel(ctx)
	c := &crowd{nodes: nodes, count: len(wires), stop: stop}
	for _, w := range wires {
		c.running.Go(func() {
			c.sit(ctx, w)
			if w := c.comeBack(ctx); w != nil {
				c.sit(ctx, w)
			}
		})
	}
	return c
}

// sit stays connected as long as can be.
func (c *crowd) sit(ctx context.Context, w *wire) {
	defer context.AfterFunc(ctx, func() { w.nc.Close() })()
	defer w.nc.Close()
	for {
		if _, err := w.next(); err != nil {
			return
		}
	}
}

// comeBack tries node after node until one has taken the subscription; nil
// means that ctx has ended.
func (c *crowd) comeBack(ctx context.Context) *wire {
	wait := backoff.Backoff{Base: 200 * time.Millisecond, Max: 2 * time.Second}
	pause := rand.N(rejoinJitter)
	for at := rand.IntN(len(c.nodes)); ; at++ {
		if backoff.Sleep(ctx, pause) != nil {
			return nil
		}
		w, err := dialIdle(ctx, c.nodes[at%len(c.nodes)].Edge)
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

// watch begins to measure: all must be connected, and are about not to be.
func (c *crowd) watch() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began, c.took = time.Now(), nil
	return c.began
}

func (c *crowd) back() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.took) >= c.count
}

// result is when 95 % and when all were back.
func (c *crowd) result() (most, all time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.took) != c.count {
		err = fmt.Errorf("%d of %d workers are subscribed again within %v", len(c.took), c.count, rejoinPatience)
		return 0, 0, errors.Join(err, c.fault)
	}
	slices.Sort(c.took)
	return c.took[(len(c.took)*95+99)/100-1], c.took[len(c.took)-1], nil
}

func (c *crowd) close() {
	c.stop()
	c.running.Wait()
}
