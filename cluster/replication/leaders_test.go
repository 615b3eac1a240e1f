package replication

import (
	"math"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

func TestPreferredLeader(t *testing.T) {
	members := []string{"n1", "n2", "n3"}
	for lane, want := range []string{"n1", "n3", "n3"} {
		if got := preferredLeader(lane, members, []string{"n1", "n3"}); got != want {
			t.Errorf("lane %d goes to %s; want %s", lane, got, want)
		}
	}
}

// TestFitReplica checks which replica takes over: a current one on a node that fits, and, if
// the present leader could stay, one that lacks little.
func TestFitReplica(t *testing.T) {
	replica := func(name string, lag uint64, current bool) *jetstream.PeerInfo {
		return &jetstream.PeerInfo{Name: name, Lag: lag, Current: current}
	}
	server := func(node string) string { return node + "-00000000" }
	not := func(node string) func(string) bool { return func(n string) bool { return n != node } }
	if node := subjects.NodeOf(server("n2")); node != "n2" {
		t.Fatalf("the node of %s is %s", server("n2"), node)
	}
	offline := replica(server("n2"), 0, true)
	offline.Offline = true
	for name, c := range map[string]struct {
		leader   string
		replicas []*jetstream.PeerInfo
		maxLag   uint64
		want     string
	}{
		"the leader may stay":    {"n2", []*jetstream.PeerInfo{replica(server("n3"), 0, true)}, 9, ""},
		"no leader":              {"", []*jetstream.PeerInfo{replica(server("n2"), 0, true)}, 9, ""},
		"first":                  {"n1", []*jetstream.PeerInfo{replica(server("n2"), 9, true), replica(server("n3"), 0, true)}, 9, server("n2")},
		"first lacks much":       {"n1", []*jetstream.PeerInfo{replica(server("n2"), 10, true), replica(server("n3"), 0, true)}, 9, server("n3")},
		"all lack much":          {"n1", []*jetstream.PeerInfo{replica(server("n2"), 10, true)}, 9, ""},
		"the leader cannot stay": {"n1", []*jetstream.PeerInfo{replica(server("n2"), 1<<40, true)}, math.MaxUint64, server("n2")},
		"not current, offline":   {"n1", []*jetstream.PeerInfo{replica(server("n3"), 0, false), offline}, 9, ""},
	} {
		leader := c.leader
		if leader != "" {
			leader = server(leader)
		}
		if got := fitReplica(&jetstream.ClusterInfo{Leader: leader, Replicas: c.replicas}, c.maxLag, not("n1")); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := fitReplica(nil, 9, not("n1")); got != "" {
		t.Errorf("a stream of a server that runs alone: %q", got)
	}
}
