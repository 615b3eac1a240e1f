package replication

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
)

// TestHealthOf_Recovering checks that a stream that is still recovering has no
// leader, unless the node runs alone.
func TestHealthOf_Recovering(t *testing.T) {
	own := &server.ClusterInfo{Leader: "n1"}
	for _, tt := range []struct {
		route    string
		cluster  *server.ClusterInfo
		replicas int
		want     string
	}{
		{"", nil, 1, "n1"},
		{"127.0.0.1:0", nil, 3, ""},
		{"127.0.0.1:0", own, 3, ""},
		{"127.0.0.1:0", own, 1, "n1"}, // a user's own stream
	} {
		c := &Replication{local: &embedded.Server{Config: embedded.Config{Node: "n1", RouteListen: tt.route}}}
		d := &server.StreamDetail{Name: "S", Cluster: tt.cluster, Config: &server.StreamConfig{Replicas: tt.replicas}}
		if h := c.healthOf(d); h.Leader != tt.want {
			t.Errorf("%+v: the leader is %q", tt, h.Leader)
		}
	}
}

// TestHealthOf_Limit checks that the limit of a stream is reported, and whether it refuses
// messages when it is full.
func TestHealthOf_Limit(t *testing.T) {
	c := &Replication{local: &embedded.Server{Config: embedded.Config{Node: "n1"}}}
	for _, tt := range []struct {
		max     int64
		discard server.DiscardPolicy
		want    uint64
		refuses bool
	}{{100, server.DiscardNew, 100, true}, {100, server.DiscardOld, 100, false}, {-1, server.DiscardNew, 0, true}} {
		h := c.healthOf(&server.StreamDetail{Config: &server.StreamConfig{MaxBytes: tt.max, Discard: tt.discard}})
		if h.Limit != tt.want || h.Refuses != tt.refuses {
			t.Errorf("%d, %v: limit %d, refuses %t", tt.max, tt.discard, h.Limit, h.Refuses)
		}
	}
}

// TestStorage_Warnings checks that streams of users are named when the yard's own may not
// fit into the store beside them.
func TestStorage_Warnings(t *testing.T) {
	lane, board := StreamHealth{Name: "YARD_JOBS_0", Limit: 70, Bytes: 5}, StreamHealth{Name: "KV_YARD_NODES", Limit: 10}
	bucket := func(bytes uint64) StreamHealth { return StreamHealth{Name: "KV_b", Bytes: bytes} }
	for _, tt := range []struct {
		streams []StreamHealth
		want    string
	}{
		{[]StreamHealth{lane, board}, ""},
		{[]StreamHealth{lane, board, bucket(20)}, ""},
		{[]StreamHealth{lane, board, bucket(21)}, "streams of users (KV_b) take 21 of the 100 bytes"},
		{[]StreamHealth{lane, board, {Name: "cache", Bytes: 50, InMemory: true}}, ""},
		{[]StreamHealth{lane, board, bucket(0), {Name: "YARD_MINE", Bytes: 30}}, "streams of users (YARD_MINE) take 30"},
	} {
		storage := Storage{Limit: 100, Streams: tt.streams}
		got := strings.Join(storage.Warnings(), "\n")
		if (got == "") != (tt.want == "") || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%+v: %q, want %q", tt.streams, got, tt.want)
		}
	}
}

// TestHealthOf_Offline checks that a replica whose server was killed is offline
// long before JetStream reports it, and that an idle replica that answers
// heartbeats is not.
func TestHealthOf_Offline(t *testing.T) {
	c := &Replication{local: &embedded.Server{Config: embedded.Config{Node: "n1", RouteListen: "127.0.0.1:0"}}}
	for _, tt := range []struct {
		what     string
		leader   string
		replicas []*server.PeerInfo
		want     int
	}{
		{"all answer", "n1", []*server.PeerInfo{{Name: "n2", Active: time.Second}, {Name: "n3", Active: 9 * time.Second}}, 0},
		{"one was killed", "n1", []*server.PeerInfo{{Name: "n2", Active: time.Second}, {Name: "n3", Active: 21 * time.Second}}, 1},
		{"one was never in contact", "n1", []*server.PeerInfo{{Name: "n2", Active: time.Second}, {Name: "n3"}}, 1},
		{"one is known to be gone", "n1", []*server.PeerInfo{{Name: "n2", Active: time.Second}, {Name: "n3", Active: time.Second, Offline: true}}, 1},
		{"another leads, and knows", "n2", []*server.PeerInfo{{Name: "n3", Offline: true}}, 0},
	} {
		h := c.healthOf(&server.StreamDetail{Name: "S", Cluster: &server.ClusterInfo{Leader: tt.leader, Replicas: tt.replicas}})
		if h.Offline != tt.want {
			t.Errorf("%s: %d replicas are offline, want %d", tt.what, h.Offline, tt.want)
		}
	}
}
