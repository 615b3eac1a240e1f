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
