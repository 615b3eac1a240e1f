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
		if d != nil && !r.Outdated(d.moveIndex) && d.recall(r.Reason) {
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

// Adopt adds a running dispatch that its worker has brought from another node. It
// returns false if this node has no lease, or has the dispatch and it is ending or
// recalled. It may be called with a target's locks held.
func (a *Agent) Adopt(asg job.Assignment) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := asg.DispatchID()
	if d := a.table.live[k]; d != nil {
		d.moveIndex = max(d.moveIndex, asg.MoveIndex)
		return d.phase == running && d.recallReason == ""
	}
	if !a.lease.canWork() {
		return false
	}
	a.table.add(&dispatch{DispatchID: k, phase: running, target: a.targets[asg.Kind], moveIndex: asg.MoveIndex})
	return true
}
