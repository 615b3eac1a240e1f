package overhop

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// workerConn is a worker's connection to one node. One of them is in use; a
// second one may exist while the worker switches nodes.
type workerConn struct {
	worker *Worker
	client *Client
	addr   string

	ctx      context.Context // ends with the connection; its cause is the reason
	cancel   context.CancelCauseFunc
	wakeBeat chan struct{}    // capacity 1: a new job needs BEATs sooner
	drained  chan *drainError // capacity 1: a DRAIN was received

	// Guarded by Worker.mu.
	sids         map[string]string // queue -> subscription, once credits may be sent for it
	surplus      map[string]int    // queue -> credits that the node holds in excess of the worker's count
	beatInterval time.Duration     // between two BEATs
}

const (
	idleInterval = 5 * time.Second // between two PINGs without running jobs
	minInterval  = 10 * time.Millisecond
)

// drainError ends the use of a connection whose node drains.
type drainError struct {
	addr      string   // of the node that drains
	reconnect []string // addresses of the nodes to connect to instead
}

func (e *drainError) Error() string { return "node is draining" }

// connect opens a connection to the node at addr. The connection lives until it
// fails or ctx ends.
func (w *Worker) connect(ctx context.Context, addr string) (*workerConn, error) {
	wc := &workerConn{
		worker: w, addr: addr, beatInterval: idleInterval, wakeBeat: make(chan struct{}, 1), drained: make(chan *drainError, 1),
		sids: make(map[string]string), surplus: make(map[string]int),
	}
	client, err := w.dialer.connect(ctx, addr, Options{
		Name: w.Name, Token: w.Token, OnQuest: wc.handleQuest, OnPush: wc.handlePush,
	})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", addr, err)
	}
	wc.client = client
	wc.ctx, wc.cancel = context.WithCancelCause(ctx)
	w.loops.Go(func() {
		wc.cancel(client.Run(wc.ctx))
		w.mu.Lock()
		if w.conn == wc {
			w.conn, w.lostAt = nil, time.Now()
		}
		w.mu.Unlock()
	})
	w.loops.Go(wc.beatLoop)
	return wc, nil
}

// wait blocks until the connection has ended, its node drains, or ctx ends. It
// returns the reason, never nil.
func (wc *workerConn) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-wc.ctx.Done():
		return fmt.Errorf("node %s: %w", wc.addr, context.Cause(wc.ctx))
	case drain := <-wc.drained:
		return drain
	}
}

// subscribe subscribes to the worker's queues, without credits yet. It returns
// the ids of the subscriptions in the order of the queues.
func (wc *workerConn) subscribe() (sids []string, err error) {
	sids = make([]string, len(wc.worker.queues))
	err = wc.eachQueue(func(i int, q *queueHandler) (err error) {
		sids[i], err = wc.client.Subscribe(wc.ctx, q.name, 0)
		if wc.worker.CreateQueues && ErrorCode(err) == CodeQueueNotFound {
			sids[i], err = wc.createAndSubscribe(q.name)
		}
		if err != nil {
			return fmt.Errorf("subscribe to %q: %w", q.name, err)
		}
		return nil
	})
	return sids, err
}

// creditAll sends the credits for the subscriptions with these ids, unless the worker is
// stopping.
func (wc *workerConn) creditAll(sids []string) error {
	w := wc.worker
	return wc.eachQueue(func(i int, q *queueHandler) error {
		w.mu.Lock()
		wc.sids[q.name] = sids[i]
		available := w.availableLocked(q)
		stopping := w.stopping
		w.mu.Unlock()
		if stopping || available == 0 {
			return nil
		}
		if err := wc.client.Credit(wc.ctx, sids[i], available); err != nil {
			return fmt.Errorf("credit subscription to %q: %w", q.name, err)
		}
		return nil
	})
}

// maxRequests is the number of requests about queues that wait for answers at a time.
const maxRequests = 64

// eachQueue calls do for the worker's queues, for several at a time, because workers may
// have a thousand, and returns the first error.
func (wc *workerConn) eachQueue(do func(i int, q *queueHandler) error) error {
	var all errgroup.Group
	all.SetLimit(maxRequests)
	for i, q := range wc.worker.queues {
		all.Go(func() error { return do(i, q) })
	}
	return all.Wait()
}

// createAndSubscribe creates a queue, unless it exists by now, and subscribes
// to it.
func (wc *workerConn) createAndSubscribe(queue string) (sid string, err error) {
	_, err = wc.client.AddQueue(wc.ctx, AddQueue{Name: queue, AllowOverrides: true})
	if err != nil && ErrorCode(err) != CodeDuplicateQueue {
		return "", err
	}
	return wc.client.Subscribe(wc.ctx, queue, 0)
}

// beatLoop renews leases at the interval that the node requires, until the
// connection ends.
func (wc *workerConn) beatLoop() {
	timer := time.NewTimer(idleInterval)
	defer timer.Stop()
	for {
		select {
		case <-wc.ctx.Done():
			return
		case <-timer.C:
			wc.beat()
		case <-wc.wakeBeat:
		}
		timer.Reset(wc.updateBeatInterval())
	}
}

// updateBeatInterval sets the time until the next BEAT to the shortest that the
// QUEST of a running job requires, and returns it.
func (wc *workerConn) updateBeatInterval() time.Duration {
	wc.worker.mu.Lock()
	defer wc.worker.mu.Unlock()
	interval := idleInterval
	for _, job := range wc.worker.selectLocked((*activeJob).renewable) {
		interval = min(interval, job.quest.Beat)
	}
	wc.beatInterval = max(interval, minInterval)
	return wc.beatInterval
}

// hurryBeatLocked makes beatLoop apply the interval of a new job. Worker.mu is
// held.
func (wc *workerConn) hurryBeatLocked(interval time.Duration) {
	if interval < wc.beatInterval {
		select {
		case wc.wakeBeat <- struct{}{}:
		default:
		}
	}
}

// maxBeatJobs is the number of jobs in one BEAT, which must fit into the
// smallest frame limit.
const maxBeatJobs = 256

// beat renews the leases of all started jobs if wc is the connection in use. If there
// are no jobs, or wc is not in use, it sends a PING.
func (wc *workerConn) beat() {
	w := wc.worker
	w.mu.Lock()
	isIdle := w.conn != wc || len(w.running) == 0
	jobs := w.selectLocked(func(job *activeJob) bool { return job.started && job.renewable() })
	w.mu.Unlock()
	if isIdle {
		wc.client.Go(TPing, EmptyMap.append, nil)
		return
	}
	for batch := range slices.Chunk(jobs, maxBeatJobs) {
		wc.beatBatch(batch)
	}
}

// beatBatch sends one BEAT, which renews the leases of jobs. It stops the
// handlers of those whose leases the node reports as lost.
func (wc *workerConn) beatBatch(jobs []*activeJob) {
	quests := make([]*Quest, len(jobs))
	for i, job := range jobs {
		quests[i] = &job.quest
	}
	sent := time.Now()
	wc.client.Beat(quests, func(jid string, answer Raw, code Code) {
		for _, job := range jobs {
			switch {
			case job.quest.JID != jid:
			case code == "":
				job.renewed(sent.Add(grantedLease(answer, &job.quest)))
			case endsLease(code):
				wc.handleLeaseRefused(job, code)
			}
		}
	})
}

// handlePush handles a push of message type t, which is not QUEST. After a DRAIN
// the worker connects to another node. A BYE ends the connection.
func (wc *workerConn) handlePush(t int64, payload Raw) {
	switch t {
	case TRecall:
		wc.handleRecall(payload)
	case TCredits:
		wc.handleCredits(payload)
	case TDrain:
		drain := &drainError{addr: wc.addr}
		for addr := range payload.Get("reconnect").Items() {
			if text, ok := addr.Str(); ok {
				drain.reconnect = append(drain.reconnect, text)
			}
		}
		select {
		case wc.drained <- drain:
		default: // an earlier DRAIN has not been handled yet
		}
	case TBye:
		wc.cancel(fmt.Errorf("node sent BYE: %s: %s", payload.getText("code"), payload.getText("msg")))
	}
}

// handleRecall stops the handler of the dispatch that a RECALL names. It
// ignores a node that the worker has left, which recalls the jobs that moved.
func (wc *workerConn) handleRecall(payload Raw) {
	token, _ := payload.Get("tok").Bin()
	if len(token) != TokenLen {
		return
	}
	wc.worker.mu.Lock()
	job := wc.worker.running[[TokenLen]byte(token)]
	isInUse := wc.worker.conn == wc
	wc.worker.mu.Unlock()
	if job != nil && isInUse {
		job.ctx.stop(&StopError{payload.getText("reason")})
	}
}

// handleCredits handles a CREDITS push, with which the node reports that it has
// changed the credits of a subscription. After RESTORED the node holds a credit
// that the end of its job would return again. After STALLED it holds none, and
// the worker sends as many as jobs of the queue may run.
func (wc *workerConn) handleCredits(payload Raw) {
	sid, reason := payload.getText("sid"), payload.getText("reason")
	w := wc.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.queues, func(q *queueHandler) bool { return wc.sids[q.name] == sid })
	if i < 0 || w.stopping {
		return
	}
	queue := w.queues[i]
	switch reason {
	case CreditsRestored:
		wc.surplus[queue.name]++
	case CreditsStalled:
		wc.surplus[queue.name] = 0
		if available := w.availableLocked(queue); available > 0 {
			wc.credit(sid, available)
		}
	}
}

// credit adds n credits to a subscription.
func (wc *workerConn) credit(sid string, n uint32) {
	wc.client.Go(TCredit, Fields{"sid": sid, "credits": n}.append, nil)
}
