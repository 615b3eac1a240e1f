package agent

import "yardmaster/job"

// mostNotes is how many notes wait for an authority. Beyond it the oldest are
// given up: history misses them, and nothing else does.
const mostNotes = 10_000

// notes are what is to be said of workers, in order, until it is committed.
// They are guarded by the agent's mu.
type notes struct {
	waiting []job.Note
	first   uint64 // number of waiting[0], from 1
	flying  bool   // a report with notes is on its way: one at a time, for the order
}

// Stalled notes that a worker of this node, by its channel, takes jobs and does
// not work. It may be said again: history tells it once, until the worker has
// recovered. It may be called with a target's locks held.
func (a *Agent) Stalled(worker, reason string) {
	a.note(job.Note{Worker: worker, Stalled: true, Detail: reason})
}

// Recovered notes that a stalled worker works again, or, with
// [job.RecoveredResumed], that one has come back. It may be called with a
// target's locks held.
func (a *Agent) Recovered(worker, recovery string) {
	a.note(job.Note{Worker: worker, Detail: recovery})
}

func (a *Agent) note(n job.Note) {
	a.mu.Lock()
	a.notes.add(n)
	a.mu.Unlock()
	notice(a.wake)
}

func (n *notes) add(note job.Note) {
	if len(n.waiting) == mostNotes {
		n.waiting = n.waiting[1:]
		n.first++
	}
	n.waiting = append(n.waiting, note)
}

// due tells that there are notes to send.
func (n *notes) due() bool { return !n.flying && len(n.waiting) > 0 }

// fill puts what is due into a report.
func (n *notes) fill(r *job.Report) {
	if n.due() {
		r.FirstNote, r.Notes = n.first, n.waiting[:min(len(n.waiting), job.MaxNotes)]
		n.flying = true
	}
}

// landed notes how a report went. Its notes are kept until one is answered.
func (n *notes) landed(r *job.Report, err error) {
	if len(r.Notes) == 0 {
		return
	}
	n.flying = false
	if next := r.FirstNote + uint64(len(r.Notes)); err == nil && next > n.first {
		n.waiting = n.waiting[next-n.first:]
		n.first = next
	}
}
