package authority

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// idleRaft is a ledger that does not change.
type idleRaft struct{}

func (idleRaft) View(func(*ledger.Ledger))                 {}
func (idleRaft) Applied() (uint64, <-chan struct{})        { return 1, nil }
func (idleRaft) WaitApplied(context.Context, uint64) error { return nil }

// refusing is an authority whose ledger rejects every command.
type refusing struct{ err error }

func (r refusing) Request(context.Context, string, string, []byte) ([]byte, error) {
	return json.Marshal(Result{Error: r.err.Error(), Code: sharedErrorCode(r.err)})
}

// Errors of the ledger that pass are answered as unavailable, with a time for a retry.
func TestProposer_RejectedForNow(t *testing.T) {
	c := &Client{Node: "n1", Raft: idleRaft{}, Watch: NewWatch()}
	c.Watch.Set("another", 1)
	for _, refusal := range []error{ledger.ErrRestoring, fmt.Errorf("%w: the unfinished jobs ask for 100 others", ledger.ErrRunnersFull)} {
		c.Fleet = refusing{refusal}
		_, err := c.Propose(t.Context(), &ledger.RetryJob{Job: job.ID{1}})
		var later *job.UnavailableError
		if !errors.As(err, &later) || later.Reason != refusal.Error() || later.RetryAfter == 0 {
			t.Errorf("%v is answered with %v", refusal, err)
		}
	}
	c.Fleet = refusing{job.ErrNotFailed}
	if _, err := c.Propose(t.Context(), &ledger.RetryJob{Job: job.ID{1}}); !errors.Is(err, job.ErrNotFailed) {
		t.Errorf("a permanent error is answered with %v", err)
	}
}

// removing is an authority that removes a queue in several steps.
type removing struct{ steps *int }

func (r removing) Request(context.Context, string, string, []byte) ([]byte, error) {
	if *r.steps++; *r.steps < 4 {
		return json.Marshal(Result{Error: ledger.ErrQueueRemoving.Error(), Code: sharedErrorCode(ledger.ErrQueueRemoving)})
	}
	return json.Marshal(Result{Index: 1})
}

// A queue with many finished jobs is removed in steps, which the caller does not see.
func TestProposer_RemovesQueueInSteps(t *testing.T) {
	steps := 0
	c := &Client{Node: "n1", Raft: idleRaft{}, Watch: NewWatch(), Fleet: removing{&steps}}
	c.Watch.Set("another", 1)
	if _, err := c.Propose(t.Context(), &ledger.RemoveQueue{Name: "mail"}); err != nil || steps != 4 {
		t.Errorf("after %d steps: %v", steps, err)
	}
}

// A command that was committed but not applied here in time is not answered as if it had
// failed.
func TestNotAppliedError(t *testing.T) {
	if err := notAppliedError(7, nil); err != nil {
		t.Error(err)
	}
	if r := cluster.AsAPIError(notAppliedError(7, context.DeadlineExceeded)); r.Code != api.CodeUnknown || !strings.Contains(r.Text, "entry 7") {
		t.Errorf("%+v", r)
	}
}

// Errors that nodes share keep their identity between nodes.
func TestSharedErrors(t *testing.T) {
	// Codes and errors correspond one to one.
	for code, err := range sharedErrors {
		if got := sharedErrorCode(fmt.Errorf("wrapped: %w", err)); got != code {
			t.Errorf("%v has code %s, want %s", err, got, code)
		}
	}
}
