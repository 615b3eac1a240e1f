package edge

import (
	"context"
	"errors"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// handleAPI carries out an operation of the API.
func (q queries) handleAPI(ctx context.Context, request overhop.APIRequest) (overhop.Raw, error) {
	reply, err := q.cluster.Operate(ctx, request.Op, request.JSON)
	if err != nil {
		return nil, apiError(err)
	}
	return overhop.Fields{"reply" + overhop.JSONSuffix: reply}.Raw(), nil
}

// apiError returns what to send for the error of an operation: UNAVAILABLE if it may
// succeed later, as for every other request, and otherwise API_ERROR with the status.
func apiError(err error) error {
	refusal, ok := errors.AsType[*api.Error](err)
	if !ok {
		return err
	}
	sent := &codeError{overhop.CodeAPIError, refusal.Text, overhop.Fields{"status": refusal.Status()}}
	if refusal.Code == api.CodeUnavailable {
		sent.code, sent.details = overhop.CodeUnavailable, overhop.Fields{"retry_after_ms": max(refusal.RetryAfter.Milliseconds(), 100)}
	}
	if len(refusal.Data) > 0 {
		sent.details["data"+overhop.JSONSuffix] = refusal.Data
	}
	return sent
}
