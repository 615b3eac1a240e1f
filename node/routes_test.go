package node

import (
	"testing"
)

// Whatever is answered over NATS is answered over HTTP, and nothing else.
func TestRoutes(t *testing.T) {
	n := &Node{version: "v1.2.3"}
	n.dlq = &dlq{}
	known := map[string]bool{}
	for _, e := range n.service().Endpoints {
		known[e.Name] = true
		if _, ok := routes[e.Name]; !ok {
			t.Errorf("endpoint %s has no line in routes", e.Name)
		}
	}
	for name := range routes {
		if !known[name] {
			t.Errorf("routes has a line for %s, which is no endpoint", name)
		}
	}
}
