package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	"yardmaster/cluster"
	"yardmaster/ledger"
)

// A full backlog asks to come later, also when another node says so; what else
// the ledger refuses is a conflict, in its own words.
func TestContractRefusal(t *testing.T) {
	for err, code := range map[error]string{
		ledger.ErrBacklogFull: "503",
		&ledger.TransitionError{RequestID: "r", From: "pending", To: "delivered"}: "409",
		&ledger.NotFoundError{RequestID: "r"}:                                     "409",
	} {
		refused := &refusedError{text: err.Error(), is: refusals[refusalCode(err)]}
		var got *cluster.APIError
		if !errors.As(contractRefusal(refused), &got) || got.Code != code || got.Text != err.Error() || got.RetryAfter > 0 != (code == "503") {
			t.Errorf("%v is refused as %+v", err, got)
		}
	}
}

// Who is told nothing of a command that was carried out would do it again.
func TestNotShown(t *testing.T) {
	if err := notShown(7, nil); err != nil {
		t.Error(err)
	}
	if r := cluster.RefusalOf(notShown(7, context.DeadlineExceeded)); r.Code != "504" || !strings.Contains(r.Text, "entry 7") {
		t.Errorf("%+v", r)
	}
}
