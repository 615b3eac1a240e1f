package sim

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"yardmaster/agent"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
)

// node is a member, through all its lives.
type node struct {
	y        *yard
	name     string
	life     *life // the present one, or the last
	snapshot saved // the newest
	synced   saved // the one before, which is left if the power goes
}

// saved is a snapshot on a disk.
type saved struct {
	bytes []byte
	at    int // entries that it holds
}

// life is one start of a node. What was under way when it ended stays under
// way, and finds nobody.
type life struct {
	*node
	id          string // "n1/2"
	incarnation uint64
	up          bool
	begun       bool // its agent runs
	ctx         context.Context
	kill        context.CancelFunc
	sched       *scheduler.Scheduler
	agent       *agent.Agent
	hands       *hands

	view    sync.RWMutex // guards ledger
	ledger  *ledger.Ledger
	applied int
	watched watch

	mu         sync.Mutex // guards what follows
	term       uint64     // that it takes itself for the leader of; 0: none
	underWay   []*proposal
	proposals  int
	committing time.Time          // of the last one under way
	resign     context.CancelFunc // ends its tenure
	tenure     chan struct{}      // closed when the last tenure is over
}

func newNode(y *yard, i int) *node {
	n := &node{y: y, name: nodeName(i)}
	n.life = &life{node: n}
	return n
}

// start begins a life, with what the disk holds.
func (n *node) start() {
	y := n.y
	l := &life{node: n, incarnation: n.life.incarnation + 1, up: true, ledger: ledger.New(), applied: n.snapshot.at, tenure: make(chan struct{})}
	close(l.tenure)
	l.id = fmt.Sprintf("%s/%d", n.name, l.incarnation)
	l.watched.next = make(chan struct{})
	if n.snapshot.bytes != nil {
		restored, err := ledger.Decode(bytes.NewReader(n.snapshot.bytes))
		if err != nil {
			y.fail("%s: snapshot cannot be read: %v", l.id, err)
			return
		}
		l.ledger = restored
	}
	l.ctx, l.kill = context.WithCancel(y.ctx)
	n.life = l
	cfg := scheduler.Config{
		Node: n.name, Policy: retries, DefaultTimeout: jobTimeout, CreateQueues: true,
	}
	for i := range members {
		cfg.Members = append(cfg.Members, nodeName(i))
	}
	l.sched = scheduler.New(cfg, l, lanesOf{l}, ordersOf{l}, talesOf{l}, y.log)
	l.agent = agent.New(agent.Config{
		Node: n.name, Incarnation: l.incarnation, Runners: []string{runnerName},
		DrainGrace: time.Millisecond, StopGrace: time.Millisecond,
		Dice: func(below int64) int64 { return int64(y.dice("backoff "+l.id) % uint64(below)) },
	}, busOf{l}, y.log)
	l.hands = newHands(l)
	y.tell("%s starts", l.id)
	y.after(y.between("begin "+l.id, time.Millisecond, 20*time.Millisecond), "begin "+l.id, func() {
		if l.up {
			y.group.Go(func() { _ = l.agent.Run(l.ctx) })
			l.hands.offerAll()
			l.begun = true
		}
	})
}

// crash ends a life as a power cut does: what it says from now on nobody hears.
func (l *life) crash() {
	l.y.tell("%s crashes", l.id)
	if l.y.chance("power "+l.id, 300) {
		l.snapshot = l.synced // what was not synced is gone
	}
	l.y.report.Crashes++
	l.end()
	l.y.raft.look()
}

func (l *life) end() {
	l.up = false
	l.hands.die()
	l.stepDown()
	l.kill()
}

// lead begins a tenure, after the one before has ended.
func (l *life) lead(term uint64) {
	l.mu.Lock()
	l.term, l.underWay = term, nil
	before, over := l.tenure, make(chan struct{})
	l.tenure = over
	ctx, resign := context.WithCancel(l.ctx)
	l.resign = resign
	l.mu.Unlock()
	l.y.group.Go(func() {
		defer close(over)
		<-before
		if ctx.Err() != nil {
			return
		}
		err := l.sched.Run(ctx, term)
		if ctx.Err() != nil {
			return
		}
		l.y.after(0, "gave up "+l.id, func() { // its part has failed: another is to lead
			l.y.tell("%s gives up term %d: %v", l.id, term, err)
			l.y.raft.resign(l, term)
		})
	})
}

// stepDown is when a leader hears of its end.
func (l *life) stepDown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == 0 {
		return
	}
	l.term = 0
	l.resign()
	for _, e := range l.underWay {
		e.err = errDeposed
		close(e.done)
	}
	l.underWay = nil
}

// catchUp applies the log up to an entry and gives the results of the last.
func (l *life) catchUp(to int) (results []ledger.Result) {
	for l.applied < to {
		e := &l.y.raft.log[l.applied]
		l.view.Lock()
		results = l.ledger.Apply(e.at, e.commands)
		l.applied++
		l.y.judge.see(l, e, results)
		if l.y.mishaps() && l.y.net.writes(l.name) && l.y.chance("snapshot "+l.id, 20) {
			var b bytes.Buffer
			if err := l.ledger.Encode(&b); err != nil {
				l.y.fail("%s: snapshot: %v", l.id, err)
			}
			l.synced, l.snapshot = l.snapshot, saved{b.Bytes(), l.applied}
		}
		l.view.Unlock()
	}
	l.watched.set(l.ledger.Authority()) // once: nobody is to see what is past
	return results
}

// View and Copy are scheduler.Ledger's.
func (l *life) View(fn func(*ledger.Ledger)) {
	l.view.RLock()
	defer l.view.RUnlock()
	fn(l.ledger)
}

// Copy copies the ledger.
func (l *life) Copy() *ledger.Ledger {
	l.view.Lock()
	defer l.view.Unlock()
	return l.ledger.Copy()
}

// watch follows who holds the authority, as the node's own ledger has it.
type watch struct {
	mu    sync.Mutex
	owner string
	epoch uint64
	next  chan struct{}
}

func (w *watch) set(a ledger.Authority) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.Epoch != w.epoch {
		w.owner, w.epoch = a.Owner, a.Epoch
		close(w.next)
		w.next = make(chan struct{})
	}
}

func (w *watch) authority() (string, uint64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.owner, w.epoch, w.owner != ""
}

func (w *watch) changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next
}

// What jobs are tried by.
var retries = job.Policy{MaxAttempts: 4, Base: 400 * time.Millisecond, Max: 2 * time.Second}

const jobTimeout = 7 * time.Second
