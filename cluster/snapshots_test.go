package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// TestSnapshotSender_DeposedLeader isolates a lane's leader, which then accepts
// messages that no other server gets, and lets it return after the other members
// have elected a new leader.
func TestSnapshotSender_DeposedLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	nodes := startCluster(t)
	cfg := []embedded.Config{nodes[0].cfg, nodes[1].cfg, nodes[2].cfg}
	stream := subjects.LaneStream(0)
	// JetStream acknowledges none of these, and each is a separate entry.
	const alone = 60
	publish := func(c *testNode, n int, answer time.Duration) (taken int) {
		for i := range n {
			m := &nats.Msg{Subject: subjects.LaneSubject(0, subjects.NodePublish, "q"), Data: jobBody(i)}
			if _, err := c.local.Ingest.Request(t.Context(), m, answer); err == nil {
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
		info, err := streams.Info(t.Context(), n2.local.JS, stream)
		if err != nil {
			return err
		}
		if len(info.Cluster.Replicas) != 2 || info.State.LastSeq < 10+2*alone {
			return fmt.Errorf("%s ends at %d", stream, info.State.LastSeq)
		}
		for _, r := range info.Cluster.Replicas {
			if !r.Current || r.Lag > 0 || r.Active == 0 || r.Active > streams.ReplicaContactTimeout {
				return fmt.Errorf("%s lags by %d", r.Name, r.Lag)
			}
		}
		return nil
	})
}
