package replication

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
)

func TestSnapshotSender_AnyStuck(t *testing.T) {
	type look struct {
		lag, index uint64
		active     time.Duration
	}
	const recent = time.Second
	for _, c := range []struct {
		what  string
		looks []look
		want  bool
	}{
		{"catches up", []look{{9, 1, recent}, {8, 2, recent}, {7, 3, recent}, {6, 4, recent}}, false},
		{"makes no progress", []look{{9, 1, recent}, {9, 1, recent}, {9, 1, recent}}, true},
		{"falls behind", []look{{9, 1, recent}, {10, 1, recent}, {11, 1, recent}}, true},
		{"advances under load", []look{{9, 100, recent}, {9, 200, recent}, {20, 250, recent}, {9, 300, recent}}, false},
		{"advances and falls back", []look{{9, 100, recent}, {20, 101, recent}, {300, 102, recent}, {4000, 103, recent}}, false},
		{"was slow once", []look{{9, 1, recent}, {9, 1, recent}, {9, 2, recent}, {9, 2, recent}}, false},
		{"was checked twice", []look{{9, 1, recent}, {9, 1, recent}}, false},
		{"was current between", []look{{9, 1, recent}, {9, 1, recent}, {0, 10, recent}, {9, 1, recent}}, false},
		{"is not in contact", []look{{9, 1, time.Minute}, {9, 1, time.Minute}, {9, 1, time.Minute}}, false},
	} {
		u := snapshotSender{}
		stuck := false
		for _, l := range c.looks {
			lagging := map[string]laggingReplica{}
			replicas := []*server.PeerInfo{{Peer: "p", Lag: l.lag, Current: l.lag == 0, Active: l.active}}
			stuck = u.anyStuck(lagging, "s", replicas, map[string]server.RaftzGroupPeer{"p": {LastReplicatedIndex: l.index}})
			u.lagging = lagging
		}
		if stuck != c.want {
			t.Errorf("a replica that %s: stuck %v, want %v", c.what, stuck, c.want)
		}
	}
}

// TestSnapshotSender_Interval checks that a replica that stays behind causes one
// snapshot per interval, and that a failed attempt is repeated at once.
func TestSnapshotSender_Interval(t *testing.T) {
	u := snapshotSender{local: &embedded.Server{Log: slog.New(slog.DiscardHandler)}}
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
