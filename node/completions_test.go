package node

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// countingReader counts reads of the ledger.
type countingReader struct {
	*fakeLedger
	views atomic.Int64
}

func (l *countingReader) View(fn func(*ledger.Ledger)) {
	l.views.Add(1)
	l.fakeLedger.View(fn)
}

// All waiters get the result of their jobs, whether it came before or after their call,
// and one read per entry serves them all.
func TestCompletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &countingReader{fakeLedger: newFakeLedger()}
		c := newCompletions(f)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.run(ctx) }()
		ingest := func(seq uint64, id job.ID) {
			f.apply(&ledger.Ingest{Identity: "L0", From: seq - 1, To: seq, CreateQueues: true, Jobs: []job.Job{
				{ID: id, Queue: "mail", Position: job.Position{Seq: seq}, Accepted: time.Now()},
			}})
		}
		first, second, third := job.ID{1}, job.ID{2}, job.ID{3}
		ingest(1, first)

		const count = 500
		results := make(chan error, count)
		for range count - 1 {
			go func() { results <- c.await(t.Context(), first, job.Position{}) }()
		}
		go func() { results <- c.await(t.Context(), second, job.Position{Seq: 2}) }() // not ingested yet
		synctest.Wait()
		f.views.Store(0)
		ingest(2, second)
		ingest(3, third)
		synctest.Wait()
		if views := f.views.Load(); views > 2 || len(results) > 0 {
			t.Errorf("%d waiters caused %d reads for two entries, and %d of them have a result", count, views, len(results))
		}
		f.apply(&ledger.CancelJob{Job: first, Reason: "cancelled"})
		f.apply(&ledger.CancelJob{Job: second, Reason: "cancelled"})
		for range count {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if err := c.await(t.Context(), first, job.Position{}); err != nil {
			t.Errorf("a job that had ended: %v", err)
		}
		if err := c.await(t.Context(), job.ID{9}, job.Position{}); !errors.Is(err, job.ErrJobNotFound) {
			t.Errorf("an unknown job: %v", err)
		}
		go func() { results <- c.await(t.Context(), job.ID{9}, job.Position{Seq: 4}) }()
		synctest.Wait()
		ingest(4, job.ID{8})
		if err := <-results; !errors.Is(err, job.ErrJobNotFound) {
			t.Errorf("a record that became no job: %v", err)
		}

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.await(short, third, job.Position{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a job that has not ended: %v", err)
		}
		if len(c.waiters) > 0 {
			t.Errorf("%d waiters are left", len(c.waiters))
		}
		go func() { results <- c.await(t.Context(), third, job.Position{}) }()
		synctest.Wait()
		stop()
		for _, err := range []error{<-results, c.await(t.Context(), third, job.Position{})} {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("when the node stops: %v", err)
			}
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
