package node

import (
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
)

// A node that is not serving yet has the reason.
func TestReadyz_Starting(t *testing.T) {
	n := &Node{serving: make(chan struct{})}
	if ready, shows := n.readyz(t.Context()); ready || shows.(api.Readiness).Reasons[0] != "the node is starting" {
		t.Errorf("a starting node: %v", shows)
	}
	n.waitingFor.Store(&[]string{"n2: nobody answers"})
	if ready, shows := n.readyz(t.Context()); ready || shows.(api.Readiness).Reasons[0] != "the node waits: n2: nobody answers" {
		t.Errorf("a node that waits for others: %v", shows)
	}
}
