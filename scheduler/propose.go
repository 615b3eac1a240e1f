package scheduler

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// propose commits one command for a caller: see [Scheduler.Propose].
func (t *tenure) propose(ctx context.Context, c ledger.Command) (ledger.Result, uint64, error) {
	type answer struct {
		result ledger.Result
		index  uint64
	}
	answered := make(chan answer, 1)
	submit := func() {
		if err := t.crons.setNextTick(c); err != nil {
			answered <- answer{ledger.Result{Err: err}, 0}
			return
		}
		t.loop.submit(c, func(r ledger.Result, index uint64) {
			t.followCommand(c, r, index)
			answered <- answer{r, index}
		})
	}
	select {
	case t.loop.inbox <- submit:
	case <-t.loop.done:
		return ledger.Result{}, 0, ErrNotAuthority
	case <-ctx.Done():
		return ledger.Result{}, 0, ctx.Err()
	}
	select {
	case a := <-answered:
		return a.result, a.index, nil
	case <-t.loop.done:
		return ledger.Result{}, 0, ErrCommitUnknown
	case <-ctx.Done():
		return ledger.Result{}, 0, ctx.Err()
	}
}

// followCommand applies the effects of a caller's committed command on running
// dispatches, cron entries and replays.
func (t *tenure) followCommand(c ledger.Command, r ledger.Result, index uint64) {
	t.crons.noteCommand(c)
	if _, ok := c.(*ledger.RequestReplay); ok {
		signal(t.replayer.wake)
	}
	if r.Err != nil || r.State != job.Active {
		return
	}
	switch c := c.(type) {
	case *ledger.CancelJob:
		reason := job.RecallCancelled
		if c.QueueGone {
			reason = job.RecallQueueGone
		}
		t.dispatches.recall(c.Job, reason)
	case *ledger.MoveDispatch:
		t.dispatches.followMove(c, index)
	}
}
