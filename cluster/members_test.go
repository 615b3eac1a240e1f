package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/replication"
	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// TestMembers_JoinAndLeave adds a fourth server, moves the first one's replicas to
// it and removes the first; then it removes a server that is dead.
func TestMembers_JoinAndLeave(t *testing.T) {
	nodes := startCluster(t)
	peers := slices.Clone(nodes[0].cfg.Peers)
	peers = append(peers, embedded.Peer{Node: "n4", Route: testnet.Address(t)})
	n4 := startNode(t, embedded.Config{
		Node: "n4", Identity: "n4-00000004", Yard: "test", Dir: t.TempDir(), ClientListen: "127.0.0.1:0",
		RouteListen: peers[3].Route, Peers: peers, Secret: "between us", MaxStore: 1 << 30,
	})
	for _, n := range nodes {
		n.SetPeers(peers)
	}
	eventually(t, "the fourth server to be current", func() error {
		for _, n := range nodes {
			if c, led := n.Replication.MetaReplicas(); led {
				i := slices.IndexFunc(c, func(c replication.Replica) bool { return c.Is("n4-00000004") })
				if i < 0 || !c[i].Current || len(c) != 4 {
					return fmt.Errorf("meta group is %+v", c)
				}
				return nil
			}
		}
		return errors.New("no meta leader")
	})
	first := nodes[0].cfg.Identity
	if err := n4.Replication.Evacuate(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	whole := func(without string) error {
		streams, err := n4.Replication.StreamReplicas(t.Context())
		if err != nil {
			return err
		}
		for _, s := range streams {
			if len(s.Replicas) != s.Want {
				return fmt.Errorf("%s has replicas %+v", s.Stream, s.Replicas)
			}
			for _, c := range s.Replicas {
				if c.Is(without) || !c.Current || c.Offline {
					return fmt.Errorf("%s has replicas %+v", s.Stream, s.Replicas)
				}
			}
		}
		return nil
	}
	eventually(t, "all replicas to be moved off the first server", func() error { return whole(first) })
	// A meta leader that removes itself would keep answering requests.
	eventually(t, "the first server to be the meta leader", func() error {
		if _, led := nodes[0].Replication.MetaReplicas(); led {
			return nil
		}
		return errors.Join(requestStepDown(t, n4.local.System, "META.LEADER.STEPDOWN", first), errors.New("another server leads"))
	})
	eventually(t, "the first server to be removed", func() error {
		if err := n4.Replication.RemoveServer(t.Context(), first); err != nil {
			return err
		}
		for _, n := range []*testNode{nodes[1], nodes[2], n4} {
			if c, led := n.Replication.MetaReplicas(); led && !slices.ContainsFunc(c, func(c replication.Replica) bool { return c.Is(first) }) {
				return nil
			}
		}
		return errors.New("it is still a member")
	})
	// The removed server need not know: a server that lags is no longer sent the removal.
	// membership therefore notifies its node, which stops.
	nodes[0].kill()
	eventually(t, "the first server to be removed", func() error {
		for _, n := range []*testNode{nodes[1], nodes[2], n4} {
			c, led := n.Replication.MetaReplicas()
			if led && len(c) == 3 && !slices.ContainsFunc(c, func(c replication.Replica) bool { return c.Is(first) }) {
				return nil
			} else if led {
				return fmt.Errorf("meta group is %+v", c)
			}
		}
		return errors.New("no meta leader")
	})
	if err := n4.Replication.RemoveServer(t.Context(), first); err != nil {
		t.Errorf("removing it again: %v", err)
	}
	n4.local.SetLanes(3)
	if !slices.Equal(n4.Members(), []string{"n1", "n2", "n3", "n4"}) {
		t.Errorf("members are %v", n4.Members())
	}
	if led, err := n4.Replication.SpreadLeaders(t.Context(), "n2", noMember, noMember); err != nil {
		t.Errorf("spread %d leaders: %v", led, err)
	}
}

// TestMembers_PeerHash compares the ids of peers with the server's own.
func TestMembers_PeerHash(t *testing.T) {
	nodes := startThree(t)
	eventually(t, "a meta group", func() error {
		info, err := nodes[0].local.NATS.Jsz(&server.JSzOptions{})
		if err != nil || info.Meta == nil || info.Meta.Leader == "" {
			return fmt.Errorf("none yet: %v", err)
		}
		if r := (replication.Replica{Identity: "#" + info.Meta.Peer}); !r.Is(info.Meta.Leader) {
			t.Fatalf("%s is not %s", info.Meta.Leader, info.Meta.Peer)
		}
		return nil
	})
}
