package streams

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// TestHasQuorum checks that a leader that was cut off has no quorum, although it
// still claims to lead for a while.
func TestHasQuorum(t *testing.T) {
	replica := func(active time.Duration, current bool) *jetstream.PeerInfo {
		return &jetstream.PeerInfo{Active: active, Current: current}
	}
	connected, silent := replica(time.Second, true), replica(ReplicaContactTimeout+1, true)
	never, now := replica(0, false), replica(0, true)
	behind := replica(time.Second, false)
	for name, c := range map[string]struct {
		leader   string
		replicas []*jetstream.PeerInfo
		want     bool
	}{
		"all":                  {"n1", []*jetstream.PeerInfo{connected, connected}, true},
		"one of two":           {"n1", []*jetstream.PeerInfo{silent, connected}, true},
		"in contact right now": {"n1", []*jetstream.PeerInfo{silent, now}, true},
		"one is behind":        {"n1", []*jetstream.PeerInfo{behind, connected}, true},
		"only behind":          {"n1", []*jetstream.PeerInfo{behind, silent}, false},
		"none":                 {"n1", []*jetstream.PeerInfo{silent, silent}, false},
		"never in contact":     {"n1", []*jetstream.PeerInfo{silent, never}, false},
		"one replica":          {"n1", nil, true},
		"no leader":            {"", []*jetstream.PeerInfo{connected, connected, connected}, false},
	} {
		if got := hasQuorum(&jetstream.ClusterInfo{Leader: c.leader, Replicas: c.replicas}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !hasQuorum(nil) {
		t.Error("a server that runs alone has no quorum")
	}
}
