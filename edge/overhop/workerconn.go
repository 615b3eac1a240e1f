package overhop

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// workerConn is a worker's connection to one node. One of them is in use; a
// second one may exist while the worker switches nodes.
type workerConn struct {
	w      *Worker
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

// drainError ends the use of a connection whose node drains. addrs are the
// nodes to reconnect to.
type drainError struct{ addrs []string }

func (e *drainError) Error() string { return "node is draining" }

// connect opens a connection, which lives until it fails or ctx ends.
func (w *Worker) connect(ctx context.Context, addr string) (*workerConn, error) {
	wc := &workerConn{
		w: w, addr: addr, beatInterval: idleInterval, wakeBeat: make(chan struct{}, 1), drained: make(chan *drainError, 1),
		sids: make(map[string]string), surplus: make(map[string]int),
	}
	c, err := w.dialer.connect(ctx, addr, Options{
		Name: w.Name, Token: w.Token, OnQuest: wc.handleQuest, OnPush: wc.handlePush,
	})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", addr, err)
	}
	wc.client = c
	wc.ctx, wc.cancel = context.WithCancelCause(ctx)
	w.loops.Go(func() {
		wc.cancel(c.Run(wc.ctx))
		w.mu.Lock()
		if w.conn == wc {
			w.conn = nil
		}
		w.mu.Unlock()
	})
	w.loops.Go(wc.beatLoop)
	return wc, nil
}

// wait blocks until the connection must not be used any more and returns the
// reason.
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

// subscribe subscribes to the worker's queues, without credits yet.
func (wc *workerConn) subscribe() (sids []string, err error) {
	for _, q := range wc.w.queues {
		sid, err := wc.client.Subscribe(wc.ctx, q.name, 0)
		if wc.w.CreateQueues && ErrorCode(err) == CodeQueueNotFound {
			sid, err = wc.createAndSubscribe(q.name)
		}
		if err != nil {
			return nil, fmt.Errorf("subscribe to %q: %w", q.name, err)
		}
		sids = append(sids, sid)
	}
	return sids, nil
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
		timer.Reset(wc.nextBeat())
	}
}

// nextBeat returns the shortest interval that a running job requires.
func (wc *workerConn) nextBeat() time.Duration {
	wc.w.mu.Lock()
	defer wc.w.mu.Unlock()
	wc.beatInterval = idleInterval
	for _, j := range wc.w.running {
		if j.renewable() {
			wc.beatInterval = min(wc.beatInterval, j.quest.Beat)
		}
	}
	wc.beatInterval = max(wc.beatInterval, minInterval)
	return wc.beatInterval
}

// hurryBeatLocked makes beatLoop apply the interval of a new job. Worker.mu is
// held.
func (wc *workerConn) hurryBeatLocked(beat time.Duration) {
	if beat < wc.beatInterval {
		select {
		case wc.wakeBeat <- struct{}{}:
		default:
		}
	}
}

// maxBeatJobs is the number of jobs in one BEAT, which must fit into the
// smallest frame limit.
const maxBeatJobs = 256

// beat renews the leases of all jobs if wc is the connection in use. If there
// are no jobs, or wc is not in use, it sends a PING.
func (wc *workerConn) beat() {
	var jobs []*activeJob
	wc.w.mu.Lock()
	idle := wc.w.conn != wc || len(wc.w.running) == 0
	if !idle {
		for _, j := range wc.w.running {
			if j.renewable() {
				jobs = append(jobs, j)
			}
		}
	}
	wc.w.mu.Unlock()
	if idle {
		wc.client.Go(TPing, EmptyMap.append, nil)
	}
	for batch := range slices.Chunk(jobs, maxBeatJobs) {
		wc.beatBatch(batch)
	}
}

func (wc *workerConn) beatBatch(jobs []*activeJob) {
	quests := make([]*Quest, len(jobs))
	for i, j := range jobs {
		quests[i] = &j.quest
	}
	wc.client.Beat(quests, func(ok Raw, err error) {
		BeatAnswers(ok, func(jid string, code Code) {
			for _, j := range jobs {
				if j.quest.JID == jid && endsLease(code) {
					wc.w.loseLease(j, code)
				}
			}
		})
	})
}

// handlePush handles pushes other than QUEST.
func (wc *workerConn) handlePush(t int64, p Raw) {
	switch t {
	case TRecall:
		wc.handleRecall(p)
	case TCredits:
		wc.handleCredits(p)
	case TDrain:
		var drain drainError
		for addr := range p.Get("reconnect").Items() {
			if text, ok := addr.Str(); ok {
				drain.addrs = append(drain.addrs, text)
			}
		}
		select {
		case wc.drained <- &drain:
		default:
		}
	case TBye:
		code, _ := p.Get("code").Str()
		message, _ := p.Get("msg").Str()
		wc.cancel(fmt.Errorf("node sent BYE: %s: %s", code, message))
	}
}

// handleRecall stops the dispatch of a RECALL. It ignores a node that the
// worker has left, which recalls the jobs that moved.
func (wc *workerConn) handleRecall(p Raw) {
	tok, _ := p.Get("tok").Bin()
	if len(tok) != TokenLen {
		return
	}
	reason, _ := p.Get("reason").Str()
	wc.w.mu.Lock()
	j := wc.w.running[[TokenLen]byte(tok)]
	if wc.w.conn != wc {
		j = nil
	}
	wc.w.mu.Unlock()
	if j != nil {
		j.stop(&StopError{reason})
	}
}

// handleCredits handles a credit balance that the node has changed.
func (wc *workerConn) handleCredits(p Raw) {
	sid, _ := p.Get("sid").Str()
	reason, _ := p.Get("reason").Str()
	w := wc.w
	w.mu.Lock()
	var q *queueHandler
	for _, qh := range w.queues {
		if wc.sids[qh.name] == sid {
			q = qh
		}
	}
	var available uint32
	switch {
	case q == nil || w.stopping:
	case reason == CreditsRestored:
		wc.surplus[q.name]++ // its end would return the same credit
	case reason == CreditsStalled: // the balance is 0
		wc.surplus[q.name] = 0
		available = w.availableLocked(q)
	}
	w.mu.Unlock()
	if available > 0 {
		wc.credit(sid, available)
	}
}

func (wc *workerConn) credit(sid string, n uint32) {
	wc.client.Go(TCredit, Fields{"sid": sid, "credits": n}.append, nil)
}
