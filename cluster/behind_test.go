package cluster

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// TestAnyBehind checks that a member is behind if it is catching up, or has many entries to
// apply, in any group.
func TestAnyBehind(t *testing.T) {
	current := server.RaftzGroup{Committed: 9000, Applied: 9000 - maxUnapplied}
	for name, c := range map[string]struct {
		group server.RaftzGroup
		want  bool
	}{
		"little to apply": {current, false},
		"much to apply":   {server.RaftzGroup{Committed: 9000, Applied: 9000 - maxUnapplied - 1}, true},
		"catches up":      {server.RaftzGroup{CatchingUp: true}, true},
		"paused":          {server.RaftzGroup{Paused: true}, true},
		"applied later":   {server.RaftzGroup{Committed: 5, Applied: 7}, false},
	} {
		if got := anyBehind(map[string]server.RaftzGroup{"a": current, "b": c.group}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if anyBehind(nil) {
		t.Error("a node that runs alone is behind")
	}
}
