package node

import (
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/server"
)

// Every endpoint of the API has one handler, and every handler an endpoint.
func TestEndpoints_Bound(t *testing.T) {
	n := &Node{cluster: &cluster.Server{}, raft: &consensus.Node{}, cfg: config.Config{}.WithDefaults()}
	binding := server.Binding{Enqueue: func(*cluster.Request) {}}
	for _, c := range []struct {
		table    []api.Endpoint
		handlers map[string]server.Handler
	}{
		{api.Endpoints, n.apiHandlers()}, {api.NodeEndpoints, n.nodeHandlers()}, {api.BackupEndpoints, backupHandlers(nil)},
	} {
		unbound := c.handlers
		for _, e := range binding.Bind(c.table, c.handlers) {
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
