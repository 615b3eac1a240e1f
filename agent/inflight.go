package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Target runs dispatches of one kind: the edge with TCP workers, or the runner pool
// with local processes.
type Target interface {
	Kind() job.Kind
	// Start starts a dispatch and returns at once. It returns false, and starts
	// nothing, if the assignment's worker is gone or full. The assignment's body and
	// the params of spec share the memory of a whole batch: a target that keeps them
	// copies them.
	Start(a job.Assignment, spec job.Spec) bool
	// Stop has a running dispatch stop, which then reports its outcome; an
	// Overhop worker's dispatch that is superseded is dropped without one. Stop
	// ignores a recall of an unknown dispatch and one that is outdated, see
	// [job.Recall.Outdated]. The recall's epoch may be 0.
	Stop(r job.Recall)
}

// phase is the state of a dispatch.
type phase uint8

const (
	loading  phase = iota // its body is being loaded
	starting              // Target.Start is being called
	running
	ending // its outcome is known and not yet settled
)

// dispatch is a dispatch that this node has and that is not settled.
type dispatch struct {
	job.DispatchID
	phase        phase
	target       Target
	recallReason job.RecallReason // why it must stop; "": it need not
	recallText   string           // the message of the recall with that reason
	assignment   *job.Assignment  // while loading
	pending      *pendingOutcome  // while ending
	moveIndex    uint64           // index of the entry that moved it here; 0: it started here
}

// recall marks the dispatch as recalled and reports whether its target must stop it
// now. It keeps the first reason unless a more severe one comes: an expired lease
// leaves no time for a graceful stop, and a superseded dispatch is dropped instead
// of stopped.
func (d *dispatch) recall(reason job.RecallReason, message string) bool {
	if d.phase == ending || severity(reason) <= severity(d.recallReason) {
		return false
	}
	d.recallReason, d.recallText = reason, message
	return d.phase == running
}

// severity returns the rank of a recall reason, which is 0 for "", no recall. A recall of
// a dispatch has an effect only if its rank is higher than that of all recalls before.
func severity(reason job.RecallReason) int {
	switch reason {
	case "":
		return 0
	case job.RecallLease:
		return 2
	case job.RecallSuperseded:
		return 3
	}
	return 1
}

// Settled and refused dispatches are remembered for recentTTL to 2*recentTTL, or for
// less if there are more than recentMax in that time.
const (
	recentTTL = 15 * time.Second
	recentMax = 200_000
)

// dispatchTable holds the dispatches of this node and, for a while, those that were
// settled or refused: an assignment may arrive twice, and late. It is guarded by the
// agent's mu.
type dispatchTable struct {
	live    map[job.DispatchID]*dispatch
	running int // number of dispatches in live that are not ending

	settled recentKeys // settled here, or moved away
	refused recentKeys // refused: the authority may place the job elsewhere, and a late copy of the assignment must not start it here
}

func newDispatchTable() dispatchTable { return dispatchTable{live: map[job.DispatchID]*dispatch{}} }

// recentKeys is a set of keys that drops old ones.
type recentKeys struct {
	current, previous map[job.DispatchID]struct{}
	rotatedAt         time.Time // when current was started
}

func (m *recentKeys) add(k job.DispatchID, now time.Time) {
	if m.current == nil || len(m.current) >= recentMax || now.Sub(m.rotatedAt) >= recentTTL {
		m.previous, m.current, m.rotatedAt = m.current, make(map[job.DispatchID]struct{}, len(m.current)), now
	}
	m.current[k] = struct{}{}
}

func (m *recentKeys) has(k job.DispatchID) bool {
	_, inCurrent := m.current[k]
	_, inPrevious := m.previous[k]
	return inCurrent || inPrevious
}

// seen reports whether an assignment needs no action, because its dispatch is live or
// was settled here. A dispatch that has moved here (Started is set) may have been here
// before: it does not matter that it was settled then, or that its loss is to be reported.
func (t *dispatchTable) seen(asg *job.Assignment) bool {
	k := asg.DispatchID()
	d := t.live[k]
	if !asg.Started.IsZero() {
		return d != nil && d.phase != ending
	}
	return d != nil || t.settled.has(k)
}

// markRefused remembers an assignment that was refused, unless it is of a dispatch
// that has moved here: its worker may still resume it.
func (t *dispatchTable) markRefused(asg *job.Assignment, now time.Time) {
	if asg.Started.IsZero() {
		t.refused.add(asg.DispatchID(), now)
	}
}

func (t *dispatchTable) add(d *dispatch) {
	t.live[d.DispatchID] = d
	t.running++
}

// markEnding marks a dispatch whose outcome is known.
func (t *dispatchTable) markEnding(d *dispatch) {
	d.phase = ending
	t.running--
}

// drop removes a dispatch that was not started.
func (t *dispatchTable) drop(d *dispatch) {
	delete(t.live, d.DispatchID)
	t.running--
}

// markMoved removes a dispatch that continues on another node, and remembers it as
// settled.
func (t *dispatchTable) markMoved(d *dispatch, now time.Time) {
	if t.live[d.DispatchID] == d && d.phase != ending {
		t.running--
		t.markSettled(d.DispatchID, now)
	}
}

// markSettled removes a dispatch and remembers it as settled.
func (t *dispatchTable) markSettled(k job.DispatchID, now time.Time) {
	if _, ok := t.live[k]; ok {
		delete(t.live, k)
		t.settled.add(k, now)
	}
}

// Assign takes a batch of assignments and returns the answer to each. Bodies that the
// batch does not carry are loaded afterwards; the answer to such an assignment is
// Taken.
func (a *Agent) Assign(b job.AssignmentBatch) []job.Answer {
	a.assignMu.Lock()
	defer a.assignMu.Unlock()
	answers := make([]job.Answer, len(b.Assignments))
	if a.refuseBatch(b, answers) {
		return answers
	}
	for i := range b.Assignments {
		answers[i] = a.accept(&b.Assignments[i])
	}
	a.reporter.update(func(c *capacity) { c.batchSeen(b, time.Now()) })
	return answers
}

// refuseBatch fills in the answers if no assignment of the batch may be accepted, and
// reports whether it has. A dispatch that this node already has is still answered
// with Taken: after another answer the authority would place it elsewhere.
func (a *Agent) refuseBatch(b job.AssignmentBatch, answers []job.Answer) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	var refusal job.Answer
	switch {
	case b.Incarnation != 0 && b.Incarnation != a.cfg.Incarnation, !a.observeEpoch(b.Epoch):
		refusal = job.StaleEpoch // meant for another incarnation, or sent by a replaced authority
	case a.draining:
		refusal = job.Draining
	case !a.lease.canWork(), a.lease.previous.covers(b):
		refusal = job.NoCapacity // there is no lease, or the batch was meant for a previous one
	default:
		return false
	}
	for i := range b.Assignments {
		answers[i] = refusal
		switch asg := &b.Assignments[i]; {
		case refusal == job.StaleEpoch:
		case a.table.seen(asg):
			answers[i] = job.Taken
		default:
			a.table.markRefused(asg, time.Now())
		}
	}
	return true
}

// accept answers one assignment and starts its dispatch, or has its body loaded first.
// The answer is Taken also if this node has the dispatch already, and NoCapacity if the
// dispatch has moved here but its worker has not resumed it yet, see Adopt.
func (a *Agent) accept(asg *job.Assignment) job.Answer {
	target := a.targets[asg.Kind]
	if target == nil {
		return job.NoCapacity
	}
	d := &dispatch{DispatchID: asg.DispatchID(), phase: starting, target: target}
	spec, needsLoad, err := parseBody(asg.Body)

	a.mu.Lock()
	switch {
	case a.table.seen(asg):
		a.mu.Unlock()
		return job.Taken
	case !a.lease.canWork() || a.table.refused.has(d.DispatchID) || !asg.Started.IsZero():
		a.table.markRefused(asg, time.Now())
		a.mu.Unlock()
		return job.NoCapacity
	}
	a.table.add(d)
	if needsLoad {
		assignment := *asg    // the batch is the caller's
		assignment.Body = nil // it shares the batch's memory; loadAndStart sets it
		d.phase, d.assignment = loading, &assignment
		a.reporter.update(func(c *capacity) { c.reserve(slotKeyOf(asg), 1, time.Now()) })
	}
	a.mu.Unlock()

	switch {
	case needsLoad:
		a.loadPool.add(func(ctx context.Context) { a.loadAndStart(ctx, d) })
	case err != nil:
		a.Report(d.invalidOutcome(err), nil)
	case !target.Start(*asg, spec):
		a.refuseStart(d, asg)
		return job.NoCapacity
	default:
		a.markRunning(d)
	}
	return job.Taken
}

// refuseStart removes a dispatch that its target did not start, unless it has got an
// outcome meanwhile.
func (a *Agent) refuseStart(d *dispatch, asg *job.Assignment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d.phase != ending {
		a.table.drop(d)
		a.table.markRefused(asg, time.Now())
		a.signalChanged()
	}
}

// parseBody parses the body in an assignment. needsLoad is true without a body, or
// if it refers to a blob. The params of spec share the memory of the body.
func parseBody(body []byte) (spec job.Spec, needsLoad bool, err error) {
	if body == nil {
		return spec, true, nil
	}
	spec, err = job.ParseShared(body)
	return spec, err == nil && spec.Blob != nil, err
}

// markRunning marks a dispatch as running after Target.Start, and stops it if it was
// recalled meanwhile.
func (a *Agent) markRunning(d *dispatch) {
	a.mu.Lock()
	hasEnded := d.phase != starting
	if !hasEnded {
		d.phase = running
	}
	recall := job.Recall{Job: d.Job, N: d.N, Reason: d.recallReason, Message: d.recallText}
	a.mu.Unlock()
	if recall.Reason != "" && !hasEnded {
		a.stop(d, recall)
	}
}

// loadAndStart loads the body of an accepted dispatch and starts it. If it cannot be
// started, loadAndStart reports an outcome instead: an error if the body is lost or
// invalid, and otherwise one that gives the dispatch back.
func (a *Agent) loadAndStart(ctx context.Context, d *dispatch) {
	body, err := a.loadBody(ctx, d)
	var spec job.Spec
	if err == nil {
		spec, err = job.ParseSpec(body)
	}

	a.mu.Lock()
	assignment, reason := d.assignment, d.recallReason
	d.assignment, d.phase = nil, starting
	canWork := a.lease.canWork() // if the lease expires after this, the dispatch is recalled
	a.mu.Unlock()

	_, invalid := errors.AsType[*job.InvalidError](err)
	switch {
	case reason != "":
		a.Report(d.recalledOutcome(reason), nil)
	case !canWork:
		a.Report(d.declinedOutcome("the node's lease expired while the body was loaded"), nil)
	case invalid, errors.Is(err, ErrBodyLost):
		a.Report(d.invalidOutcome(err), nil)
	case err != nil:
		a.Report(d.declinedOutcome(err.Error()), nil)
	default:
		assignment.Body = body
		if d.target.Start(*assignment, spec) {
			a.markRunning(d)
		} else {
			a.Report(d.declinedOutcome("no capacity once the body was loaded"), nil)
		}
	}
	a.reporter.update(func(c *capacity) { c.reserve(slotKeyOf(assignment), -1, time.Now()) })
}

// maxLoadAttempts is how often a body is requested before the dispatch is given back:
// another node may be able to load it.
const maxLoadAttempts = 4

// loadBody returns the body of a dispatch's job. After an error other than [ErrBodyLost]
// it requests the body again, after a growing pause, until it has done so
// maxLoadAttempts times, the dispatch is recalled, or ctx ends.
func (a *Agent) loadBody(ctx context.Context, d *dispatch) ([]byte, error) {
	pause := backoff.Backoff{Base: 50 * time.Millisecond, Max: time.Second, Rand: a.cfg.Rand}
	for attempt := 1; ; attempt++ {
		body, err := a.transport.LoadBody(ctx, d.assignment.Position, d.Job)
		if err == nil || errors.Is(err, ErrBodyLost) {
			return body, err
		}
		if attempt == maxLoadAttempts || a.isRecalled(d) {
			return nil, fmt.Errorf("load body: %w", err)
		}
		if err := backoff.Sleep(ctx, pause.Next()); err != nil {
			return nil, err
		}
	}
}

// isRecalled reports whether a dispatch must stop.
func (a *Agent) isRecalled(d *dispatch) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return d.recallReason != ""
}

// invalidOutcome returns the outcome of a dispatch whose job can never run.
func (d *dispatch) invalidOutcome(err error) job.Outcome {
	return job.Outcome{Job: d.Job, N: d.N, Status: job.Error, Final: true, Fault: &job.Fault{Message: err.Error(), Type: job.FaultInvalid}}
}

// declinedOutcome returns the outcome that gives back a dispatch which was not
// started.
func (d *dispatch) declinedOutcome(reason string) job.Outcome {
	return job.Outcome{Job: d.Job, N: d.N, Status: job.Declined, Fault: &job.Fault{Message: reason}}
}

// recalledOutcome returns the outcome of a dispatch that was recalled before it was
// started.
func (d *dispatch) recalledOutcome(reason job.RecallReason) job.Outcome {
	o := d.declinedOutcome("recalled before it was started: " + string(reason))
	if reason == job.RecallCancelled || reason == job.RecallQueueGone {
		o.Status, o.Fault.Type = job.RunCancelled, job.FaultCancelled
	}
	return o
}
