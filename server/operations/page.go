package operations

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// way is how an action is carried out on a job.
type way uint8

const (
	notAtAll way = iota
	inLedger     // by the step
	asNewJob     // a new job is created from its dead letter
)

// plan is what an operation does to a job.
type plan struct {
	way    way
	why    ledger.SkipReason // notAtAll: the reason
	letter uint64            // inLedger: number of the dead letter that is removed after the step; 0: none
}

// planFor returns what an operation does to a job, of which kept reports whether the ledger has it.
func planFor(s *ledger.OperationSettings, d *job.Document, kept bool) plan {
	switch s.Action {
	case ledger.OperationCancel:
		if d.State.Ended() || !kept {
			return plan{why: ledger.SkipEnded}
		}
		return plan{way: inLedger}
	case ledger.OperationRemove:
		switch {
		case !kept:
			return plan{why: ledger.SkipForgotten}
		case d.State == job.Active:
			return plan{why: ledger.SkipActive}
		}
		return plan{way: inLedger}
	case ledger.OperationRequeue:
		return planRequeue(s, d, kept)
	}
	switch {
	case !d.State.Ended():
		return plan{why: ledger.SkipNotEnded}
	case d.State == job.Completed:
		return plan{why: ledger.SkipCompleted}
	case kept:
		return plan{way: inLedger}
	case d.State != job.Failed:
		return plan{why: ledger.SkipForgotten}
	case d.DeadLetter == 0:
		return plan{why: ledger.SkipNoLetter}
	}
	return plan{way: asNewJob}
}

// planRequeue is planFor for the dead letters of failed jobs. A job that gets another queue or other
// params, and one that the ledger has refused to take or has forgotten, becomes a new job.
func planRequeue(s *ledger.OperationSettings, d *job.Document, kept bool) plan {
	rejected := d.Attempts == 0 && d.Fault != nil && d.Fault.Type == job.FaultRejected
	switch {
	case d.State != job.Failed:
		return plan{why: ledger.SkipNotFailed}
	case d.DeadLetter == 0:
		return plan{why: ledger.SkipNoLetter}
	case kept && !rejected && len(s.Params) == 0 && (s.To == "" || s.To == d.Queue):
		return plan{way: inLedger, letter: d.DeadLetter}
	}
	return plan{way: asNewJob}
}

// present returns a job as it is now, by the ledger if that has the job, which kept reports, with the labels of
// the document. ok is false if the job was removed, or the document is that of an earlier job with its id.
func present(l *ledger.Ledger, d *job.Document) (now *job.Document, kept, ok bool) {
	stored, kept := l.Document(d.ID)
	switch {
	case !kept:
		return d, false, !l.Removed(d.ID)
	case !stored.Created.Equal(d.Created):
		return d, false, false
	}
	stored.SetLabels(d.Labels())
	return &stored, true, true
}

// page is what is to be done with some jobs.
type page struct {
	step    *ledger.StepOperation
	restore []job.View      // jobs of the step whose records must be restored before
	create  []*job.Document // jobs that are created from dead letters before the step
	letters []letter        // to be removed after the step, of the jobs that it has changed
}

// letter is a dead letter of the dispatch n of a job.
type letter struct {
	job    job.ID
	n      uint32
	number uint64
}

// newPage returns what an operation does with the jobs that the index has found after its cursor.
func newPage(l *ledger.Ledger, op *ledger.Operation, q *query.Query, found *ledger.FoundJobs) *page {
	p := &page{step: &ledger.StepOperation{Number: op.Number, From: op.Cursor, To: op.Cursor, AsOf: l.Index(), Done: !found.More}}
	for _, d := range found.Documents {
		if d.Created.After(op.Until) {
			p.step.Done = true
			break
		}
		p.step.To = placeOf(d)
		p.add(l, op, q, d)
	}
	if !p.step.Done && found.Next.Compare(p.step.To) > 0 { // the index has passed over other jobs
		p.step.To = found.Next
	}
	return p
}

// add adds a job that matched when it was found. It skips a job that does not match any more, and a job that
// ended after the operation began and did not match before its end.
func (p *page) add(l *ledger.Ledger, op *ledger.Operation, q *query.Query, d *job.Document) {
	now, kept, ok := present(l, d)
	switch {
	case !ok && l.Removed(d.ID):
		p.step.Counts.Skipped.Removed++
		return
	case !ok:
		p.step.Counts.Skipped.Forgotten++
		return
	case !q.Match(now) || now.Ended.After(op.Started) && matchingStates(q, now) == 0:
		p.step.Counts.Skipped.Changed++
		return
	}
	todo := planFor(&op.OperationSettings, now, kept)
	switch todo.way {
	case notAtAll:
		p.step.Counts.Skipped.Count(todo.why)
	case asNewJob:
		p.create = append(p.create, now)
	default:
		if todo.letter != 0 {
			p.letters = append(p.letters, letter{now.ID, now.Dispatches, todo.letter})
		}
		p.step.Jobs = append(p.step.Jobs, ledger.OperationJob{Job: now.ID, N: now.Dispatches, State: now.State, Also: alsoMatches(q, now)})
		retries := op.Action == ledger.OperationRetry || op.Action == ledger.OperationRequeue
		if retries && l.RetryNeedsRecord(now.ID) {
			view, _, _ := l.Find(now.ID)
			p.restore = append(p.restore, view)
		}
	}
}

// alsoMatches returns the states that a job which has not ended may have by the time of the step,
// such as once its delay is over, and in which it matches, too.
func alsoMatches(q *query.Query, d *job.Document) (states ledger.States) {
	if d.State.Ended() {
		return states
	}
	return matchingStates(q, d)
}

// matchingStates returns the states, among those before the end, in which the job would match.
func matchingStates(q *query.Query, d *job.Document) (states ledger.States) {
	for _, state := range []job.State{job.Waiting, job.Delayed, job.Active} {
		other := *d
		other.State, other.Ended = state, time.Time{}
		if q.Match(&other) {
			states.Add(state)
		}
	}
	return states
}

// matched returns the number of jobs of the page that match, once new jobs are created and counted.
func (p *page) matched() int { return len(p.step.Jobs) + int(p.step.Counts.Matched()) }

// fail takes jobs out of the step that cannot be changed, with the reasons.
func (p *page) fail(failures map[job.ID]error) {
	if len(failures) == 0 {
		return
	}
	var rest []ledger.OperationJob
	for _, j := range p.step.Jobs {
		if err := failures[j.Job]; err != nil {
			p.count(j.Job, err)
			continue
		}
		rest = append(rest, j)
	}
	p.step.Jobs = rest
}

// count counts a job that cannot be changed.
func (p *page) count(id job.ID, err error) {
	p.step.Counts.Failed++
	if len(p.step.Failures) < ledger.MaxOperationFailures {
		p.step.Failures = append(p.step.Failures, ledger.OperationFailure{Job: id, Text: job.CutText(err.Error(), ledger.MaxText)})
	}
}
