package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/deadletters"
	"github.com/yardmaster-dev/yardmaster/server/operations"
)

// operationKind is an action on jobs that match a query.
type operationKind struct {
	action ledger.OperationAction
	query  string
	ended  bool                 // only jobs that have ended match
	match  func(*job.View) bool // reports whether the action changes a job
}

// operationKinds are the operations that callers start. Each has a query of its own.
var operationKinds = []operationKind{
	{ledger.OperationRetry, "state:failed,cancelled", true, func(v *job.View) bool {
		return v.State == job.Cancelled || v.State == job.Failed && !isRejected(v)
	}},
	{ledger.OperationCancel, "queue:mail state:waiting,delayed", false, func(v *job.View) bool {
		return v.Queue == "mail" && (v.State == job.Waiting || v.State == job.Delayed)
	}},
	{ledger.OperationCancel, "queue:narrow", false, func(v *job.View) bool {
		return v.Queue == "narrow" && !v.State.Ended() // whatever it runs, fails and waits meanwhile
	}},
	{ledger.OperationRemove, "queue:narrow state:completed", true, func(v *job.View) bool {
		return v.Queue == "narrow" && v.State == job.Completed
	}},
	{ledger.OperationRequeue, "queue:mail state:failed", true, func(v *job.View) bool {
		return v.Queue == "mail" && v.State == job.Failed && v.DeadLetter != 0 && !isRejected(v)
	}},
}

// isRejected reports whether the ledger has refused to take a job, which is then neither retried
// nor requeued as it is.
func isRejected(v *job.View) bool {
	return v.Attempts == 0 && v.Fault != nil && v.Fault.Type == job.FaultRejected
}

// runOperations carries out operations as the product does while a process leads.
func (proc *process) runOperations(ctx context.Context) {
	runner := operations.Runner{
		Ledger: proc, Find: finder{proc}, Propose: proc.sched.Propose, Letters: noLetters{}, Log: proc.sim.log,
		Restore: func(ctx context.Context, views []job.View) (map[job.ID]uint64, map[job.ID]error, error) {
			copies := map[job.ID]uint64{}
			for i := range views {
				seq, err := proc.sim.callers.restoreRecord(ctx, proc, views[i].ID)
				if err != nil {
					return nil, nil, err
				}
				copies[views[i].ID] = seq
			}
			return copies, map[job.ID]error{}, nil
		},
		Rand: func(below int64) int64 { return int64(proc.sim.random("operation "+proc.id) % uint64(below)) },
	}
	runner.Run(ctx)
}

// noLetters is a stream of dead letters that has none.
type noLetters struct{}

func (noLetters) Create(context.Context, *deadletters.NewJob) (deadletters.Created, error) {
	return deadletters.Created{}, deadletters.ErrLetterGone
}
func (noLetters) RemoveLetter(context.Context, uint64) error     { return nil }
func (noLetters) RemoveNumbered(context.Context, []uint64) error { return nil }

// asked names the caller of commands about operations, so that what these do is in the history.
var asked = ledger.Asked{By: ledger.Actor{Name: "ann", Door: ledger.DoorHTTP}}

// operate starts an operation, or changes the one that has not ended, and schedules the next call.
func (p *callers) operate() {
	if !p.faultsActive() {
		return
	}
	p.after(p.duration("next operation", 200*time.Millisecond, 1200*time.Millisecond), "operate", p.operate)
	if proc := p.target("operate"); proc.up {
		p.do(proc, p.operationCommand())
	}
}

// operationCommand returns a command that starts or changes an operation. The key of a start lets
// at most one operation exist that has not ended, so that runs can be repeated: workers of several
// operations take turns in any order.
func (p *callers) operationCommand() ledger.Command {
	op := p.checker.operations.open()
	if op == nil {
		kind := p.intn("operation", len(operationKinds))
		return &ledger.StartOperation{Asked: asked, Settings: ledger.OperationSettings{
			Key: fmt.Sprint("after ", len(p.checker.operations.all)), Action: operationKinds[kind].action, Query: operationKinds[kind].query,
			Until: time.Now().UTC(), Rate: uint32(p.intn("rate", 4) * 3), KeepAttempts: p.chance("keep attempts", 300),
		}}
	}
	change := &ledger.ChangeOperation{Number: op.number, Asked: asked}
	switch n := p.intn("change operation", 100); {
	case n < 30:
		change.State = ledger.OperationPaused
	case n < 75:
		change.State = ledger.OperationRunning
	case n < 85:
		change.State = ledger.OperationCancelled
	default:
		change.Rate = new(uint32(p.intn("rate", 4) * 3))
	}
	return change
}
