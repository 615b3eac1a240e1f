package ledgerwait

import (
	"context"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// JobEnd blocks until a job has ended or ctx ends. at is the position of the job's
// record if it may not be ingested yet, or zero. It returns [job.ErrJobNotFound] if the
// ledger has no such job and will not get it.
func (w *Waiters) JobEnd(ctx context.Context, id job.ID, at job.Position) error {
	missing := false
	err := w.Wait(ctx, func(l *ledger.Ledger) bool {
		state, known := l.State(id)
		missing = !known && (at.Seq == 0 || l.Ingested(at))
		return missing || known && state.Ended()
	})
	if err == nil && missing {
		err = fmt.Errorf("%s: %w", id, job.ErrJobNotFound)
	}
	return err
}
