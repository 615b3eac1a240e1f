package operations

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/server/deadletters"
)

// Runner carries out the operations of the ledger while this node holds the authority. All
// fields but Rand are required.
type Runner struct {
	Ledger  Ledger
	Find    Finder
	Propose func(context.Context, ledger.Command) (ledger.Result, uint64, error) // fails with [scheduler.ErrNotAuthority] elsewhere, as [scheduler.Scheduler.Propose]
	Restore func(context.Context, []job.View) (copies map[job.ID]uint64, gone map[job.ID]error, err error)
	Letters Letters
	Log     *slog.Logger

	// Rand returns a random number in [0, below); nil: math/rand's. The simulation replays pauses
	// with its own.
	Rand func(below int64) int64
}

// Ledger is the local ledger and the notification of its changes.
type Ledger interface {
	View(func(*ledger.Ledger))
	Applied() (index uint64, changed <-chan struct{})
}

// Letters creates jobs from dead letters, as [deadletters.Server].
type Letters interface {
	Create(context.Context, *deadletters.NewJob) (deadletters.Created, error)
	RemoveLetter(ctx context.Context, seq uint64) error
	RemoveNumbered(ctx context.Context, numbers []uint64) error
}

// Run carries out operations until ctx ends, which must be when the node no longer holds the
// authority. It waits for changes of the ledger.
func (r *Runner) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	turn := make(chan struct{}, 1) // held while a step is made, so that operations take turns
	ended := make(chan uint64)
	working := make(map[uint64]bool)
	for {
		_, changed := r.Ledger.Applied()
		for _, op := range r.operations() {
			if op.State != ledger.OperationRunning || working[op.Number] {
				continue
			}
			working[op.Number] = true
			group.Go(func() {
				w := &worker{Runner: r, number: op.Number, turn: turn, log: r.Log.With("operation", op.Number)}
				w.run(ctx)
				select {
				case ended <- op.Number:
				case <-ctx.Done():
				}
			})
		}
		select {
		case <-changed:
		case number := <-ended: // it may run again already
			delete(working, number)
		case <-ctx.Done():
			return
		}
	}
}

// operations returns the operations of the ledger.
func (r *Runner) operations() (all []*ledger.Operation) {
	r.Ledger.View(func(l *ledger.Ledger) { all = l.Operations() })
	return all
}

// worker carries out one operation.
type worker struct {
	*Runner
	number uint64
	turn   chan struct{}
	log    *slog.Logger

	query *query.Query
	next  time.Time // of the next step, by the rate
	pause backoff.Backoff
	moved int // how often in a row the records of a page were reclaimed while they were restored

	removal sync.WaitGroup // of the dead letters of the last step
}

// Bounds of steps.
const (
	maxPage      = ledger.MaxOperationJobs // of a step
	stepsPerSec  = 4                       // of an operation with a rate
	maxReclaimed = 5                       // times that a page's records are restored again
	minPause     = 100 * time.Millisecond
	maxPause     = 5 * time.Second // between attempts of a step
)

// run makes steps until the operation no longer runs or ctx ends.
func (w *worker) run(ctx context.Context) {
	defer w.removal.Wait()
	w.pause = backoff.Backoff{Base: minPause, Max: maxPause, Rand: w.Rand}
	for ctx.Err() == nil {
		op := w.operation()
		if op == nil || op.State != ledger.OperationRunning {
			return
		}
		if !w.await(ctx, time.Until(w.next), op) {
			continue // it has changed
		}
		matched, err := w.takeTurn(ctx, op)
		switch {
		case err == nil:
			w.pause.Reset()
			w.moved = 0
			if op.Rate > 0 {
				w.next = time.Now().Add(time.Duration(matched) * time.Second / time.Duration(op.Rate))
			}
		case errors.Is(err, scheduler.ErrNotAuthority): // not yet
			_ = backoff.Sleep(ctx, w.pause.Next())
		case errors.Is(err, ledger.ErrOperationMoved), errors.Is(err, ledger.ErrOperationStopped), errors.Is(err, ledger.ErrOperationReclaimed), ctx.Err() != nil:
		default:
			w.report(ctx, op, err)
			_ = backoff.Sleep(ctx, w.pause.Next())
		}
	}
}

// operation returns the operation as it is now, or nil.
func (w *worker) operation() (op *ledger.Operation) {
	w.Ledger.View(func(l *ledger.Ledger) { op = l.Operation(w.number) })
	return op
}

// await waits for a time, or until the operation differs from op, which it reports by false.
func (w *worker) await(ctx context.Context, wait time.Duration, op *ledger.Operation) bool {
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		_, changed := w.Ledger.Applied()
		if now := w.operation(); now == nil || now.State != op.State || now.Rate != op.Rate {
			w.next = time.Time{}
			return false
		}
		select {
		case <-changed:
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// takeTurn makes one step. An operation without a rate rests for as long as the step took, so
// that other work gets its share.
func (w *worker) takeTurn(ctx context.Context, op *ledger.Operation) (matched int, err error) {
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { <-w.turn }()
	began := time.Now()
	matched, err = w.step(ctx, op)
	if op.Rate == 0 {
		w.next = time.Now().Add(time.Since(began))
	}
	return matched, err
}

// step reads a page of jobs and carries out the operation on them. It returns how many jobs
// matched.
func (w *worker) step(ctx context.Context, op *ledger.Operation) (matched int, err error) {
	if err := w.mayStep(); err != nil {
		return 0, err
	}
	p, err := w.readPage(ctx, op)
	if err != nil {
		return 0, err
	}
	if err := w.restoreRecords(ctx, p); err != nil {
		return 0, err
	}
	created, err := w.createJobs(ctx, op, p)
	if err != nil {
		return 0, err
	}
	result, _, err := w.Propose(ctx, p.step)
	if err == nil {
		err = result.Err
	}
	if errors.Is(err, ledger.ErrOperationReclaimed) {
		w.moved++
	}
	if err != nil {
		return 0, err
	}
	w.removal.Wait()
	w.removal.Go(func() { w.removeLetters(ctx, p, created) }) // while the next step is prepared
	if result.Operation.State.Ended() {
		w.log.Info("operation done", "changed", result.Operation.Changed, "skipped", result.Operation.Skipped.Total(), "failed", result.Operation.Failed)
	}
	return p.matched(), nil
}

// mayStep returns an error while other work has precedence: history that is to be published.
func (w *worker) mayStep() (err error) {
	w.Ledger.View(func(l *ledger.Ledger) {
		if l.OutboxBytes() >= ledger.MaxOutbox/8 {
			err = &job.UnavailableError{Reason: "history that is to be published first"}
		}
	})
	return err
}

// readPage finds the jobs after the cursor.
func (w *worker) readPage(ctx context.Context, op *ledger.Operation) (p *page, err error) {
	if w.query == nil {
		if w.query, err = parse(op.Query, query.Options{}); err != nil { // all its times are absolute
			return nil, err
		}
	}
	size := maxPage
	if op.Rate > 0 {
		size = min(maxPage, max(1, int(op.Rate)/stepsPerSec))
	}
	found, err := w.Find.FindJobs(ctx, w.query, op.Cursor, size)
	if err != nil {
		return nil, err
	}
	if found.Lacking != nil && (usesForgotten(op.Action) || w.query.UsesLabels()) {
		return nil, found.Lacking
	}
	if found.Index < op.Index {
		return nil, &job.UnavailableError{Reason: "the index of jobs, which is behind the ledger"}
	}
	w.Ledger.View(func(l *ledger.Ledger) { p = newPage(l, op, w.query, &found) })
	return p, nil
}

// usesForgotten reports whether an action applies to jobs that only the index has.
func usesForgotten(a ledger.OperationAction) bool {
	return a == ledger.OperationRetry || a == ledger.OperationRequeue
}

// restoreRecords restores the records that jobs of the page need.
func (w *worker) restoreRecords(ctx context.Context, p *page) error {
	if len(p.restore) == 0 {
		return nil
	}
	copies, gone, err := w.Restore(ctx, p.restore)
	if err != nil {
		return err
	}
	if w.moved >= maxReclaimed {
		for i := range p.restore {
			gone[p.restore[i].ID] = job.ErrRecordReclaimed
		}
	}
	p.fail(gone)
	for i := range p.step.Jobs {
		j := &p.step.Jobs[i]
		j.Relocated = copies[j.Job]
	}
	return nil
}
