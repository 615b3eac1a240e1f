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

	producers map[drill.Transport][]drill.Producer
}

// newLoad returns a load for the nodes of c. The caller must call close.
func newLoad(c *drill.Cluster, m *mix, t *jobTable, r *refusalLog) (l *load, err error) {
	l = &load{mix: m, table: t, refusals: r, producers: make(map[drill.Transport][]drill.Producer)}
	for _, transport := range drill.Transports {
		for range producersEach {
			p, err := c.NewProducer(transport, 64, func(error) { l.repeats.Add(1) })
			if err != nil {
				l.close()
				return nil, err
			}
			l.producers[transport] = append(l.producers[transport], p)
		}
	}
	return l, nil
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
	group := l.producers[l.mix.transport(n)]
	wait := backoff.Backoff{Base: sendPause, Max: maxSendPause}
	for try := 0; ctx.Err() == nil; try++ {
		if try > 0 {
			l.repeats.Add(1)
		}
		one, cancel := context.WithTimeout(ctx, sendTimeout)
		id, err := group[(n+try)%len(group)].Send(one, m)
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

// run runs the workers until ctx ends. Each serves a part of the queues, and all serve
// the hot ones and the paused one.
func (w *jobWork) run(ctx context.Context, edges []string) error {
	var all sync.WaitGroup
	errs := make([]error, workerCount)
	for i := range errs {
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
		all.Go(func() { errs[i] = o.Run(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
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
