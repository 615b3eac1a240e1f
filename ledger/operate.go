package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/job"
)

// StartOperation starts an operation. The proposer has checked the query and the params.
type StartOperation struct {
	Settings OperationSettings
	Asked
}

// ChangeOperation changes an operation that has not ended: it pauses, resumes or cancels it, or
// changes its rate.
type ChangeOperation struct {
	Number uint64
	State  OperationState // running, paused or cancelled; 0: it stays as it is
	Rate   *uint32        // nil: it stays as it is
	Asked
}

// StepOperation moves the cursor of a running operation from From to To, and carries out the
// operation on the jobs between the two. Effect and progress are one command: a step that is
// repeated, or that another node has made, finds another cursor and is refused.
type StepOperation struct {
	Number   uint64
	From, To JobPlace
	Jobs     []OperationJob
	Counts   OperationCounts    // jobs between From and To that are not in Jobs
	Failures []OperationFailure // of those, some that failed
	AsOf     uint64             // see [RetryJob.AsOf]
	Done     bool               // no jobs follow To
	Waiting  string             // From and To are the same: what the next step waits for
}

// OperationJob is a job of a step as the proposer found it. If it has another state or dispatch
// by now, it is skipped, unless the state is one of Also.
type OperationJob struct {
	Job       job.ID
	N         uint32
	State     job.State
	Relocated uint64 // see [RetryJob.Relocated]
	Also      States // other states in which the query matches it: then it is changed under any dispatch
}

// States is a set of states of jobs, with a bit for each.
type States uint16

// Add adds a state.
func (s *States) Add(state job.State) { *s |= 1 << state }

// Has reports whether a state is in the set.
func (s States) Has(state job.State) bool { return s&(1<<state) != 0 }

func (*StartOperation) Kind() Kind  { return KindStartOperation }
func (*ChangeOperation) Kind() Kind { return KindChangeOperation }
func (*StepOperation) Kind() Kind   { return KindStepOperation }

// apply returns the operation with the key of the settings if there is one.
func (c *StartOperation) apply(l *Ledger) Result {
	s := &c.Settings
	unended := 0
	for _, op := range l.operations.all {
		if s.Key != "" && s.Key == op.Key {
			return Result{Operation: op}
		}
		if !op.State.Ended() {
			unended++
		}
	}
	switch {
	case !s.Action.valid():
		return Result{Err: &job.InvalidError{Reason: "an operation needs an action: retry, cancel, remove or requeue"}}
	case s.Action != OperationRequeue && (len(s.Params) > 0 || s.To != ""):
		return Result{Err: &job.InvalidError{Reason: "only an operation that requeues can change params or the queue"}}
	case s.Rate > MaxOperationRate:
		return Result{Err: &job.InvalidError{Reason: fmt.Sprintf("rate is %d; must be 0 to %d jobs per second", s.Rate, MaxOperationRate)}}
	case unended >= MaxOperations:
		return Result{Err: ErrTooManyOperations}
	}
	l.operations.last++
	op := &Operation{
		OperationSettings: *s, Number: l.operations.last, Index: l.index, By: c.By, State: OperationRunning, Started: l.Now(), Updated: l.Now(),
	}
	op.By.Name, op.By.Reason = job.CutText(c.By.Name, MaxText), job.CutText(c.By.Reason, MaxKeptReason)
	l.operations.put(op)
	l.act(c.By, "operation.start", Event{}, job.CutText(fmt.Sprintf("%d %s %s", op.Number, s.Action, s.Query), MaxReason), nil)
	return Result{Operation: op}
}

// apply succeeds without a change if the operation is already as requested.
func (c *ChangeOperation) apply(l *Ledger) Result {
	old := l.operations.Operation(c.Number)
	switch {
	case old == nil:
		return Result{Err: ErrOperationNotFound}
	case c.State == OperationDone || c.State != 0 && !c.State.valid():
		return Result{Err: &job.InvalidError{Reason: "an operation can be running, paused or cancelled"}}
	case c.Rate != nil && *c.Rate > MaxOperationRate:
		return Result{Err: &job.InvalidError{Reason: fmt.Sprintf("rate is %d; must be 0 to %d jobs per second", *c.Rate, MaxOperationRate)}}
	case old.State == OperationCancelled && c.State == OperationCancelled && c.Rate == nil:
		return Result{Operation: old}
	case old.State.Ended():
		return Result{Err: fmt.Errorf("%w: it is %s", ErrOperationEnded, old.State)}
	}
	next := *old
	next.Updated = l.Now()
	if c.Rate != nil && *c.Rate != old.Rate {
		next.Rate = *c.Rate
		l.act(c.By, "operation.set", Event{}, fmt.Sprintf("%d rate=%d", c.Number, *c.Rate), nil)
	}
	if c.State != 0 && c.State != old.State {
		next.State, next.Waiting = c.State, ""
		if c.State.Ended() {
			next.Ended = l.Now()
		}
		action := map[OperationState]string{OperationRunning: "operation.resume", OperationPaused: "operation.pause", OperationCancelled: "operation.cancel"}[c.State]
		l.act(c.By, action, Event{}, fmt.Sprint(c.Number), nil)
	}
	if next.Rate == old.Rate && next.State == old.State {
		return Result{Operation: old}
	}
	l.operations.put(&next)
	l.forgetOperations()
	return Result{Operation: &next}
}

// apply is refused, and changes nothing, if the operation does not run, if its cursor is not
// From, or if a job can only be retried after its record has been restored.
func (c *StepOperation) apply(l *Ledger) Result {
	old := l.operations.Operation(c.Number)
	switch {
	case old == nil:
		return Result{Err: ErrOperationNotFound}
	case old.State != OperationRunning:
		return Result{Err: fmt.Errorf("%w: it is %s", ErrOperationStopped, old.State)}
	case old.Cursor != c.From:
		return Result{Err: ErrOperationMoved}
	case len(c.Jobs) > MaxOperationJobs:
		return Result{Err: &job.InvalidError{Reason: fmt.Sprintf("a step has %d jobs; at most %d", len(c.Jobs), MaxOperationJobs)}}
	}
	for i := range c.Jobs {
		j := &c.Jobs[i]
		stored := j.find(l, old)
		if stored == nil || !old.retries() {
			continue
		}
		if _, err := l.retryPosition(stored, j.Relocated, c.AsOf); err != nil {
			return Result{Err: fmt.Errorf("job %s: %w", j.Job, ErrOperationReclaimed)}
		}
	}
	next := *old
	next.Updated, next.Waiting = l.Now(), strings.Clone(c.Waiting)
	next.Failures = slices.Clone(old.Failures)
	next.Cursor = c.To
	next.Add(c.Counts)
	for i := range c.Failures {
		next.addFailure(c.Failures[i].Job, c.Failures[i].Text)
	}
	result := Result{}
	for i := range c.Jobs {
		if recalled := next.change(l, &c.Jobs[i], c.AsOf); recalled {
			result.Recalled = append(result.Recalled, c.Jobs[i].Job)
		}
	}
	if c.Done {
		next.State, next.Ended, next.Waiting = OperationDone, l.Now(), ""
	}
	l.operations.put(&next)
	if c.Done {
		l.forgetOperations()
	}
	result.Operation = &next
	return result
}

// find returns the job, or nil if it is not as the proposer found it, or is a later job of its id.
func (j *OperationJob) find(l *Ledger, o *Operation) *storedJob {
	stored := l.jobs.find(j.Job)
	switch {
	case stored == nil || stored.accepted > o.Until.UnixNano():
		return nil
	case stored.n == j.N && stored.state == j.State, j.Also.Has(stored.state):
		return stored
	}
	return nil
}

// RetryNeedsRecord reports whether the record of an ended job must be restored before the job is
// retried, see [RetryJob.Relocated]. It must not be called on a copy.
func (in *ingestion) RetryNeedsRecord(id job.ID) bool {
	stored := in.jobs.find(id)
	if stored == nil {
		return false
	}
	_, err := in.retryPosition(stored, 0, 0)
	return err != nil
}

// retries reports whether the operation makes jobs of the ledger wait again.
func (o *Operation) retries() bool { return o.Action == OperationRetry || o.Action == OperationRequeue }

// Actor returns the actor of the change of one job.
func (o *Operation) Actor() Actor {
	by := o.By
	if by.Door == "" {
		return by
	}
	reason := fmt.Sprintf("operation %d", o.Number)
	if by.Reason != "" {
		reason += ": " + by.Reason
	}
	by.Reason = reason
	return by
}

// change carries out the operation on a job and counts it. It reports whether the job is active
// and to be recalled.
func (o *Operation) change(l *Ledger, j *OperationJob, asOf uint64) (recalled bool) {
	if j.find(l, o) == nil {
		switch {
		case l.jobs.find(j.Job) != nil:
			o.Skipped.Changed++
		case l.Removed(j.Job):
			o.Skipped.Removed++
		default:
			o.Skipped.Forgotten++
		}
		return false
	}
	by := Asked{By: o.Actor()}
	var result Result
	switch o.Action {
	case OperationCancel:
		result = (&CancelJob{Job: j.Job, Reason: by.By.Reason, Asked: by}).apply(l)
		recalled = result.Err == nil && result.State == job.Active
	case OperationRemove:
		result = (&RemoveJob{Job: j.Job, Asked: by}).apply(l)
	default:
		result = (&RetryJob{Job: j.Job, N: j.N, KeepAttempts: o.KeepAttempts, Relocated: j.Relocated, AsOf: asOf, Asked: by}).apply(l)
	}
	switch err := result.Err; {
	case err == nil:
		o.Changed++
	case errors.Is(err, job.ErrNotFailed):
		o.Skipped.NotFailed++
	case errors.Is(err, job.ErrJobEnded):
		o.Skipped.Ended++
	case errors.Is(err, job.ErrNotRemovable):
		o.Skipped.Active++
	default:
		o.Failed++
		o.addFailure(j.Job, err.Error())
	}
	return recalled
}

// addFailure keeps the error of a job if it is one of the first.
func (o *Operation) addFailure(id job.ID, text string) {
	if len(o.Failures) < MaxOperationFailures {
		o.Failures = append(o.Failures, OperationFailure{Job: id, Text: strings.Clone(job.CutText(text, maxOperationText))})
	}
}
