package node

import (
	"errors"
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
