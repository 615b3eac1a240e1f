package agent

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Recall stops a dispatch on behalf of the authority. It ignores a recall of a
// dispatch that this node does not have or that has ended, of a replaced authority,
// and one that is outdated because the dispatch has since moved back here.
func (a *Agent) Recall(r job.Recall) {
	a.mu.Lock()
	var running *dispatch
	if a.observeEpoch(r.Epoch) {
		d := a.table.live[r.DispatchID()]
		if d != nil && !r.Outdated(d.moveIndex) && d.recall(r.Reason, r.Message) {
			running = d
		}
	}
	a.mu.Unlock()
	if running != nil {
		a.stop(running, r)
	}
}

// stop has a dispatch's target stop it. A dispatch that a worker has resumed at
// another node ends here without an outcome. It is removed from the table first,
// because the worker may bring it back as soon as the target has dropped it.
func (a *Agent) stop(d *dispatch, r job.Recall) {
	if r.Reason == job.RecallSuperseded && d.target.Kind() == job.Overhop {
		a.mu.Lock()
		a.table.markMoved(d, time.Now())
		a.signalChanged()
		a.mu.Unlock()
	}
	d.target.Stop(r)
}

// Adopt takes over a running dispatch whose worker was connected to another node and is
// now connected to this one. It reports whether the worker may continue the job: a
// dispatch that this node has already must be running and not recalled; for any other,
// the node needs a lease. Adopt may be called with a target's locks held.
func (a *Agent) Adopt(assignment job.Assignment) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := assignment.DispatchID()
	if d := a.table.live[id]; d != nil {
		d.moveIndex = max(d.moveIndex, assignment.MoveIndex)
		return d.phase == running && d.recallReason == ""
	}
	if !a.lease.canWork() {
		return false
	}
	a.table.add(&dispatch{
		DispatchID: id, phase: running, target: a.targets[assignment.Kind], moveIndex: assignment.MoveIndex,
	})
	return true
}
