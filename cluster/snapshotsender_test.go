package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// TestSnapshotSender_DeposedLeader isolates a lane's leader, which then accepts
// messages that no other server gets, and lets it return after the other members
// have elected a new leader.
func TestSnapshotSender_DeposedLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	nodes := startCluster(t)
	cfg := []Config{nodes[0].cfg, nodes[1].cfg, nodes[2].cfg}
	stream := LaneStream(0)
	// JetStream acknowledges none of these, and each is a separate entry.
	const alone = 60
	publish := func(c *testNode, n int, answer time.Duration) (taken int) {
		for i := range n {
			m := &nats.Msg{Subject: laneSubject(0, nodePublish, "q"), Data: jobBody(i)}
			if _, err := c.local.ingest.request(t.Context(), m, answer); err == nil {
				taken++
			}
		}
		return taken
	}
	if n := publish(nodes[0], 10, 5*time.Second); n != 10 {
		t.Fatalf("%d of 10 messages are stored", n)
	}
	nodes[1].kill()
	nodes[2].kill()
	publish(nodes[0], alone, 20*time.Millisecond)
	nodes[0].kill()

	n2, n3 := startNode(t, cfg[1]), startNode(t, cfg[2])
	eventually(t, "the other members to continue", func() error {
		if n := publish(n2, 1, time.Second); n != 1 {
			return fmt.Errorf("lane 0 does not accept messages")
		}
		return nil
	})
	publish(n3, 2*alone, time.Second)
	startNode(t, cfg[0])
	eventually(t, "the old leader's replica to equal theirs", func() error {
		info, err := streamInfo(t.Context(), n2.local.js, stream)
		if err != nil {
			return err
		}
		if len(info.Cluster.Replicas) != 2 || info.State.LastSeq < 10+2*alone {
			return fmt.Errorf("%s ends at %d", stream, info.State.LastSeq)
		}
		for _, r := range info.Cluster.Replicas {
			if !r.Current || r.Lag > 0 || r.Active == 0 || r.Active > replicaContactTimeout {
				return fmt.Errorf("%s lags by %d", r.Name, r.Lag)
			}
		}
		return nil
	})
}

func TestSnapshotSender_AnyStuck(t *testing.T) {
	recent := time.Second
	for _, c := range []struct {
		what  string
		looks []server.PeerInfo
		want  bool
	}{
		{"catches up", []server.PeerInfo{{Lag: 9, Active: recent}, {Lag: 8, Active: recent}}, false},
		{"makes no progress", []server.PeerInfo{{Lag: 9, Active: recent}, {Lag: 9, Active: recent}}, true},
		{"falls behind", []server.PeerInfo{{Lag: 9, Active: recent}, {Lag: 10, Active: recent}}, true},
		{"was checked once", []server.PeerInfo{{Lag: 9, Active: recent}}, false},
		{"was current between", []server.PeerInfo{{Lag: 9, Active: recent}, {Current: true, Active: recent}, {Lag: 9, Active: recent}}, false},
		{"is not in contact", []server.PeerInfo{{Lag: 9, Active: time.Minute}, {Lag: 9, Active: time.Minute}}, false},
	} {
		u := snapshotSender{}
		stuck := false
		for _, r := range c.looks {
			r.Peer = "p"
			lags := map[string]uint64{}
			stuck = u.anyStuck(lags, "s", []*server.PeerInfo{&r})
			u.lags = lags
		}
		if stuck != c.want {
			t.Errorf("a replica that %s: stuck %v, want %v", c.what, stuck, c.want)
		}
	}
}

// TestSnapshotSender_Interval checks that a replica that stays behind causes one
// snapshot per interval, and that a failed attempt is repeated at once.
func TestSnapshotSender_Interval(t *testing.T) {
	u := snapshotSender{local: &local{log: discardLog()}}
	at := time.Unix(1000, 0)
	var made []time.Duration
	for i := range 25 {
		after := time.Duration(i) * time.Second
		u.sendSnapshot("s", at.Add(after), func() error {
			if i < 3 {
				return errors.New("replica is receiving a snapshot")
			}
			made = append(made, after)
			return nil
		})
	}
	if want := []time.Duration{3 * time.Second, 13 * time.Second, 23 * time.Second}; !slices.Equal(made, want) {
		t.Errorf("snapshots after %v, want %v", made, want)
	}
	other := 0
	u.sendSnapshot("t", at.Add(24*time.Second), func() error { other++; return nil })
	if other != 1 {
		t.Error("another stream got no snapshot")
	}
}
