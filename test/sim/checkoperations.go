package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// operationChecker checks the operations of the ledgers by the events of what they have done.
type operationChecker struct {
	sim *simulation
	all []*checkedOperation // by number
}

// checkedOperation is an operation by its events, and as the ledger had it after the last entry.
type checkedOperation struct {
	number  uint64
	kind    *operationKind
	state   ledger.OperationState
	changed map[job.ID]bool
	first   map[job.ID]bool      // jobs that matched at the start
	due     map[job.ID]time.Time // those of them that have matched since and are not changed, with when they ended
	ended   bool                 // after the last entry
	epoch   uint64               // of the last step
	cursor  ledger.JobPlace
	counts  ledger.OperationCounts
}

// open returns the operation that has not ended, or nil.
func (c *operationChecker) open() *checkedOperation {
	if n := len(c.all); n > 0 && !c.all[n-1].state.Ended() {
		return c.all[n-1]
	}
	return nil
}

// onAct records an act on an operation. Of an act of an operation on a job it checks that the
// operation runs, that the job matched at its start, as far as that can be known of a job that has not ended, and
// that it has not changed the job before, and returns the operation.
func (c *operationChecker) onAct(e *ledger.Event) *checkedOperation {
	var number uint64
	if e.Job.IsZero() {
		c.onOperation(e)
		return nil
	}
	if _, err := fmt.Sscanf(e.Extra.By.Reason, "operation %d", &number); err != nil {
		return nil
	}
	op := c.all[number-1]
	switch {
	case op.state != ledger.OperationRunning:
		c.sim.fail("operation %d is %s, and changes job %s", number, op.state, e.Job)
	case op.changed[e.Job]:
		c.sim.fail("operation %d changes job %s twice", number, e.Job)
	case op.kind.ended && !op.first[e.Job]:
		c.sim.fail("operation %d changes job %s, which did not match at its start", number, e.Job)
	default:
		op.changed[e.Job] = true
		c.sim.report.Operated++
	}
	return op
}

// onOperation records an act on an operation.
func (c *operationChecker) onOperation(e *ledger.Event) {
	state, ok := map[string]ledger.OperationState{
		"operation.start": ledger.OperationRunning, "operation.pause": ledger.OperationPaused,
		"operation.resume": ledger.OperationRunning, "operation.cancel": ledger.OperationCancelled,
	}[e.A]
	if !ok {
		return
	}
	var number uint64
	if _, err := fmt.Sscan(e.Extra.C, &number); err != nil {
		c.sim.fail("the event %s does not name an operation: %s", e.A, e.Extra.C)
		return
	}
	if e.A == "operation.start" {
		c.all = append(c.all, &checkedOperation{number: number, changed: map[job.ID]bool{}})
	}
	op := c.all[number-1]
	if op.state.Ended() {
		c.sim.fail("%s of operation %d, which is %s", e.A, number, op.state)
	}
	op.state = state
}

// check compares the operations of a ledger with what they have done.
func (c *operationChecker) check(l *ledger.Ledger) {
	for _, op := range l.Operations() {
		checked := c.all[op.Number-1]
		if checked.kind == nil || l.Now().Equal(op.Started) {
			checked.begin(l, op)
		}
		ends := op.State == ledger.OperationDone && checked.state == ledger.OperationRunning
		if ends {
			checked.state = ledger.OperationDone
		}
		switch {
		case op.State != checked.state:
			c.sim.fail("operation %d is %s, want %s by the events", op.Number, op.State, checked.state)
		case op.Changed != uint64(len(checked.changed)):
			c.sim.fail("operation %d counts %d changed jobs, want %d by the events", op.Number, op.Changed, len(checked.changed))
		case op.Cursor.Compare(checked.cursor) < 0 || op.Skipped.Total() < checked.counts.Skipped.Total() || op.Failed < checked.counts.Failed:
			c.sim.fail("operation %d goes back", op.Number)
		case checked.ended && op.OperationCounts != checked.counts:
			c.sim.fail("operation %d goes on after its end", op.Number)
		}
		if op.Cursor != checked.cursor {
			if checked.epoch != 0 && checked.epoch != l.Authority().Epoch {
				c.sim.report.Inherited++
			}
			checked.epoch = l.Authority().Epoch
		}
		checked.ended, checked.cursor, checked.counts = op.State.Ended(), op.Cursor, op.OperationCounts
		checked.removeChanged(l)
		if ends {
			c.checkComplete(checked, op)
		}
	}
}

// checkComplete checks that an operation which is done has changed every job that has matched all
// the time, or names it among those that it could not change.
func (c *operationChecker) checkComplete(o *checkedOperation, op *ledger.Operation) {
	c.sim.report.Operations++
	for id := range o.due {
		failed := slices.ContainsFunc(op.Failures, func(f ledger.OperationFailure) bool { return f.Job == id })
		if !failed && len(op.Failures) < ledger.MaxOperationFailures {
			c.sim.fail("operation %d is done, and has not come to job %s", op.Number, id)
		}
	}
}

// begin collects the jobs that match at the start of an operation: also those that come to match in later entries
// of the same time, which the operation cannot tell from others.
func (o *checkedOperation) begin(l *ledger.Ledger, op *ledger.Operation) {
	isFirst := o.kind == nil
	if isFirst {
		o.first, o.due = map[job.ID]bool{}, map[job.ID]time.Time{}
		o.kind = &operationKinds[slices.IndexFunc(operationKinds, func(k operationKind) bool { return k.action == op.Action && k.query == op.Query })]
	}
	list := ledger.NewJobList(&ledger.JobQuery{Limit: 100 * jobsPerYard})
	for !list.Step(l) {
	}
	for _, found := range list.Page().Jobs {
		if o.kind.match(&found.View) && !found.View.Created.After(op.Until) {
			o.first[found.View.ID] = true
			if isFirst {
				o.due[found.View.ID] = found.View.Ended
			}
		}
	}
}

// removeChanged removes jobs from those that are due which do not match any more, or did not for a while: one
// entry may retry a job that has ended, and cancel it again.
func (o *checkedOperation) removeChanged(l *ledger.Ledger) {
	for id, ended := range o.due {
		view, _, ok := l.Find(id)
		if !ok || o.changed[id] || !o.kind.match(&view) || o.kind.ended && !view.Ended.Equal(ended) {
			delete(o.due, id)
		}
	}
}

// problems returns the operation that has not ended, as text.
func (c *operationChecker) problems() (all []string) {
	if op := c.open(); op != nil {
		all = append(all, fmt.Sprintf("operation %d is %s", op.number, op.state))
	}
	return all
}
