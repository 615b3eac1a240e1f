package node

import (
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
)

// Every endpoint of the API has one handler, and every handler an endpoint.
func TestEndpoints_Bound(t *testing.T) {
	n := &Node{cluster: &cluster.Server{}}
	for _, c := range []struct {
		table    []api.Endpoint
		handlers map[string]handler
	}{
		{api.Endpoints, n.apiHandlers()}, {api.NodeEndpoints, n.nodeHandlers()}, {api.BackupEndpoints, n.backupHandlers()},
	} {
		unbound := c.handlers
		for _, e := range n.bind(c.table, c.handlers) {
			if (e.Handle == nil) == (e.HandleAsync == nil) {
				t.Errorf("endpoint %s does not have one handler", e.Name)
			}
			delete(unbound, e.Name)
		}
		for name := range unbound {
			t.Errorf("the handler of %s has no endpoint", name)
		}
	}
}
