package node

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// looks counts who looks at the ledger.
type looks struct {
	*folded
	views atomic.Int64
}

func (l *looks) View(fn func(*ledger.Ledger)) {
	l.views.Add(1)
	l.folded.View(fn)
}

// All who wait hear what became of their jobs, of what has happened before and
// of what comes; and however many they are, one looks for them all.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &looks{folded: newFolded()}
		e := newEnds(f)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.run(ctx) }()
		fold := func(seq uint64, id job.ID) {
			f.apply(&ledger.Fold{Identity: "L0", From: seq - 1, To: seq, CreateQueues: true, Jobs: []job.Job{
				{ID: id, Queue: "mail", Position: job.Position{Seq: seq}, Accepted: time.Now()},
			}})
		}
		first, second, third := job.ID{1}, job.ID{2}, job.ID{3}
		fold(1, first)

		const many = 500
		said := make(chan error, many)
		for range many - 1 {
			go func() { said <- e.await(t.Context(), first, job.Position{}) }()
		}
		go func() { said <- e.await(t.Context(), second, job.Position{Seq: 2}) }() // not folded yet
		synctest.Wait()
		f.views.Store(0)
		fold(2, second)
		fold(3, third)
		synctest.Wait()
		if views := f.views.Load(); views > 2 || len(said) > 0 {
			t.Errorf("%d look %d times at two entries, and %d have heard", many, views, len(said))
		}
		f.apply(&ledger.CancelJob{Job: first, Reason: "cancelled"})
		f.apply(&ledger.CancelJob{Job: second, Reason: "cancelled"})
		for range many {
			if err := <-said; err != nil {
				t.Error(err)
			}
		}
		if err := e.await(t.Context(), first, job.Position{}); err != nil {
			t.Errorf("a job that has ended: %v", err)
		}
		if err := e.await(t.Context(), job.ID{9}, job.Position{}); !errors.Is(err, job.ErrJobNotFound) {
			t.Errorf("a job that is none: %v", err)
		}
		go func() { said <- e.await(t.Context(), job.ID{9}, job.Position{Seq: 4}) }()
		synctest.Wait()
		fold(4, job.ID{8})
		if err := <-said; !errors.Is(err, job.ErrJobNotFound) {
			t.Errorf("a record that became no job: %v", err)
		}

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := e.await(short, third, job.Position{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a job that goes on: %v", err)
		}
		if len(e.waiting) > 0 {
			t.Errorf("%d are still waited for", len(e.waiting))
		}
		go func() { said <- e.await(t.Context(), third, job.Position{}) }()
		synctest.Wait()
		stop()
		for _, err := range []error{<-said, e.await(t.Context(), third, job.Position{})} {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("while the node stops: %v", err)
			}
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
