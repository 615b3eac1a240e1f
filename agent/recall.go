package agent

import (
	"time"

	"yardmaster/job"
)

// Recall stops a dispatch at the authority's word. One that is not in hand, or
// has ended, is ignored, and so are the word of an earlier authority and what was
// said of an earlier stay here: by now the worker has brought it back.
func (a *Agent) Recall(r job.Recall) {
	a.mu.Lock()
	var tell *dispatch
	if a.sees(r.Epoch) {
		d := a.table.live[key{r.Job, r.N}]
		if d != nil && (r.Moved == 0 || r.Moved > d.moved) && d.recall(r.Reason) {
			tell = d
		}
	}
	a.mu.Unlock()
	if tell != nil {
		a.stop(tell, r.Reason)
	}
}

// stop tells a dispatch's target. What a worker has taken to another node ends
// here without an outcome; it is forgotten first, because the worker may bring
// it back as soon as the target has let it go.
func (a *Agent) stop(d *dispatch, why job.RecallReason) {
	if why == job.RecallSuperseded && d.target.Kind() == job.Overhop {
		a.mu.Lock()
		a.table.leave(d, time.Now())
		a.left()
		a.mu.Unlock()
	}
	d.target.Stop(d.id, d.n, why)
}

// Adopt takes a running dispatch into hand that its worker has brought from
// another node; false if this node may not work now, or is ending it. It may
// be called with a target's locks held.
func (a *Agent) Adopt(o job.Assignment) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := key{o.Job, o.N}
	if d := a.table.live[k]; d != nil {
		d.moved = max(d.moved, o.Moved)
		return d.phase == running && d.recalled == ""
	}
	if !a.works() {
		return false
	}
	a.table.add(&dispatch{key: k, phase: running, target: a.targets[o.Kind], moved: o.Moved})
	return true
}
