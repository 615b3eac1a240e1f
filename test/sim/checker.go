package sim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
	"github.com/yardmaster-dev/yardmaster/timeline"
)

// checker checks the invariants of the whole cluster. It keeps its own state from the
// log, the streams and the workers, and compares the ledgers with it.
type checker struct {
	sim            *simulation
	index          int                       // of the last checked entry
	hashes         map[int][sha256.Size]byte // of the ledger, by index
	events         uint64                    // number of the last event
	history        strings.Builder           // the history stream's expected content
	timeline       *timeline.State           // folded from the events, in their compact form
	epoch          uint64
	owner          string                 // the authority
	counts         ledger.SnapshotBacklog // the backlog, counted from the events
	cursors        [members]uint64
	states         map[dispatch]ledger.EventKind
	attempts       map[job.ID]*attemptState
	order          map[orderKey]lastStarted
	runs           map[runKey]*jobRun
	fences         map[job.ID]uint64       // last fence of each job
	reportedStatus map[dispatch]job.Status // as workers reported it
	paused         map[string]bool         // queues
	removed        map[job.ID]bool         // jobs that the ledger may lack
	retried        map[job.ID]bool         // jobs that the present entry has retried, and whether their attempts count
	skipped        map[job.ID]bool         // jobs with a placement that was not accepted, or with limits: later jobs may start before them
	guards         *guardChecker
	limits         *limitChecker
	external       *externalChecker
	crons          *cronChecker
	operations     *operationChecker
	clocks         *clockChecker
	readUntil      [members]time.Time // until when each lane had been read to its end before the entry, in elapsed time
	now            time.Time          // the ledger's time
	keys           []string           // of accepted jobs, in order
	duplicated     map[job.ID]bool    // jobs with more than one record
	records        map[string]int     // number of stored records, by key
	jobs           map[string]job.ID  // accepted jobs, by key
	lastEvents     uint64             // number of events at the last call of unfinished
}

// dispatch identifies a dispatch: the n-th one of a job.
type dispatch struct {
	id job.ID
	n  uint32
}

// runKey identifies an execution of a dispatch at a process.
type runKey struct {
	id      job.ID
	n       uint32
	process string
}

// attemptState is the state of a job according to its events and settlements.
type attemptState struct {
	n       uint32 // last dispatch
	counted int    // attempts used
	max     int    // maximum of counted
	ended   bool
}

// lastStarted is the record of the job that was started last under an orderKey.
type lastStarted struct {
	at       job.Position
	accepted time.Time
}

// orderKey identifies jobs that start in the order of their records.
type orderKey struct {
	queue, class string
	priority     uint8
	lane         uint8
}

// newChecker returns a checker of a run that has not begun.
func newChecker(sim *simulation) *checker {
	return &checker{
		sim: sim, timeline: timeline.New(), hashes: map[int][sha256.Size]byte{}, states: map[dispatch]ledger.EventKind{}, attempts: map[job.ID]*attemptState{},
		order: map[orderKey]lastStarted{}, runs: map[runKey]*jobRun{}, fences: map[job.ID]uint64{}, reportedStatus: map[dispatch]job.Status{}, jobs: map[string]job.ID{},
		duplicated: map[job.ID]bool{}, records: map[string]int{}, paused: map[string]bool{}, skipped: map[job.ID]bool{}, removed: map[job.ID]bool{}, retried: map[job.ID]bool{},
		guards: &guardChecker{
			sim: sim, unique: map[job.GuardKey]keyHolder{}, rate: map[job.GuardKey]time.Time{}, hasKeys: map[job.ID]bool{}, noJob: map[job.ID]bool{},
			answers: map[job.ID]job.ID{}, content: map[job.ID]job.Position{},
		},
		limits:   &limitChecker{sim: sim, uses: map[job.ID]map[string]string{}},
		external: &externalChecker{states: map[string]ledger.EventKind{}},
		crons:    &cronChecker{sim: sim, fired: map[string]uint64{}, ticked: map[job.ID]bool{}},

		operations: &operationChecker{sim: sim},
		clocks:     newClockChecker(sim),
	}
}

// onStored is called when a record is stored.
func (ch *checker) onStored(r *job.Record) {
	if ch.records[r.Key]++; ch.records[r.Key] > 1 {
		id, _ := job.KeyID(r.Queue, r.Key)
		ch.duplicated[id] = true
	}
}

// onAccepted is called when a stored record is acknowledged to its producer.
func (ch *checker) onAccepted(key string, r *job.Record) {
	if _, accepted := ch.jobs[key]; accepted {
		return
	}
	id, err := job.KeyID(r.Queue, r.Key)
	if err != nil {
		ch.sim.fail("key %s: %v", r.Key, err)
	}
	ch.jobs[key] = id
	ch.keys = append(ch.keys, key)
	ch.sim.report.Accepted++
}

// ids returns the accepted jobs.
func (ch *checker) ids() []job.ID {
	ids := make([]job.ID, len(ch.keys))
	for i, key := range ch.keys {
		ids[i] = ch.jobs[key]
	}
	return ids
}

// onReported is called when a worker reports an outcome. A success replaces another
// outcome of the same dispatch.
func (ch *checker) onReported(o job.Outcome) {
	if d := (dispatch{o.Job, o.N}); ch.reportedStatus[d] != job.Success {
		ch.reportedStatus[d] = o.Status
	}
}

// onStarted is called when an execution starts. It checks that the job does not run
// elsewhere under a lease, the queue's limit and the fence.
func (ch *checker) onStarted(r *jobRun) {
	now, copies, active := time.Now(), 0, 0
	var running []*jobRun
	for k, other := range ch.runs {
		mayRun := other.mayRun(now)
		if mayRun {
			running = append(running, other)
		}
		if mayRun && other.Queue == r.Queue {
			active++
		}
		if k.id == r.Job {
			copies++
			if mayRun { // also by a worker without a connection
				ch.sim.fail("%s starts %s while %s runs %s, whose lease has not expired", r.process.id, r.RequestID(), other.process.id, other.RequestID())
			}
		}
	}
	if copies > 0 {
		ch.sim.report.Restarts++
	}
	if r.Queue == "narrow" && active >= narrowLimit {
		ch.sim.fail("%s starts %s while %d others of its queue run, whose limit is %d", r.process.id, r.RequestID(), active, narrowLimit)
	}
	ch.limits.onStarted(r, running)
	if last := ch.fences[r.Job]; r.Fence <= last {
		ch.sim.fail("%s starts %s with fence %d after %d", r.process.id, r.RequestID(), r.Fence, last)
	}
	ch.fences[r.Job] = r.Fence
	ch.runs[runKey{r.Job, r.N, r.process.id}] = r
}

// hashInterval is the number of entries between two comparisons of the ledgers.
const hashInterval = 40

// observe is called after a node has applied an entry. It checks the entry when the
// first node has applied it, and compares the ledgers every hashInterval entries.
func (ch *checker) observe(proc *process, e *logEntry, results []ledger.Result) {
	if at := proc.applied; at > ch.index {
		ch.index = at
		ch.checkEntry(proc, e, results)
	}
	if proc.applied%hashInterval == 0 {
		ch.checkHash(proc)
	}
}

// checkHash compares a node's ledger with the other nodes' at the same entry.
func (ch *checker) checkHash(proc *process) {
	hash, err := proc.ledger.Hash()
	if err != nil {
		ch.sim.fail("%s: hash: %v", proc.id, err)
	}
	if earlier, hashed := ch.hashes[proc.applied]; !hashed {
		ch.hashes[proc.applied] = hash
	} else if hash != earlier {
		ch.sim.fail("%s: the ledger differs from the other nodes' at entry %d", proc.id, proc.applied)
	}
}

// checkEntry checks an entry and its events, and compares the ledger with the
// checker's state.
func (ch *checker) checkEntry(proc *process, e *logEntry, results []ledger.Result) {
	sim := ch.sim
	if sim.tracing() {
		sim.trace("entry %d term %d epoch %d: %s", e.stamp.Index, e.stamp.Term, e.stamp.Epoch, describe(e.commands, results))
	}
	ch.now = proc.ledger.Clock().Elapsed
	ch.clocks.checkStamp(proc.ledger, e)
	for i, r := range results {
		if _, lead := e.commands[i].(*ledger.Lead); !lead && r.Err == nil && e.stamp.Epoch != ch.epoch {
			sim.fail("entry %d: a command of epoch %d took effect in epoch %d", e.stamp.Index, e.stamp.Epoch, ch.epoch)
		}
		ch.checkCommand(proc, e, e.commands[i], r)
	}
	ended := map[dispatch]bool{}
	message := history.NewEncoder(0, ch.events+1, proc.ledger.Now())
	proc.ledger.EventsAfter(ch.events, func(number uint64, at time.Time, ev *ledger.Event) bool {
		if number != ch.events+1 {
			sim.fail("entry %d: event %d follows %d", e.stamp.Index, number, ch.events)
		}
		ch.events = number
		ch.history.Write(ev.AppendLine(nil, number, at))
		message.Add(number, at, ev)
		ch.checkEvent(proc, ev, ended)
		ch.clocks.onEvent(proc.ledger, ev)
		return true
	})
	ch.checkTimeline(proc, e, message.Bytes())
	ch.checkSettled(e, results, ended)
	ch.clocks.checkOverdue(proc.ledger, e)
	for i, lane := range proc.ledger.Lanes() {
		ch.readUntil[i] = lane.IngestedUntil
	}
	ch.applyRetries(e, results)
	ch.compare(proc, e)
	ch.crons.check(proc.ledger)
	ch.operations.check(proc.ledger)
}

// checkTimeline checks that the events of an entry, in a message, lead to the state that the
// ledger has, folded by a program that shares no code with it.
func (ch *checker) checkTimeline(proc *process, e *logEntry, message []byte) {
	if _, err := ch.timeline.Add(message, nil); err != nil {
		ch.sim.fail("entry %d: %v", e.stamp.Index, err)
	}
	state, err := timeline.Decode(proc.ledger.Base().JSON())
	if err != nil {
		ch.sim.fail("entry %d: %v", e.stamp.Index, err)
		return
	}
	if differences := ch.timeline.Diff(state); len(differences) > 0 {
		ch.sim.fail("entry %d: the ledger differs from its history: %v", e.stamp.Index, differences)
	}
	if b := proc.ledger.Balance(); b.Imbalance() != 0 {
		ch.sim.fail("entry %d: the numbers of jobs do not add up: %+v", e.stamp.Index, b)
	}
}

// onIngested is called when a job was ingested.
func (ch *checker) onIngested(proc *process, j *job.Job, became ledger.Ingested) {
	holder := job.ID{}
	if decision, ok := proc.ledger.Decision(j.Position); ok {
		holder = decision.Job
	}
	ch.clocks.onIngested(j, became, holder, ch.readUntil[j.Position.Lane])
}

// checkCommand updates the checker's state by a command that took effect, and checks
// placements.
func (ch *checker) checkCommand(proc *process, e *logEntry, c ledger.Command, r ledger.Result) {
	if r.Err != nil {
		return
	}
	switch c := c.(type) {
	case *ledger.PauseQueue:
		ch.paused[c.Name] = c.Paused
	case *ledger.Place:
		for i, p := range c.Placements {
			view, _, _ := proc.ledger.Find(p.Job)
			switch {
			case !r.Placed[i]:
				ch.skipped[p.Job] = true // by a pause that may end before the next entry
			case ch.paused[view.Queue]:
				ch.sim.fail("%s starts in a queue that is paused", job.RequestID(p.Job, p.N))
			default:
				ch.limits.onPlaced(p.Job, pacedStart{ch.clocks.now, ch.clocks.behind})
			}
		}
	case *ledger.Ingest:
		for i := range c.Jobs {
			if r.Ingested[i] == ledger.IngestedWaiting || r.Ingested[i] == ledger.IngestedDelayed {
				ch.limits.onIngested(&c.Jobs[i])
				if len(c.Jobs[i].Limits) > 0 {
					ch.skipped[c.Jobs[i].ID] = true
				}
			}
			ch.onIngested(proc, &c.Jobs[i], r.Ingested[i])
			ch.guards.onIngested(proc, ch.now, proc.dueOf(c.Jobs[i].ID), &c.Jobs[i], r.Ingested[i])
			if at := &c.Jobs[i]; r.Ingested[i] == ledger.IngestedRateLimited { // its events use the record's id
				ch.removed[job.RecordID(c.Identity, at.Position, at.Accepted)] = true
			}
		}
	case *ledger.Settle:
		for i := range c.Settlements {
			if r.Settled[i].State == job.Delayed && !r.Settled[i].Stale && !r.Settled[i].Duplicate {
				ch.clocks.onSettled(e, &c.Settlements[i])
			}
		}
	case *ledger.RetryJob:
		ch.onRetry(c.Job)
	case *ledger.StepOperation:
		if r.Operation.Action == ledger.OperationRetry || r.Operation.Action == ledger.OperationRequeue {
			for i := range c.Jobs {
				ch.onRetry(c.Jobs[i].Job)
			}
		}
	case *ledger.RemoveJob:
		ch.removed[c.Job] = true
		ch.guards.onRemoved(c.Job)
	case *ledger.MoveDispatch:
		ch.sim.report.Moves++
	}
}

// dueOf returns when a delayed job is due, in elapsed time; zero: it is not delayed.
func (proc *process) dueOf(id job.ID) time.Time {
	view, _, _ := proc.ledger.Find(id)
	if view.State != job.Delayed {
		return time.Time{}
	}
	c := proc.ledger.Clock()
	return view.RunAt.Add(c.Elapsed.Sub(c.Wall))
}

// onRetry is called before the events of a command that may have a job run again.
func (ch *checker) onRetry(id job.ID) {
	ch.clocks.drop(id)
	if t := ch.attempts[id]; t != nil {
		t.ended = false
	}
}

// describe returns an entry's commands as text for the trace.
func describe(commands []ledger.Command, results []ledger.Result) string {
	var b strings.Builder
	for i, c := range commands {
		name := strings.TrimPrefix(fmt.Sprintf("%T", c), "*ledger.")
		fmt.Fprintf(&b, " %s", name)
		switch c := c.(type) {
		case *ledger.Ingest:
			fmt.Fprintf(&b, "(%d@%d-%d)", c.Lane, c.From, c.To)
		case *ledger.Place:
			for _, p := range c.Placements {
				fmt.Fprintf(&b, " %s %s/%d,", job.RequestID(p.Job, p.N), p.Node, p.Incarnation)
			}
		case *ledger.Settle:
			for _, end := range c.Settlements {
				fmt.Fprintf(&b, " %s %d,", job.RequestID(end.Job, end.N), end.Next)
			}
		case *ledger.CancelJob:
			fmt.Fprintf(&b, "(%s)", c.Job)
		case *ledger.RetryJob:
			fmt.Fprintf(&b, "(%s)", c.Job)
		case *ledger.RemoveJob:
			fmt.Fprintf(&b, "(%s)", c.Job)
		case *ledger.MoveDispatch:
			fmt.Fprintf(&b, "(%s %s)", job.RequestID(c.Job, c.N), c.Node)
		case *ledger.PauseQueue:
			fmt.Fprintf(&b, "(%s %t)", c.Name, c.Paused)
		case *ledger.StepOperation:
			fmt.Fprintf(&b, "(%d to %d, %d jobs, %v)", c.Number, c.To.Accepted, len(c.Jobs), c.Done)
		case *ledger.ChangeOperation:
			fmt.Fprintf(&b, "(%d %s)", c.Number, c.State)
		}
		if results[i].Err != nil {
			b.WriteString(" refused")
		}
	}
	return b.String()
}

// unfinished returns what keeps the cluster from having recovered: jobs that have not
// ended, conditions of the authority, unpublished history.
func (ch *checker) unfinished() (problems []string) {
	sim := ch.sim
	leader := sim.raft.leader
	if leader == nil {
		return []string{"no leader"}
	}
	var open []string
	for _, key := range ch.keys {
		id := ch.jobs[key]
		if state, ok := leader.ledger.State(id); !ok && !ch.guards.noJob[id] || ok && !state.Ended() {
			open = append(open, fmt.Sprintf("%s %s", key, state))
		}
	}
	for _, id := range ch.crons.jobs {
		if state, ok := leader.ledger.State(id); !ok && !ch.removed[id] || ok && !state.Ended() {
			open = append(open, fmt.Sprintf("job of a tick %s %s", id, state))
		}
	}
	open = append(open, ch.external.unfinished()...)
	open = append(open, ch.operations.problems()...)
	if all := sim.plan.jobs(); len(ch.keys) < all {
		problems = append(problems, fmt.Sprintf("%d of %d jobs are accepted", len(ch.keys), all))
	}
	if len(leader.ledger.Replay().Lanes) > 0 {
		problems = append(problems, "a replay is running")
	}
	if len(open) > 0 {
		problems = append(problems, "not ended: "+strings.Join(open, ", "))
	}
	ctx, cancel := context.WithTimeout(sim.ctx, time.Second)
	defer cancel()
	status, err := leader.sched.Status(ctx)
	switch {
	case err != nil:
		problems = append(problems, err.Error())
	case status.Deferred || !status.Dispatching || status.Pending > 0:
		problems = append(problems, fmt.Sprintf("deferred %t, dispatching %t, pending %d", status.Deferred, status.Dispatching, status.Pending))
	}
	problems = append(problems, status.Reasons...)
	last := [3]uint64{ch.lastEvents, leader.ledger.LastResult(), leader.ledger.LastDeadLetter()}
	ch.lastEvents = leader.ledger.LastEvent()
	for stream, made := range last {
		if _, number := sim.history.last(outbox.Stream(stream)); number < made || made == 0 && stream == 0 {
			problems = append(problems, fmt.Sprintf("%s published to %d of %d", outbox.Stream(stream), number, made))
		}
	}
	slices.Sort(problems)
	return problems
}

// lossReported reports whether the authority reports a truncated lane.
func (ch *checker) lossReported(problems []string) bool {
	return slices.ContainsFunc(problems, func(text string) bool { return strings.Contains(text, "it went back") })
}

// checkFinal checks a cluster that has recovered: that all ledgers are equal, and that
// the published history is what has happened.
func (ch *checker) checkFinal() {
	sim := ch.sim
	for _, n := range sim.nodes {
		n.process.catchUp(len(sim.raft.log))
		ch.checkHash(n.process)
	}
	if published, happened := sim.history.published(), ch.history.String(); !strings.HasPrefix(happened, published) {
		sim.fail("the published history differs from the events")
	}
}
