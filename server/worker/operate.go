package worker

import (
	"context"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Operate carries out an operation of the API after the session's earlier writes. Later
// reads reflect it. The error is an *api.Error.
func (s *session) Operate(ctx context.Context, op string, request []byte) ([]byte, error) {
	e, ok := s.c.Operations()[op]
	if !ok {
		return nil, &api.Error{Code: api.CodeNotFound, Text: fmt.Sprintf("operation %.40q is not served over Overhop; see docs/reference/api.md", op)}
	}
	if err := s.awaitWrites(ctx); err != nil {
		return nil, cluster.AsAPIError(err)
	}
	r := cluster.NewRequest(request, "", func(string) string { return "" }, nil)
	r.Actor = func() ledger.Actor { return s.actor }
	reply, err := e.Handle(ctx, r)
	if err != nil {
		return nil, cluster.AsAPIError(err)
	}
	s.ObserveIndex(r.Index())
	return reply, nil
}
