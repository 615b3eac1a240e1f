package cluster

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// What a lane's leader has taken in before it is closed counts, though it is
// stored later: it may still be acknowledged.
func TestCloseLane(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		c := alone(t)
		closes(t, c.Cluster, 0, 0)
		closes(t, c.Cluster, 0, 500) // each is synced on its own
	})
	t.Run("three", func(t *testing.T) {
		for lane, c := range yard(t)[:2] { // its leader
			closes(t, c.Cluster, uint8(lane), uint64(lane)*20_000)
		}
	})
}

// closes hands a lane's leader records, closes the lane and opens it again.
func closes(t *testing.T, c *Cluster, lane uint8, records uint64) {
	t.Helper()
	info, err := c.LaneInfo(t.Context(), lane)
	if err != nil {
		t.Fatal(err)
	}
	nc, subject, want := c.boards.nc, laneSubject(lane, nodePublish, "mail"), info.Last+records
	for range records {
		if err := nc.Publish(subject, body(1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil { // the leader has them all
		t.Fatal(err)
	}
	if was, err := c.CloseLane(t.Context(), lane, "another"); err != nil || was.Last != 0 {
		t.Errorf("a lane of another identity: %+v, %v", was, err)
	}
	for range 2 { // whoever takes a restore's place closes it again
		was, err := c.CloseLane(t.Context(), lane, info.Identity)
		if err != nil || was.Last != want {
			t.Fatalf("closed: %+v, %v, want all %d", was, err, want)
		}
	}
	if _, err := nc.Request(subject, body(1), 5*time.Second); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a closed lane: %v", err)
	}
	eventually(t, "what was taken in to be stored, and nothing else", func() error {
		if last, err := c.Last(t.Context(), lane); err != nil || last != want {
			return fmt.Errorf("%d, %v", last, err)
		}
		return nil
	})
	layout := Layout{Identities: make([]string, lane+1)}
	layout.Identities[lane] = info.Identity
	if _, err := c.EnsureStreams(t.Context(), layout); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it to be open", func() error {
		m, err := nc.Request(subject, body(1), 5*time.Second)
		if err != nil {
			return err
		}
		if ack, err := parsePubAck(m.Data); err != nil || ack.seq != want+1 {
			t.Errorf("opened again: %+v, %v, want %d", ack, err, want+1)
		}
		return nil
	})
}

// A lane that has no leader just now cannot be closed; what another restore left
// in its place need not be.
func TestDrill_Leaderless(t *testing.T) {
	if os.Getenv("YARD_SOAK") == "" {
		t.Skip("long: set YARD_SOAK=1, or run make drill-tests")
	}
	nodes := yard(t)
	info, err := nodes[0].LaneInfo(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	nodes[1].kill()
	nodes[2].kill()
	eventually(t, "the replica to say that it has no leader", func() error {
		_, err := nodes[0].CloseLane(t.Context(), 0, info.Identity)
		if !errors.Is(err, ErrNoLeader) || errors.Is(err, ErrSilent) {
			return fmt.Errorf("it says %w", err)
		}
		return nil
	})
	if was, err := nodes[0].CloseLane(t.Context(), 0, "of another restore"); err != nil || was.Last != 0 {
		t.Errorf("of another identity: %+v, %v", was, err)
	}
}
