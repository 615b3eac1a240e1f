package server

import (
	"context"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
)

// Binding is what an API needs besides its handlers.
type Binding struct {
	Node  string        // name of this node, the "*" in the subjects of [api.NodeEndpoints]
	Index func() uint64 // returns the index of the local ledger

	Enqueue func(*cluster.Request) // handles the endpoint enqueue, whose replies are sent later
}

// Bind returns the endpoints of a table with their handlers, which are by endpoint name;
// an endpoint without one has a nil Handle. The replies of indexed endpoints carry the
// index of the ledger that they show: the one at the time of the request, unless the
// handler sets a later one. A reply may show newer state, never older.
func (b Binding) Bind(table []api.Endpoint, handlers map[string]Handler) []cluster.Endpoint {
	bound := make([]cluster.Endpoint, len(table))
	for i, described := range table {
		e := &bound[i]
		e.Endpoint, e.Handle = described, handlers[described.Name]
		if e.Name == "enqueue" {
			e.HandleAsync = b.Enqueue
		}
		e.Subject = strings.Replace(e.Subject, api.SubjectNode+".*", api.SubjectNode+"."+b.Node, 1)
		if handle := e.Handle; handle != nil && e.Indexed {
			e.Handle = func(ctx context.Context, r *cluster.Request) ([]byte, error) {
				r.SetIndex(b.Index())
				return handle(ctx, r)
			}
		}
	}
	return bound
}
