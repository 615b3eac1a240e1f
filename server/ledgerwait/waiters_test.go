package ledgerwait

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/fakeledger"
)

// countingReader counts reads of the ledger.
type countingReader struct {
	*fakeledger.Ledger
	views atomic.Int64
}

func (l *countingReader) View(fn func(*ledger.Ledger)) {
	l.views.Add(1)
	l.Ledger.View(fn)
}

// All waiters get the result of their jobs, whether it came before or after their call,
// and one read per entry serves them all.
func TestJobEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &countingReader{Ledger: fakeledger.New()}
		c := New(f, time.Hour)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		ingest := func(seq uint64, id job.ID) {
			f.Apply(&ledger.Ingest{Identity: "L0", From: seq - 1, To: seq, CreateQueues: true, Jobs: []job.Job{
				{ID: id, Queue: "mail", Position: job.Position{Seq: seq}, Accepted: time.Now()},
			}})
		}
		first, second, third := job.ID{1}, job.ID{2}, job.ID{3}
		ingest(1, first)

		const count = 500
		results := make(chan error, count)
		for range count - 1 {
			go func() { results <- c.JobEnd(t.Context(), first, job.Position{}) }()
		}
		go func() { results <- c.JobEnd(t.Context(), second, job.Position{Seq: 2}) }() // not ingested yet
		synctest.Wait()
		f.views.Store(0)
		ingest(2, second)
		ingest(3, third)
		synctest.Wait()
		if views := f.views.Load(); views > 2 || len(results) > 0 {
			t.Errorf("%d waiters caused %d reads for two entries, and %d of them have a result", count, views, len(results))
		}
		f.Apply(&ledger.CancelJob{Job: first, Reason: "cancelled"})
		f.Apply(&ledger.CancelJob{Job: second, Reason: "cancelled"})
		for range count {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if err := c.JobEnd(t.Context(), first, job.Position{}); err != nil {
			t.Errorf("a job that had ended: %v", err)
		}
		if err := c.JobEnd(t.Context(), job.ID{9}, job.Position{}); !errors.Is(err, job.ErrJobNotFound) {
			t.Errorf("an unknown job: %v", err)
		}
		go func() { results <- c.JobEnd(t.Context(), job.ID{9}, job.Position{Seq: 4}) }()
		synctest.Wait()
		ingest(4, job.ID{8})
		if err := <-results; !errors.Is(err, job.ErrJobNotFound) {
			t.Errorf("a record that became no job: %v", err)
		}

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.JobEnd(short, third, job.Position{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a job that has not ended: %v", err)
		}
		synctest.Wait()
		if len(c.waiting)+len(c.added) > 0 {
			t.Errorf("%d waiters are left", len(c.waiting)+len(c.added))
		}
		go func() { results <- c.JobEnd(t.Context(), third, job.Position{}) }()
		synctest.Wait()
		stop()
		for _, err := range []error{<-results, c.JobEnd(t.Context(), third, job.Position{})} {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("when the node stops: %v", err)
			}
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// slowReader is a ledger that calls during while it is being read.
type slowReader struct {
	*fakeledger.Ledger
	during func()
}

func (s *slowReader) View(fn func(*ledger.Ledger)) {
	s.Ledger.View(func(l *ledger.Ledger) {
		fn(l)
		s.during()
	})
}

// A caller can be added while answerReady reads the ledger, and is not lost.
func TestWaiters_AddedDuringCheck(t *testing.T) {
	s := &slowReader{Ledger: fakeledger.New()}
	r := New(s, time.Hour)
	never := func(*ledger.Ledger) func() { return nil }
	s.during = func() {
		asked := make(chan struct{})
		go func() {
			r.Async(never, func() {})
			close(asked)
		}()
		select {
		case <-asked:
		case <-time.After(5 * time.Second):
			t.Error("Async blocks while the ledger is being read")
		}
	}
	r.Async(never, func() {})
	if _, some := r.answerReady(1, time.Now()); !some || len(r.waiting)+len(r.added) != 2 {
		t.Errorf("waiting: %d", len(r.waiting)+len(r.added))
	}
}
