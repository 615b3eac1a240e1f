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
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// workerPlan is the number of workers of a queue, spread over the nodes, and the credits
// of each.
type workerPlan struct {
	queue            string
	workers, credits int
	queues           []string // if not empty, these instead of queue; each worker has a part of them
}

// capacity returns the credits of all workers.
func (p workerPlan) capacity() int {
	if len(p.queues) > 0 {
		return len(p.queues) * p.credits
	}
	return p.workers * p.credits
}

// queuesOf returns the queues to which a worker subscribes.
func (p workerPlan) queuesOf(worker int) (queues []string) {
	if len(p.queues) == 0 {
		return []string{p.queue}
	}
	for i := worker; i < len(p.queues); i += p.workers {
		queues = append(queues, p.queues[i])
	}
	return queues
}

// The capacity of the no-op workers: enough for a full pipeline, with no more
// connections than a node with a few busy workers has.
const (
	connections = 2 // at each node
	credits     = 1000
)

// workerSet is a set of Overhop workers that end every job of a load at once.
type workerSet struct {
	load *load

	running sync.WaitGroup
	stop    context.CancelFunc
}

// startWorkers connects workers and subscribes them to a queue.
func startWorkers(t *task, nodes []*procs.Node, plan workerPlan, l *load) *workerSet {
	running, stop := context.WithCancel(t)
	h := &workerSet{load: l, stop: stop}
	t.cleanup(h.close)
	for i := range plan.workers {
		w := must.Get(dialWorker(t, nodes[i%len(nodes)].Edge))
		for _, queue := range plan.queuesOf(i) {
			w.out, _ = overhop.AppendFields(w.out, overhop.TSubscribe, ridSubscribe, overhop.Fields{"q": queue, "credits": plan.credits})
		}
		h.running.Go(func() {
			h.work(running, &worker{wire: w, load: l, active: make(map[string]activeJob)})
		})
	}
	return h
}

func (h *workerSet) close() {
	h.stop()
	h.running.Wait()
}

// work runs one worker until ctx or its connection ends.
func (h *workerSet) work(ctx context.Context, w *worker) {
	defer context.AfterFunc(ctx, func() { w.nc.Close() })()
	defer w.nc.Close()
	for {
		err := w.flush()
		for more := true; err == nil && more; more = w.in.Ready() {
			err = w.handleNext()
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			h.load.fail(fmt.Errorf("worker: %w", err))
			return
		}
	}
}

// worker is one worker. The rid of an outcome is its job's id, so that the answer identifies
// the job.
type worker struct {
	*wire
	load   *load
	active map[string]activeJob // jobs whose outcome is not committed
	ran    int                  // number of jobs
}

// activeJob is what a DONE or a FAIL needs to know about a job.
type activeJob struct {
	due   int64
	token [overhop.TokenLen]byte
	fails bool
}

// failTexts is how many errors failed jobs have.
const failTexts = 10_000

const (
	ridSubscribe = "subscribe"
	ridAck       = "ack"
)

// handleNext reads and handles one message.
func (w *worker) handleNext() error {
	e, err := w.next()
	switch {
	case err != nil:
		return err
	case e.T == overhop.TQuest:
		return w.run(e.P)
	case e.T == overhop.TErr && (e.RID == overhop.PushRID || e.RID == ridSubscribe || e.RID == ridAck && !w.load.mayRerun()):
		return remoteError(e.P)
	case e.RID == overhop.PushRID, e.RID == ridSubscribe, e.RID == ridAck:
		return nil
	}
	return w.handleDone(e)
}

// run handles a QUEST: it answers with an ACK and the outcome at once.
func (w *worker) run(quest overhop.Raw) error {
	jid, _ := quest.Get("jid").Str()
	token, _ := quest.Get("tok").Bin()
	due, ok := quest.Get("job_payload").Get("due").Int()
	if !ok || len(token) != overhop.TokenLen {
		return fmt.Errorf("got job %q, which is not part of this load", jid)
	}
	w.load.started(due)
	w.ran++
	o := activeJob{due: due, token: [overhop.TokenLen]byte(token), fails: w.load.failEvery > 0 && w.ran%w.load.failEvery == 0}
	w.active[jid] = o
	b, mark := overhop.Begin(w.out)
	b = overhop.AppendStr(overhop.AppendStr(overhop.AppendMap(b, 2), "jid"), jid)
	b = overhop.AppendBin(overhop.AppendStr(b, "tok"), token)
	w.out, _ = overhop.End(b, mark, overhop.TAck, ridAck)
	w.end(jid, &o)
	return nil
}

// end appends the outcome of a job, which returns its credit: a DONE, or a FAIL that is not retried.
func (w *worker) end(jid string, o *activeJob) {
	if o.fails {
		w.out, _ = overhop.AppendFields(w.out, overhop.TFail, jid, overhop.Fields{
			"credits": 1, "jid": jid, "tok": o.token[:], "retry": false,
			"error": overhop.Fields{"type": "Full", "message": fmt.Sprintf("mailbox %d is full", o.due%failTexts)},
		})
		return
	}
	b, mark := overhop.Begin(w.out)
	b = overhop.AppendInt(overhop.AppendStr(overhop.AppendMap(b, 3), "credits"), 1)
	b = overhop.AppendStr(overhop.AppendStr(b, "jid"), jid)
	b = overhop.AppendBin(overhop.AppendStr(b, "tok"), o.token[:])
	w.out, _ = overhop.End(b, mark, overhop.TDone, jid)
}

// handleDone handles the answer to an outcome. An outcome that has not been committed in time is
// sent again. If jobs may run more than once, a lost lease is ignored, because another worker
// reports the outcome.
func (w *worker) handleDone(e overhop.Envelope) error {
	o, found := w.active[e.RID]
	if !found {
		return fmt.Errorf("answer to unknown request %q", e.RID)
	}
	if e.T == overhop.TOK {
		delete(w.active, e.RID)
		w.load.ended(o.due)
		return nil
	}
	err := remoteError(e.P)
	switch code := overhop.ErrorCode(err); {
	case code == overhop.CodeUnavailable:
		w.load.repeated.Add(1)
		w.end(e.RID, &o)
	case code == overhop.CodeLeaseLost && w.load.mayRerun():
		delete(w.active, e.RID)
	default:
		return fmt.Errorf("outcome of job %s: %w", e.RID, err)
	}
	return nil
}

// The idle workers: each is registered and has one credit for a queue without jobs.
const (
	idleWorkers = 5000
	atOnce      = 64 // workers that connect concurrently
)

// openIdle connects idle workers to a node.
func openIdle(t *task, n *procs.Node, workers int) []*wire {
	wires, faults := make([]*wire, workers), make([]error, atOnce)
	var connecting sync.WaitGroup
	for first := range atOnce {
		connecting.Go(func() {
			for i := first; i < workers && faults[first] == nil; i += atOnce {
				wires[i], faults[first] = dialIdle(t, n.Edge)
			}
		})
	}
	connecting.Wait()
	t.cleanup(func() { closeWires(wires) })
	must.Do(errors.Join(faults...))
	return wires
}

// dialIdle connects one idle worker.
func dialIdle(ctx context.Context, addr string) (*wire, error) {
	w, err := dialWorker(ctx, addr)
	if err != nil {
		return nil, err
	}
	if err := w.subscribe(queueIdle, 1); err != nil {
		w.nc.Close()
		return nil, err
	}
	return w, nil
}

func closeWires(wires []*wire) {
	for _, w := range wires {
		if w != nil {
			w.nc.Close()
		}
	}
}

// idleCost is the cost of one idle worker for its node.
type idleCost struct{ residentKiB, inUseKiB, files float64 }

// measureIdle measures the cost of idle workers on a new node, because a process keeps
// memory for a while after use.
func (b *bench) measureIdle(t *task) (c idleCost) {
	cl := b.newClusterForRound(t, procs.Options{Nodes: 1, Profile: true})
	n := cl.Nodes[0]
	openIdle(t, n, atOnce) // do not count what the first workers allocate once
	cl.awaitCapacity(t, atOnce)
	before := footprintOf(t, n)
	openIdle(t, n, idleWorkers)
	cl.awaitCapacity(t, atOnce+idleWorkers)
	c.residentKiB, c.inUseKiB, c.files = footprintOf(t, n).perWorker(before, idleWorkers)
	return c
}

// The parameters of the death of a node with all idle workers. These reconnect to the
// other nodes, each after a random delay, while other workers run an open-loop load
// that does not use the dead node.
const (
	rejoinRate    = 200 // jobs per second
	rejoinWindow  = 5 * time.Second
	rejoinJitter  = 500 * time.Millisecond // maximum delay before a worker's first attempt
	rejoinTimeout = time.Minute
)

var steady = workerPlan{queue: queuePlain, workers: 16, credits: 16} // the workers of that load

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
		return &load{transports: asTransports(conns), subject: queuePlain, key: cl.newKey(), seen: make(map[int64]bool)}
	}
	r.before = cl.openLoad(t, left, d.workers, newLoad(), b.open(rejoinRate))
	r.meanwhile = cl.openLoad(t, left, d.workers, newLoad(), func(t *task, l *load) {
		began := crowd.watch()
		victim.Kill()
		l.openLoop(t, rejoinRate, func(time.Duration) bool {
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
	h := startWorkers(t, left.Nodes, steady, l)
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

// newCrowd keeps idle workers connected, each in a goroutine, until close is called.
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
