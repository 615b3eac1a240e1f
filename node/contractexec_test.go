package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// A full backlog is answered with 503, also from another node; any other error of the ledger
// is a conflict and keeps its text.
func TestContractError(t *testing.T) {
	for err, code := range map[error]string{
		ledger.ErrBacklogFull: "503",
		&ledger.TransitionError{RequestID: "r", From: "pending", To: "delivered"}: "409",
		&ledger.NotFoundError{RequestID: "r"}:                                     "409",
	} {
		rejected := &remoteError{text: err.Error(), cause: sharedErrors[sharedErrorCode(err)]}
		var got *cluster.APIError
		if !errors.As(contractError(rejected), &got) || got.Code != code || got.Text != err.Error() || got.RetryAfter > 0 != (code == "503") {
			t.Errorf("%v became %+v", err, got)
		}
	}
}

// A command that was committed but not applied here in time is not answered as if it had
// failed.
func TestNotAppliedError(t *testing.T) {
	if err := notAppliedError(7, nil); err != nil {
		t.Error(err)
	}
	if r := cluster.AsAPIError(notAppliedError(7, context.DeadlineExceeded)); r.Code != "504" || !strings.Contains(r.Text, "entry 7") {
		t.Errorf("%+v", r)
	}
}
