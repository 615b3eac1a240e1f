package overhop

import (
	"context"
	"fmt"
	"time"
)

// line is a worker's connection to one node. A worker has one that counts; a
// second lives beside it while one takes over from the other.
type line struct {
	w    *Worker
	c    *Client
	addr string

	ctx    context.Context // ends with the connection; its cause says why
	hangUp context.CancelCauseFunc
	faster chan struct{}    // capacity 1: a job wants BEATs sooner
	drains chan *drainError // capacity 1: the node said DRAIN

	// Guarded by Worker.mu.
	sids    map[string]string // queue → subscription, once it is given credits
	surplus map[string]int    // queue → credits the node has beyond our count
	every   time.Duration     // between two BEATs
}

const (
	idlePace = 5 * time.Second // between two PINGs of a worker with nothing in hand
	minPace  = 10 * time.Millisecond
)

// drainError ends a line's service: its node takes no more part.
type drainError struct{ elsewhere []string }

func (e *drainError) Error() string { return "node drains" }

// connect opens a line. It lives until its connection or ctx ends.
func (w *Worker) connect(ctx context.Context, addr string) (*line, error) {
	l := &line{
		w: w, addr: addr, every: idlePace, faster: make(chan struct{}, 1), drains: make(chan *drainError, 1),
		sids: make(map[string]string), surplus: make(map[string]int),
	}
	c, err := w.doors.open(ctx, addr, Options{
		Name: w.Name, Token: w.Token, Quests: l.take, Pushes: l.pushed,
	})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", addr, err)
	}
	l.c = c
	l.ctx, l.hangUp = context.WithCancelCause(ctx)
	w.loops.Go(func() {
		l.hangUp(c.Run(l.ctx))
		w.mu.Lock()
		if w.line == l {
			w.line = nil
		}
		w.mu.Unlock()
	})
	w.loops.Go(l.attend)
	return l, nil
}

// wait waits until the line is of no more use and says why.
func (l *line) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ctx.Done():
		return fmt.Errorf("node %s: %w", l.addr, context.Cause(l.ctx))
	case drain := <-l.drains:
		return drain
	}
}

// subscribe asks for the jobs of the worker's queues, without credits yet.
func (l *line) subscribe() (sids []string, err error) {
	for _, q := range l.w.queues {
		sid, err := l.c.Subscribe(l.ctx, q.name, 0)
		if l.w.Create && ErrorCode(err) == CodeQueueNotFound {
			sid, err = l.createAndSubscribe(q.name)
		}
		if err != nil {
			return nil, fmt.Errorf("subscribe to %q: %w", q.name, err)
		}
		sids = append(sids, sid)
	}
	return sids, nil
}

// createAndSubscribe adds a queue, unless somebody else just has.
func (l *line) createAndSubscribe(queue string) (sid string, err error) {
	_, err = l.c.AddQueue(l.ctx, AddQueue{Name: queue, AllowOverrides: true})
	if err != nil && ErrorCode(err) != CodeDuplicateQueue {
		return "", err
	}
	return l.c.Subscribe(l.ctx, queue, 0)
}

// attend renews leases as often as their node wants it, until the line ends.
func (l *line) attend() {
	timer := time.NewTimer(idlePace)
	defer timer.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-timer.C:
			l.beat()
		case <-l.faster:
		}
		timer.Reset(l.pace())
	}
}

// pace is the shortest interval that a job in hand asks for.
func (l *line) pace() time.Duration {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.every = idlePace
	for _, h := range l.w.running {
		if h.alive() {
			l.every = min(l.every, h.quest.Beat)
		}
	}
	l.every = max(l.every, minPace)
	return l.every
}

// hastenLocked makes the next BEAT come in time for a new job.
func (l *line) hastenLocked(beat time.Duration) {
	if beat < l.every {
		select {
		case l.faster <- struct{}{}:
		default:
		}
	}
}

// mostBeats is how many jobs one BEAT names: few enough for the smallest limit
// of a frame.
const mostBeats = 256

// beat renews the leases of all jobs in hand if l is the line that counts. A
// node of which nothing is in hand is asked for a sign of life.
func (l *line) beat() {
	var alive []*held
	l.w.mu.Lock()
	idle := l.w.line != l || len(l.w.running) == 0
	if !idle {
		for _, h := range l.w.running {
			if h.alive() {
				alive = append(alive, h)
			}
		}
	}
	l.w.mu.Unlock()
	if idle {
		l.c.Go(TPing, func(b []byte) []byte { return append(b, EmptyMap...) }, nil)
	}
	for len(alive) > 0 {
		n := min(len(alive), mostBeats)
		l.beatSome(alive[:n])
		alive = alive[n:]
	}
}

func (l *line) beatSome(alive []*held) {
	quests := make([]*Quest, len(alive))
	for i, h := range alive {
		quests[i] = &h.quest
	}
	l.c.Beat(quests, func(ok Raw, err error) {
		BeatAnswers(ok, func(jid string, code Code) {
			for _, h := range alive {
				if h.quest.JID == jid && voids(code) {
					l.w.lose(h, code)
				}
			}
		})
	})
}

// pushed hears what the node says beside QUESTs.
func (l *line) pushed(t int64, p Raw) {
	switch t {
	case TRecall:
		l.recalled(p)
	case TCredits:
		l.credited(p)
	case TDrain:
		var drain drainError
		for addr := range p.Get("reconnect").Items() {
			if text, ok := addr.Str(); ok {
				drain.elsewhere = append(drain.elsewhere, text)
			}
		}
		select {
		case l.drains <- &drain:
		default:
		}
	case TBye:
		code, _ := p.Get("code").Str()
		message, _ := p.Get("msg").Str()
		l.hangUp(fmt.Errorf("node said BYE: %s: %s", code, message))
	}
}

// recalled stops the dispatch that a RECALL names. A node that we have left
// recalls what went with us; that is no news.
func (l *line) recalled(p Raw) {
	tok, _ := p.Get("tok").Bin()
	if len(tok) != TokenLen {
		return
	}
	reason, _ := p.Get("reason").Str()
	l.w.mu.Lock()
	h := l.w.running[[TokenLen]byte(tok)]
	if l.w.line != l {
		h = nil
	}
	l.w.mu.Unlock()
	if h != nil {
		h.stop(&Stopped{reason})
	}
}

// credited hears that the node changed a balance.
func (l *line) credited(p Raw) {
	sid, _ := p.Get("sid").Str()
	reason, _ := p.Get("reason").Str()
	w := l.w
	w.mu.Lock()
	var q *served
	for _, of := range w.queues {
		if l.sids[of.name] == sid {
			q = of
		}
	}
	var room uint32
	switch {
	case q == nil || w.leaving:
	case reason == CreditsRestored:
		l.surplus[q.name]++ // it gave back what the job's end would give again
	case reason == CreditsStalled: // the balance is 0
		l.surplus[q.name] = 0
		room = w.roomLocked(q)
	}
	w.mu.Unlock()
	if room > 0 {
		l.credit(sid, room)
	}
}

func (l *line) credit(sid string, n uint32) {
	l.c.Go(TCredit, func(b []byte) []byte { return AppendValue(b, Fields{"sid": sid, "credits": n}) }, nil)
}
