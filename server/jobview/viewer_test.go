package jobview

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// emptyLedger is the ledger of a node that has started again and reaches no majority.
type emptyLedger struct{}

func (emptyLedger) View(fn func(*ledger.Ledger)) { fn(ledger.New()) }
func (emptyLedger) Copy() *ledger.Ledger         { return ledger.New() }

// oneJob is an index with one job, and perhaps without others.
type oneJob job.Document

func (d *oneJob) FindJobs(ctx context.Context, q *query.Query, _ ledger.JobPlace, _ int) (found ledger.FoundJobs, err error) {
	if ctx.Err() != nil {
		return found, ctx.Err()
	}
	if document := (*job.Document)(d); q.Match(document) {
		found.Documents = append(found.Documents, document)
	}
	return found, &job.UnavailableError{Reason: "the index, which is ahead"}
}

// TestViewer_NoMajority checks that a job which has ended is found in the index when the wait for a majority has
// taken all the time.
func TestViewer_NoMajority(t *testing.T) {
	id, err := job.KeyID("mail", "order-7")
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	v := &Viewer{
		Ledger: emptyLedger{}, Index: &oneJob{ID: id, Queue: "mail", Key: "order-7", State: job.Completed},
		ReadBarrier: func(ctx context.Context) error {
			asked++
			<-ctx.Done()
			return ctx.Err()
		},
	}
	for _, text := range []string{id.String(), "order-7", "mail:order-7"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if found, err := v.Locate(ctx, text, ""); err != nil || found != id {
			t.Errorf("%s: %s, %v", text, found, err)
		}
		cancel()
	}
	if asked != 2 {
		t.Errorf("the others were asked %d times, want 2: not for an id, which only this job has", asked)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := v.Locate(ctx, job.ID{9}.String(), ""); err == nil || errors.Is(err, job.ErrJobNotFound) {
		t.Errorf("a job that may exist: %v", err)
	}
}

// A part of a job that cannot be read for lack of a leader or in time can be retried.
func TestReadError(t *testing.T) {
	for _, c := range []struct {
		cause error
		again bool
	}{
		{fmt.Errorf("YARD_RESULTS: %w", streams.ErrNoLeader), true},
		{fmt.Errorf("read from YARD_BLOBS: %w", context.DeadlineExceeded), true},
		{errors.New("bytes that make no sense"), false},
	} {
		err := ReadError("result", job.ID{1}, c.cause)
		var away *job.UnavailableError
		if errors.As(err, &away) != c.again || !c.again && !errors.Is(err, c.cause) {
			t.Errorf("%v: %v", c.cause, err)
		}
	}
}
