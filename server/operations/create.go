package operations

import (
	"context"
	"errors"
	"sync"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/deadletters"
)

// maxParallelJobs is how many jobs are created, or letters removed, at the same time. Each waits for several
// commits, which those of the others share.
const maxParallelJobs = 256

// createJobs creates new jobs of the page's dead letters and counts them. It returns the
// sequences of the letters. An error passes; if the page is read again, no second job is created.
func (w *worker) createJobs(ctx context.Context, op *ledger.Operation, p *page) (letters []uint64, err error) {
	ctx = cluster.WithActor(ctx, op.Actor)
	var mu sync.Mutex
	group, groupCtx := crash.WithContext(ctx)
	group.SetLimit(maxParallelJobs)
	for _, d := range p.create {
		group.Go(func() error {
			created, err := w.Letters.Create(groupCtx, &deadletters.NewJob{
				Job: d.ID, DeadLetter: d.DeadLetter, To: op.To, KeepAttempts: op.KeepAttempts, Params: op.Params,
			})
			if passes(err) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, deadletters.ErrLetterGone): // it was requeued or removed
				p.step.Counts.Skipped.LetterGone++
				return nil
			case err != nil:
				p.count(d.ID, err)
				return nil
			case created.Before && w.createdBefore(created.ID, op):
				p.step.Counts.Skipped.Requeued++
			default:
				p.step.Counts.Changed++
			}
			letters = append(letters, created.Letter)
			return nil
		})
	}
	return letters, group.Wait()
}

// createdBefore reports whether a job is known to have been created before the operation
// began. Else the operation itself created it, in a step that was not committed.
func (w *worker) createdBefore(id job.ID, op *ledger.Operation) (before bool) {
	w.Ledger.View(func(l *ledger.Ledger) {
		view, _, kept := l.Find(id)
		_, known := l.Known(id)
		before = kept && view.Created.Before(op.Started) || known && !kept
	})
	return before
}

// passes reports whether an error is no property of the job: it passes.
func passes(err error) bool {
	_, unavailable := errors.AsType[*job.UnavailableError](err)
	return unavailable || errors.Is(err, streams.ErrUnknown) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// removeLetters removes the dead letters of jobs that run again, after the step. Letters that
// stay because the node dies are removed when they are requeued again, which does nothing else.
func (w *worker) removeLetters(ctx context.Context, p *page, created []uint64) {
	var retried []uint64
	w.Ledger.View(func(l *ledger.Ledger) {
		for _, letter := range p.letters {
			if view, _, kept := l.Find(letter.job); kept && view.Dispatches > letter.n {
				retried = append(retried, letter.number)
			}
		}
	})
	group, ctx := crash.WithContext(ctx)
	group.SetLimit(maxParallelJobs)
	for _, seq := range created {
		group.Go(func() error { return w.Letters.RemoveLetter(ctx, seq) })
	}
	group.Go(func() error { return w.Letters.RemoveNumbered(ctx, retried) })
	if err := group.Wait(); err != nil {
		w.log.Warn("dead letters of requeued jobs not removed", "err", err)
	}
}

// report records in the operation what its next step waits for.
func (w *worker) report(ctx context.Context, op *ledger.Operation, cause error) {
	text := cause.Error()
	if unavailable, ok := errors.AsType[*job.UnavailableError](cause); ok {
		text = unavailable.Reason
	}
	text = job.CutText(text, ledger.MaxText)
	now := w.operation()
	if now == nil || now.Waiting == text || now.Cursor != op.Cursor {
		return
	}
	w.log.Info("operation waits", "cause", text)
	result, _, err := w.Propose(ctx, &ledger.StepOperation{Number: op.Number, From: op.Cursor, To: op.Cursor, Waiting: text})
	if err = errors.Join(err, result.Err); err != nil && ctx.Err() == nil {
		w.log.Debug("waiting of an operation not recorded", "err", err)
	}
}
