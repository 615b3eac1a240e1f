package server

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// A full backlog is answered with 503, also from another node; any other error of the ledger
// is a conflict and keeps its text.
func TestContractError(t *testing.T) {
	c := &authority.Client{Node: "n1", Raft: emptyRaft{}, Watch: authority.NewWatch()}
	c.Watch.Set("n2", 1)
	for text, want := range map[string]struct{ shared, code string }{
		ledger.ErrBacklogFull.Error(): {"backlog_full", "503"},
		(&ledger.TransitionError{RequestID: "r", From: "pending", To: "delivered"}).Error(): {"", "409"},
		(&ledger.NotFoundError{RequestID: "r"}).Error():                                     {"", "409"},
	} {
		c.Fleet = rejectingFleet{authority.Result{Error: text, Code: want.shared}}
		_, err := c.Propose(t.Context(), &ledger.RetryJob{Job: job.ID{1}})
		var got *api.Error
		if !errors.As(contractError(err), &got) || got.Code != want.code || got.Text != text || got.RetryAfter > 0 != (want.code == "503") {
			t.Errorf("%q became %+v", text, got)
		}
	}
}

// emptyRaft is a ledger without entries.
type emptyRaft struct{}

func (emptyRaft) View(func(*ledger.Ledger))                 {}
func (emptyRaft) Applied() (uint64, <-chan struct{})        { return 0, nil }
func (emptyRaft) WaitApplied(context.Context, uint64) error { return nil }

// rejectingFleet has an authority that answers each command with the same result.
type rejectingFleet struct{ result authority.Result }

func (f rejectingFleet) Request(context.Context, string, string, []byte) ([]byte, error) {
	return json.Marshal(f.result)
}
