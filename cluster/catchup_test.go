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

// TestCatchUp_DeposedLeader: a lane's leader loses both others, takes messages
// that nobody else will ever have, and comes back when they have gone on.
func TestCatchUp_DeposedLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	nodes := yard(t)
	cfg := []Config{nodes[0].cfg, nodes[1].cfg, nodes[2].cfg}
	stream := LaneStream(0)
	// JetStream answers none of these, and each is an entry of its own.
	const alone = 60
	publish := func(c *running, n int, answer time.Duration) (taken int) {
		for i := range n {
			m := &nats.Msg{Subject: laneSubject(0, nodePublish, "q"), Data: body(i)}
			if _, err := c.ingest.ask(t.Context(), m, answer); err == nil {
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

	n2, n3 := run(t, cfg[1]), run(t, cfg[2])
	eventually(t, "the others to go on", func() error {
		if n := publish(n2, 1, time.Second); n != 1 {
			return fmt.Errorf("lane 0 takes nothing")
		}
		return nil
	})
	publish(n3, 2*alone, time.Second)
	run(t, cfg[0])
	eventually(t, "the old leader's replica to be theirs", func() error {
		info, err := n2.streamInfo(t.Context(), stream)
		if err != nil {
			return err
		}
		if len(info.Cluster.Replicas) != 2 || info.State.LastSeq < 10+2*alone {
			return fmt.Errorf("%s ends at %d", stream, info.State.LastSeq)
		}
		for _, r := range info.Cluster.Replicas {
			if !r.Current || r.Lag > 0 || r.Active == 0 || r.Active > quorumQuiet {
				return fmt.Errorf("%s lags by %d", r.Name, r.Lag)
			}
		}
		return nil
	})
}

func TestCatchUp_Stuck(t *testing.T) {
	heard := time.Second
	for _, c := range []struct {
		what  string
		looks []server.PeerInfo
		want  bool
	}{
		{"comes nearer", []server.PeerInfo{{Lag: 9, Active: heard}, {Lag: 8, Active: heard}}, false},
		{"stands still", []server.PeerInfo{{Lag: 9, Active: heard}, {Lag: 9, Active: heard}}, true},
		{"falls behind", []server.PeerInfo{{Lag: 9, Active: heard}, {Lag: 10, Active: heard}}, true},
		{"is seen once", []server.PeerInfo{{Lag: 9, Active: heard}}, false},
		{"was current between", []server.PeerInfo{{Lag: 9, Active: heard}, {Current: true, Active: heard}, {Lag: 9, Active: heard}}, false},
		{"is not heard", []server.PeerInfo{{Lag: 9, Active: time.Minute}, {Lag: 9, Active: time.Minute}}, false},
	} {
		u := catchUp{}
		stuck := false
		for _, r := range c.looks {
			r.Peer = "p"
			lags := map[string]uint64{}
			stuck = u.stuck(lags, "s", []*server.PeerInfo{&r})
			u.lags = lags
		}
		if stuck != c.want {
			t.Errorf("a replica that %s: stuck %v, want %v", c.what, stuck, c.want)
		}
	}
}

// A replica that stays behind costs one snapshot now and then, and is tried again at
// once where there could be none.
func TestCatchUp_SnapshotsSeldom(t *testing.T) {
	u := catchUp{c: &Cluster{log: quiet()}}
	at := time.Unix(1000, 0)
	var made []time.Duration
	for i := range 25 {
		after := time.Duration(i) * time.Second
		u.help("s", at.Add(after), func() error {
			if i < 3 {
				return errors.New("it is being caught up")
			}
			made = append(made, after)
			return nil
		})
	}
	if want := []time.Duration{3 * time.Second, 13 * time.Second, 23 * time.Second}; !slices.Equal(made, want) {
		t.Errorf("snapshots after %v, want %v", made, want)
	}
	other := 0
	u.help("t", at.Add(24*time.Second), func() error { other++; return nil })
	if other != 1 {
		t.Error("another stream has none")
	}
}
