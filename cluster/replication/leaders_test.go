package replication

import (
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

// TestFitReplica checks which replica takes over: a current one on a node that fits and is
// not behind.
func TestFitReplica(t *testing.T) {
	replica := func(name string, current bool) *jetstream.PeerInfo {
		return &jetstream.PeerInfo{Name: name, Current: current}
	}
	server := func(node string) string { return node + "-00000000" }
	if node := subjects.NodeOf(server("n2")); node != "n2" {
		t.Fatalf("the node of %s is %s", server("n2"), node)
	}
	offline := replica(server("n2"), true)
	offline.Offline = true
	n2, n3 := replica(server("n2"), true), replica(server("n3"), true)
	for name, c := range map[string]struct {
		leader   string
		replicas []*jetstream.PeerInfo
		behind   string
		want     string
	}{
		"the leader may stay":  {"n2", []*jetstream.PeerInfo{n3}, "", ""},
		"no leader":            {"", []*jetstream.PeerInfo{n2}, "", ""},
		"first":                {"n1", []*jetstream.PeerInfo{n2, n3}, "", server("n2")},
		"first is behind":      {"n1", []*jetstream.PeerInfo{n2, n3}, "n2", server("n3")},
		"all are behind":       {"n1", []*jetstream.PeerInfo{n2}, "n2", ""},
		"not current, offline": {"n1", []*jetstream.PeerInfo{replica(server("n3"), false), offline}, "", ""},
	} {
		leader := c.leader
		if leader != "" {
			leader = server(leader)
		}
		fits := func(node string) bool { return node != "n1" }
		behind := func(node string) bool { return node == c.behind }
		if got := fitReplica(&jetstream.ClusterInfo{Leader: leader, Replicas: c.replicas}, fits, behind); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := fitReplica(nil, noNode, noNode); got != "" {
		t.Errorf("a stream of a server that runs alone: %q", got)
	}
}

func noNode(string) bool { return false }
