package agent

import "github.com/yardmaster-dev/yardmaster/job"

// maxPendingEvents is the maximum number of uncommitted worker events. Beyond it the
// oldest are dropped, which affects history only.
const maxPendingEvents = 10_000

// workerEventLog holds the worker events that are not committed, in order. It is
// guarded by the reporter's mu.
type workerEventLog struct {
	pending  []job.WorkerEvent
	first    uint64 // number of pending[0], from 1
	inFlight bool   // a report with events is in flight: only one at a time, to keep the order
}

// Stalled records that a worker of this node, identified by its channel, takes jobs
// and does not work. It may be called repeatedly: history records one event until
// the worker has recovered. It may be called with a target's locks held.
func (a *Agent) Stalled(worker, reason string) {
	a.reporter.addEvent(job.WorkerEvent{Worker: worker, Stalled: true, Detail: reason})
}

// Recovered records that a stalled worker works again or, with
// [job.RecoveredResumed], has reconnected. It may be called with a target's locks
// held.
func (a *Agent) Recovered(worker, recovery string) {
	a.reporter.addEvent(job.WorkerEvent{Worker: worker, Detail: recovery})
}

func (l *workerEventLog) add(e job.WorkerEvent) {
	if len(l.pending) == maxPendingEvents {
		l.pending = l.pending[1:]
		l.first++
	}
	l.pending = append(l.pending, e)
}

// due reports whether events are to be sent now.
func (l *workerEventLog) due() bool { return !l.inFlight && len(l.pending) > 0 }

// fill adds the events that are due to a report.
func (l *workerEventLog) fill(r *job.Report) {
	if l.due() {
		r.FirstWorkerEvent, r.WorkerEvents = l.first, l.pending[:min(len(l.pending), job.MaxWorkerEvents)]
		l.inFlight = true
	}
}

// reportDone records the result of sending report r: err is nil if r was acknowledged.
// Then its events are removed from the log; otherwise the next report contains them
// again.
func (l *workerEventLog) reportDone(r *job.Report, err error) {
	if len(r.WorkerEvents) == 0 {
		return
	}
	l.inFlight = false
	if next := r.FirstWorkerEvent + uint64(len(r.WorkerEvents)); err == nil && next > l.first {
		l.pending = l.pending[next-l.first:]
		l.first = next
	}
}
