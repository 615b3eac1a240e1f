package server

import (
	"errors"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// A full backlog is answered with 503, also from another node; any other error of the ledger
// is a conflict and keeps its text.
func TestContractError(t *testing.T) {
	for err, code := range map[error]string{
		ledger.ErrBacklogFull: "503",
		&ledger.TransitionError{RequestID: "r", From: "pending", To: "delivered"}: "409",
		&ledger.NotFoundError{RequestID: "r"}:                                     "409",
	} {
		rejected := authority.Rejected(err)
		var got *api.Error
		if !errors.As(contractError(rejected), &got) || got.Code != code || got.Text != err.Error() || got.RetryAfter > 0 != (code == "503") {
			t.Errorf("%v became %+v", err, got)
		}
	}
}
