package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/index"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// node is a member over all its restarts.
type node struct {
	sim      *simulation
	name     string
	process  *process      // the current process, or the last one
	snapshot savedSnapshot // the newest
	synced   savedSnapshot // the one before, which remains after a power loss
}

// savedSnapshot is a snapshot on a disk.
type savedSnapshot struct {
	bytes []byte
	index int // index of its last entry
}

// process is one incarnation of a node. Messages in flight when it ends are still
// delivered to others, and those to it are dropped.
type process struct {
	*node
	id           string // "n1/2": node and incarnation
	incarnation  uint64
	up           bool
	agentStarted bool
	ctx          context.Context
	cancel       context.CancelFunc
	sched        *scheduler.Scheduler
	agent        *agent.Agent
	executors    *executors
	index        *index.Index

	heard          heardMembers  // of the present tenure; used by events
	suspendedAtAck time.Duration // for how long the node had been suspended when its last heartbeat was acknowledged; of the agent's goroutine

	view      sync.RWMutex // guards ledger
	ledger    *ledger.Ledger
	passed    ledger.Passed // guarded by view
	applied   int           // index of the last applied entry
	authority authorityWatch
	changed   chan struct{} // closed when entries have been applied; guarded by view

	mu           sync.Mutex // guards the fields below
	term         uint64     // the term that it considers itself the leader of; 0: none
	inFlight     []*proposal
	proposals    int                // proposals submitted so far
	lastCommitAt time.Time          // scheduled commit of the last proposal
	resign       context.CancelFunc // ends its tenure
	tenure       chan struct{}      // closed when its last tenure has ended
}

// start starts a process from what the node's disk holds.
func (n *node) start() {
	sim := n.sim
	proc := &process{node: n, incarnation: n.process.incarnation + 1, up: true, ledger: ledger.New(), applied: n.snapshot.index, tenure: make(chan struct{}), changed: make(chan struct{})}
	close(proc.tenure)
	proc.id = fmt.Sprintf("%s/%d", n.name, proc.incarnation)
	proc.authority.next = make(chan struct{})
	if n.snapshot.bytes != nil {
		restored, err := ledger.Decode(bytes.NewReader(n.snapshot.bytes))
		if err != nil {
			sim.fail("%s: snapshot cannot be read: %v", proc.id, err)
			return
		}
		proc.ledger = restored
	}
	proc.ctx, proc.cancel = context.WithCancel(sim.ctx)
	n.process = proc
	proc.startIndex()
	cfg := scheduler.Config{
		Node: n.name, Policy: retryPolicy, DefaultTimeout: sim.shape.jobTimeout, CreateQueues: true,
	}
	for i := range members {
		cfg.Members = append(cfg.Members, nodeName(i))
	}
	proc.sched = scheduler.New(cfg, proc, lanesView{proc}, fleetView{proc}, historyView{proc}, sim.log)
	proc.agent = agent.New(agent.Config{
		Node: n.name, Incarnation: proc.incarnation, Runners: []string{runnerName},
		DrainTimeout: time.Millisecond, StopTimeout: time.Millisecond,
		Rand: func(below int64) int64 { return int64(sim.random("backoff "+proc.id) % uint64(below)) },
	}, busView{proc}, sim.log)
	proc.executors = newExecutors(proc)
	sim.trace("%s starts", proc.id)
	sim.after(sim.duration("begin "+proc.id, time.Millisecond, 20*time.Millisecond), "begin "+proc.id, func() {
		if proc.up {
			sim.group.Go(func() { _ = proc.agent.Run(proc.ctx) })
			proc.executors.offerAll()
			proc.agentStarted = true
		}
	})
}

// crash ends the process at once; messages that it sends afterwards are dropped. Some
// crashes are power losses, after which an unsynced snapshot is gone.
func (proc *process) crash() {
	proc.sim.trace("%s crashes", proc.id)
	if proc.sim.chance("power "+proc.id, 300) {
		proc.snapshot = proc.synced // what was not synced is gone
	}
	proc.sim.report.Crashes++
	proc.stop()
	proc.sim.raft.ensureLeader()
}

// stop ends the process, its workers and its leadership.
func (proc *process) stop() {
	proc.up = false
	proc.executors.stop()
	proc.stepDown()
	proc.cancel()
}

// startTenure starts a tenure once the previous one has ended.
func (proc *process) startTenure(term uint64) {
	proc.mu.Lock()
	proc.term, proc.inFlight = term, nil
	proc.heard = heardMembers{since: time.Now(), before: proc.ledger.Authority().Epoch}
	before, over := proc.tenure, make(chan struct{})
	proc.tenure = over
	ctx, resign := context.WithCancel(proc.ctx)
	proc.resign = resign
	proc.mu.Unlock()
	proc.sim.group.Go(func() {
		defer close(over)
		<-before
		if ctx.Err() != nil {
			return
		}
		leading, end := context.WithCancel(ctx)
		proc.sim.group.Go(func() { proc.runOperations(leading) })
		err := proc.sched.Run(ctx, term)
		end()
		if ctx.Err() != nil {
			return
		}
		proc.sim.after(0, "gave up "+proc.id, func() { // the tenure has failed: elect another leader
			proc.sim.trace("%s resigns from term %d: %v", proc.id, term, err)
			proc.sim.raft.resign(proc, term)
		})
	})
}

// stepDown ends the tenure of a leader that learns of its replacement, and fails its
// proposals in flight.
func (proc *process) stepDown() {
	proc.mu.Lock()
	defer proc.mu.Unlock()
	if proc.term == 0 {
		return
	}
	proc.term = 0
	proc.resign()
	for _, e := range proc.inFlight {
		e.err = errDeposed
		close(e.done)
	}
	proc.inFlight = nil
}

// takeFirst removes e from the proposals in flight and returns true, if e is the
// oldest of them.
func (proc *process) takeFirst(e *proposal) bool {
	proc.mu.Lock()
	defer proc.mu.Unlock()
	if len(proc.inFlight) == 0 || proc.inFlight[0] != e {
		return false
	}
	proc.inFlight = proc.inFlight[1:]
	return true
}

// catchUp applies the log up to an index and returns the results of the last entry.
func (proc *process) catchUp(to int) (results []ledger.Result) {
	for proc.applied < to {
		e := &proc.sim.raft.log[proc.applied]
		proc.view.Lock()
		results = proc.ledger.Apply(e.stamp, e.commands)
		proc.passed.Applied(proc.ledger, time.Now())
		proc.applied++
		proc.sim.checker.observe(proc, e, results)
		if proc.sim.minorFaultsActive() && proc.sim.net.canWrite(proc.name) && proc.sim.chance("snapshot "+proc.id, 20) {
			var b bytes.Buffer
			if err := proc.ledger.Encode(&b); err != nil {
				proc.sim.fail("%s: snapshot: %v", proc.id, err)
			}
			proc.synced, proc.snapshot = proc.snapshot, savedSnapshot{b.Bytes(), proc.applied}
		}
		proc.view.Unlock()
	}
	proc.view.Lock()
	close(proc.changed)
	proc.changed = make(chan struct{})
	proc.view.Unlock()
	proc.authority.set(proc.ledger.Authority()) // after all entries, so that no reader sees an intermediate authority
	return results
}

// View implements scheduler.Ledger.
func (proc *process) View(fn func(*ledger.Ledger)) {
	proc.view.RLock()
	defer proc.view.RUnlock()
	fn(proc.ledger)
}

// Passed implements scheduler.Ledger.
func (proc *process) Passed(l *ledger.Ledger) time.Duration { return proc.passed.Since(l, time.Now()) }

// Applied implements operations.Ledger.
func (proc *process) Applied() (index uint64, changed <-chan struct{}) {
	proc.view.RLock()
	defer proc.view.RUnlock()
	return proc.ledger.Index(), proc.changed
}

// Copy implements scheduler.Ledger.
func (proc *process) Copy() *ledger.Ledger {
	proc.view.Lock()
	defer proc.view.Unlock()
	return proc.ledger.Copy()
}

// authorityWatch holds the current authority according to the node's ledger, and
// signals changes.
type authorityWatch struct {
	mu    sync.Mutex
	owner string
	epoch uint64
	next  chan struct{}
}

func (w *authorityWatch) set(a ledger.Authority) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.Epoch != w.epoch {
		w.owner, w.epoch = a.Owner, a.Epoch
		close(w.next)
		w.next = make(chan struct{})
	}
}

func (w *authorityWatch) authority() (string, uint64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.owner, w.epoch, w.owner != ""
}

func (w *authorityWatch) changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next
}

// retryPolicy is the policy of all jobs.
var retryPolicy = job.Policy{MaxAttempts: 4, BaseDelay: 400 * time.Millisecond, MaxDelay: 2 * time.Second}

var errDeposed = errors.New("leadership lost")

// raft simulates Raft: one log, to which the leader appends while it reaches a
// majority. A replaced leader may not learn of it for a while. A prefix of its
// proposals in flight is committed, and the rest is lost.
type raft struct {
	sim      *simulation
	term     uint64
	leader   *process // nil: none
	log      []logEntry
	electing bool // an election is scheduled
}

// logEntry is a committed entry.
type logEntry struct {
	stamp    ledger.Stamp
	commands []ledger.Command
	made     time.Time    // when its leader submitted it
	heard    heardMembers // by that leader until then
}

// proposal is an entry that a leader has submitted. done is closed when commit or err
// is set.
type proposal struct {
	scheduler.Proposal
	number int
	made   time.Time // when it was submitted
	heard  heardMembers
	done   chan struct{}
	commit scheduler.Commit
	err    error
}

// Submit implements scheduler.Ledger. The entries of one leader are committed in the
// order of submission.
func (proc *process) Submit(p scheduler.Proposal) (func(context.Context) (scheduler.Commit, error), error) {
	sim := proc.sim
	proc.mu.Lock()
	if proc.term == 0 || !proc.up {
		proc.mu.Unlock()
		return nil, errDeposed
	}
	proc.proposals++
	e := &proposal{Proposal: p, number: proc.proposals, made: time.Now(), heard: proc.heard, done: make(chan struct{})}
	proc.inFlight = append(proc.inFlight, e)
	term, key := proc.term, fmt.Sprintf("commit %s %d", proc.id, e.number)
	at := time.Now().Add(sim.delay(key, 4*time.Millisecond, 900*time.Millisecond))
	if at.Before(proc.lastCommitAt) {
		at = proc.lastCommitAt.Add(time.Microsecond)
	}
	proc.lastCommitAt = at
	proc.mu.Unlock()
	sim.schedule(at, key, func() { sim.raft.commit(proc, term, e) })
	return func(ctx context.Context) (scheduler.Commit, error) {
		select {
		case <-e.done:
			return e.commit, e.err
		case <-ctx.Done():
			return scheduler.Commit{}, ctx.Err()
		}
	}, nil
}

// commit commits a proposal if its leader reaches a majority; otherwise it tries again
// later, until the leadership ends.
func (r *raft) commit(proc *process, term uint64, e *proposal) {
	if !proc.up || proc.term != term {
		return
	}
	if r.leader != proc || !r.hasMajority(proc) || !proc.takeFirst(e) {
		r.sim.after(20*time.Millisecond, fmt.Sprintf("commit %s %d", proc.id, e.number), func() { r.commit(proc, term, e) })
		return
	}
	r.add(term, e)
	e.commit = scheduler.Commit{Index: uint64(len(r.log)), Results: proc.catchUp(len(r.log))}
	close(e.done)
	r.replicate(proc)
}

// add appends a proposal to the log.
func (r *raft) add(term uint64, e *proposal) {
	at := ledger.Stamp{Index: uint64(len(r.log)) + 1, Term: term, At: e.At, Offsets: e.Offsets, Epoch: e.Epoch}
	r.log = append(r.log, logEntry{at, e.Commands, e.made, e.heard})
	r.sim.report.Entries++
}

// replicate schedules that the other nodes apply the committed entries.
func (r *raft) replicate(from *process) {
	to := len(r.log)
	for _, n := range r.sim.nodes {
		proc := n.process
		if proc == from || !proc.up || !r.sim.net.connected(from.node, n) || !r.sim.net.canWrite(n.name) {
			continue
		}
		key := fmt.Sprintf("apply %s %d", proc.id, to)
		r.sim.after(r.sim.delay(key, 8*time.Millisecond, 2*time.Second), key, func() {
			if proc.up && proc.applied < to {
				proc.catchUp(to)
			}
		})
	}
}

// hasMajority reports whether a process reaches a majority of disks that can be
// written, with its own.
func (r *raft) hasMajority(proc *process) bool {
	n := 0
	if !r.sim.net.canWrite(proc.name) {
		return false
	}
	for _, other := range r.sim.nodes {
		if other == proc.node || other.process.up && r.sim.net.connected(proc.node, other) && r.sim.net.canWrite(other.name) {
			n++
		}
	}
	return n > members/2
}

// ensureLeader schedules an election if no leader reaches a majority. Call it whenever
// that may have changed.
func (r *raft) ensureLeader() {
	if r.electing || r.leader != nil && r.leader.up && r.hasMajority(r.leader) {
		if r.leader != nil {
			r.replicate(r.leader)
		}
		return
	}
	r.electing = true
	r.sim.after(r.sim.duration("election", 400*time.Millisecond, 1600*time.Millisecond), "election", func() {
		r.electing = false
		if r.leader == nil || !r.leader.up || !r.hasMajority(r.leader) {
			r.elect(nil)
		}
	})
}

// elect makes one of the processes that reach a majority the leader, but not except,
// which may be nil.
func (r *raft) elect(except *process) {
	var able []*process
	for _, n := range r.sim.nodes {
		if n.process.up && n.process != except && r.hasMajority(n.process) {
			able = append(able, n.process)
		}
	}
	if len(able) == 0 {
		r.ensureLeader()
		return
	}
	next, old := able[r.sim.intn("elected", len(able))], r.leader
	if old != nil {
		r.depose(old)
	}
	r.term++
	r.leader = next
	r.sim.report.Tenures++
	r.sim.trace("%s leads term %d", next.id, r.term)
	next.stepDown() // it may not have learned that its last leadership ended
	next.catchUp(len(r.log))
	r.sim.clocks.onFirstElected(next)
	next.startTenure(r.term)
	r.replicate(next)
}

// resign ends the leadership of a process whose tenure has failed.
func (r *raft) resign(proc *process, term uint64) {
	if r.leader == proc && r.term == term {
		r.depose(proc)
		proc.stepDown()
		r.ensureLeader()
	}
}

// depose ends a leadership. Some of the leader's proposals in flight are committed,
// and it may learn of its end late, the later if it reaches no majority.
func (r *raft) depose(old *process) {
	r.leader = nil
	old.mu.Lock()
	inFlight := old.inFlight
	old.mu.Unlock()
	committed := 0
	if n := len(inFlight); n > 0 {
		committed = r.sim.intn("kept", n+1)
	}
	for _, e := range inFlight[:committed] {
		r.add(old.term, e)
	}
	if !old.up {
		return
	}
	unaware := time.Duration(0)
	if !r.hasMajority(old) || r.sim.minorFaultsActive() && r.sim.chance("unaware", 300) {
		unaware = r.sim.duration("unaware for", 10*time.Millisecond, 11*time.Second)
	}
	term := old.term
	r.sim.trace("%s is deposed, %d of %d entries committed, learns of it in %s", old.id, committed, len(inFlight), unaware)
	r.sim.after(unaware, "deposed "+old.id, func() {
		if old.up && old.term == term {
			old.stepDown()
		}
	})
}
