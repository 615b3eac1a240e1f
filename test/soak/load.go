package soak

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// The behaviour of producers.
const (
	sendTimeout    = 5 * time.Second        // of one call
	sendPause      = 500 * time.Millisecond // before a job is sent again, at first
	maxSendPause   = 16 * time.Second
	maxOutstanding = 20_000           // jobs that are not acknowledged, at which the load pauses
	settleTimeout  = 90 * time.Second // for the last acknowledgements, once the load has ended
	producersEach  = 2                // of a transport
	deployments    = 15               // of all producers and workers in a run
)

// load enqueues jobs at a fixed rate, each when it is due, whether or not earlier ones
// were acknowledged. A job that is not acknowledged is sent again under the same key.
type load struct {
	mix      *mix
	table    *jobTable
	refusals *refusalLog
	began    time.Time

	acks     histogram // from due to acknowledged
	open     atomic.Int64
	pauses   atomic.Int64 // times at which too many jobs were not acknowledged
	repeats  atomic.Int64
	ended    atomic.Bool
	pausedIn atomic.Int64 // jobs accepted in the paused queue

	cluster   *drill.Cluster
	mu        sync.Mutex
	producers map[drill.Transport][]*producer
}

// producer is a [drill.Producer] with a count of its calls in progress.
type producer struct {
	drill.Producer
	calls sync.WaitGroup
}

// newLoad returns a load for the nodes of c. The caller must call close.
func newLoad(c *drill.Cluster, m *mix, t *jobTable, r *refusalLog) (l *load, err error) {
	l = &load{mix: m, table: t, refusals: r, cluster: c, producers: make(map[drill.Transport][]*producer)}
	for _, transport := range drill.Transports {
		for range producersEach {
			p, err := l.newProducer(transport)
			if err != nil {
				l.close()
				return nil, err
			}
			l.producers[transport] = append(l.producers[transport], p)
		}
	}
	return l, nil
}

func (l *load) newProducer(t drill.Transport) (*producer, error) {
	p, err := l.cluster.NewProducer(t, 64, func(error) { l.repeats.Add(1) })
	return &producer{Producer: p}, err
}

// deploy replaces the producers one after another by new ones, which choose a node at
// random, until ctx ends. Without this, all of them would end up at the node that
// is killed least.
func (l *load) deploy(ctx context.Context) {
	interval := l.mix.duration / time.Duration(deployments*producersEach*len(drill.Transports))
	for n := 0; backoff.Sleep(ctx, interval) == nil; n++ {
		t, i := drill.Transports[n%len(drill.Transports)], n/len(drill.Transports)%producersEach
		p, err := l.newProducer(t)
		if err != nil {
			continue // keep the old one
		}
		l.mu.Lock()
		old := l.producers[t][i]
		l.producers[t][i] = p
		l.mu.Unlock()
		old.calls.Wait()
		old.Close()
	}
}

// producer returns a producer for a call. The caller must call calls.Done.
func (l *load) producer(t drill.Transport, n int) *producer {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.producers[t][n%producersEach]
	p.calls.Add(1)
	return p
}

func (l *load) close() {
	for _, group := range l.producers {
		for _, p := range group {
			p.Close()
		}
	}
}

// run enqueues jobs until the duration of the mix has passed or ctx ends, and returns when
// all are acknowledged, or settleTimeout has passed.
func (l *load) run(ctx context.Context) {
	var calls sync.WaitGroup
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	deploying, endDeployments := context.WithCancel(ctx)
	var deployer sync.WaitGroup
	defer deployer.Wait()
	defer endDeployments()
	deployer.Go(func() { l.deploy(deploying) })
	for n := 0; l.mix.due(n) < l.mix.duration && ctx.Err() == nil; n++ {
		if backoff.Sleep(ctx, time.Until(l.began.Add(l.mix.due(n)))) != nil {
			break
		}
		for l.open.Load() >= maxOutstanding && backoff.Sleep(ctx, 10*time.Millisecond) == nil {
			l.pauses.Add(1)
		}
		l.table.submit()
		l.open.Add(1)
		calls.Go(func() {
			defer l.open.Add(-1)
			l.send(sending, n)
		})
	}
	l.ended.Store(true)
	defer time.AfterFunc(settleTimeout, stop).Stop()
	calls.Wait()
}

// send enqueues job n until it is acknowledged or ctx ends.
func (l *load) send(ctx context.Context, n int) {
	m := l.mix.message(n, l.table.id(n).String(), l.began)
	wait := backoff.Backoff{Base: sendPause, Max: maxSendPause}
	for try := 0; ctx.Err() == nil; try++ {
		if try > 0 {
			l.repeats.Add(1)
		}
		one, cancel := context.WithTimeout(ctx, sendTimeout)
		p := l.producer(l.mix.transport(n), n+try)
		id, err := p.Send(one, m)
		p.calls.Done()
		cancel()
		if err == nil {
			l.acks.observe(time.Since(l.began) - l.mix.due(n))
			l.table.accept(n, id, try > 0)
			if m.Queue == pausedQueue {
				l.pausedIn.Add(1)
			}
			return
		}
		if ctx.Err() == nil {
			l.refusals.note(err)
			_ = backoff.Sleep(ctx, wait.Next()+retryAfter(err)) // the loop checks ctx
		}
	}
}

// retryAfter returns for how long the yard asks to wait after a refusal; 0 if it does not.
func retryAfter(err error) time.Duration {
	if refused, ok := errors.AsType[*api.Error](err); ok {
		return refused.RetryAfter
	}
	if refused, ok := errors.AsType[*overhop.RemoteError](err); ok {
		return refused.RetryAfter()
	}
	return 0
}

// jobWork is the handlers' side of a load.
type jobWork struct {
	mix    *mix
	table  *jobTable
	began  time.Time
	log    *slog.Logger // of the workers
	starts histogram    // from due to the begin of the first attempt, of jobs that are not delayed
}

// Credits of workers.
const (
	workerCount   = 10
	hotCredits    = 16
	tenantCredits = 2
)

// run runs the workers until ctx ends. Each is stopped now and then and replaced by a new
// one, which chooses a node at random.
func (w *jobWork) run(ctx context.Context, edges []string) error {
	var all sync.WaitGroup
	errs := make([]error, workerCount)
	life := w.mix.duration / deployments
	for i := range errs {
		all.Go(func() {
			ends := time.Duration(i+1) * life / workerCount // when the first worker is stopped; each later one is stopped one life after its predecessor
			for ; ctx.Err() == nil && errs[i] == nil; ends += life {
				one, cancel := context.WithDeadline(ctx, w.began.Add(ends))
				errs[i] = w.worker(i, edges).Run(one)
				cancel()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// worker returns a worker that serves a part of the queues, the hot ones and the paused one.
func (w *jobWork) worker(i int, edges []string) *overhop.Worker {
	o := &overhop.Worker{Nodes: edges, Name: fmt.Sprintf("soak-%d", i), Log: w.log}
	o.Handle(pausedQueue, hotCredits, w.handle)
	for q := range w.mix.queues {
		switch {
		case q < hotQueues:
			o.Handle(queueName(q), hotCredits, w.handle)
		case q%workerCount == i:
			o.Handle(queueName(q), tenantCredits, w.handle)
		}
	}
	return o
}

// handle runs one attempt of a job.
func (w *jobWork) handle(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
	id, err := job.ParseID(q.JID[len(q.Queue)+1:])
	if err != nil {
		return nil, err
	}
	n, ours := w.table.number(id)
	if !ours {
		return nil, &overhop.FailError{Message: "not a job of this load: " + q.JID, Final: true}
	}
	w.table.begin(id, q.Fence)
	since := time.Since(w.began) - w.mix.due(n)
	k, delay := w.mix.kind(n), w.mix.delay(n)
	switch {
	case delay > 0 && since < delay-startsEarlySlack:
		w.table.flaw("job %s began %s before its time", id, delay-since)
	case delay == 0 && q.Attempt == 1 && k != pausedJob:
		w.starts.observe(since)
	}
	result := padBytes
	switch k {
	case failingJob:
		return nil, &overhop.FailError{Message: "fails by intent", Type: "soak", Final: true}
	case retriedJob:
		if q.Attempt == 1 {
			return nil, errors.New("fails once")
		}
	case loggingJob:
		for line := range logLines {
			if err := q.Log(ctx, fmt.Sprintf("line %d of job %d: %s", line, n, padding[:padBytes])); err != nil {
				break // the lease is lost, or the connection is being replaced
			}
		}
	case resultJob:
		result = largeBytes
	}
	w.table.done(id)
	return overhop.Marshal(map[string]any{"n": n, "pad": padding[:result]})
}
