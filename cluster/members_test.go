package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// TestMembers_ComeAndGo: a fourth server joins, what lies on the first moves to
// it, the first goes; then one that is dead is taken out, and the rest stands.
func TestMembers_ComeAndGo(t *testing.T) {
	nodes := yard(t)
	peers := slices.Clone(nodes[0].cfg.Peers)
	peers = append(peers, Peer{Node: "n4", Route: freePort(t)})
	n4 := run(t, Config{
		Node: "n4", Identity: "n4-00000004", Yard: "test", Dir: t.TempDir(), Client: "127.0.0.1:0",
		Route: peers[3].Route, Peers: peers, Secret: "between us", MaxStore: 1 << 30,
	})
	for _, n := range nodes {
		n.SetPeers(peers)
	}
	eventually(t, "the fourth server to be current", func() error {
		for _, n := range nodes {
			if c, led := n.Meta(); led {
				i := slices.IndexFunc(c, func(c Copy) bool { return c.Is("n4-00000004") })
				if i < 0 || !c[i].Current || len(c) != 4 {
					return fmt.Errorf("meta group is %+v", c)
				}
				return nil
			}
		}
		return errors.New("nobody leads")
	})
	first := nodes[0].cfg.Identity
	if err := n4.Evacuate(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	whole := func(without string) error {
		streams, err := n4.Streams(t.Context())
		if err != nil {
			return err
		}
		for _, s := range streams {
			if len(s.Copies) != s.Want {
				return fmt.Errorf("%s lies on %+v", s.Stream, s.Copies)
			}
			for _, c := range s.Copies {
				if c.Is(without) || !c.Current || c.Offline {
					return fmt.Errorf("%s lies on %+v", s.Stream, s.Copies)
				}
			}
		}
		return nil
	}
	eventually(t, "everything to be moved off the first", func() error { return whole(first) })
	// A leader that is asked to take itself out would go on answering for all.
	eventually(t, "JetStream's leader to be the first", func() error {
		if _, led := nodes[0].Meta(); led {
			return nil
		}
		return errors.Join(n4.stepMetaDown(t.Context(), first), errors.New("another leads"))
	})
	eventually(t, "the first to be taken out", func() error {
		if err := n4.Expel(t.Context(), first); err != nil {
			return err
		}
		for _, n := range []*running{nodes[1], nodes[2], n4} {
			if c, led := n.Meta(); led && !slices.ContainsFunc(c, func(c Copy) bool { return c.Is(first) }) {
				return nil
			}
		}
		return errors.New("it is still in")
	})
	eventually(t, "the first to know that it is out", func() error {
		if nodes[0].srv.JetStreamEnabled() {
			return errors.New("it goes on")
		}
		return nil
	})
	nodes[0].kill()
	eventually(t, "the first to be taken out", func() error {
		for _, n := range []*running{nodes[1], nodes[2], n4} {
			c, led := n.Meta()
			if led && len(c) == 3 && !slices.ContainsFunc(c, func(c Copy) bool { return c.Is(first) }) {
				return nil
			} else if led {
				return fmt.Errorf("meta group is %+v", c)
			}
		}
		return errors.New("nobody leads")
	})
	if err := n4.Expel(t.Context(), first); err != nil {
		t.Errorf("once more: %v", err)
	}
	n4.SetLanes(3)
	if !slices.Equal(n4.Members(), []string{"n1", "n2", "n3", "n4"}) {
		t.Errorf("members are %v", n4.Members())
	}
	if led, err := n4.SpreadLeaders(t.Context(), "n2", func(string) bool { return false }); err != nil {
		t.Errorf("spread %d leaders: %v", led, err)
	}
}

// TestMembers_PeerHash holds our reckoning of a server's name among peers
// against the server's.
func TestMembers_PeerHash(t *testing.T) {
	nodes := three(t)
	eventually(t, "a meta group", func() error {
		info, err := nodes[0].srv.Jsz(&server.JSzOptions{})
		if err != nil || info.Meta == nil || info.Meta.Leader == "" {
			return fmt.Errorf("none yet: %v", err)
		}
		if got := peerHash(info.Meta.Leader); got != info.Meta.Peer {
			t.Fatalf("%s is %s, not %s", info.Meta.Leader, info.Meta.Peer, got)
		}
		return nil
	})
	if got := identityOf("Server name unknown at this time (peerID: abc12345)"); got != "#abc12345" {
		t.Errorf("a forgotten name is %q", got)
	}
}
