package cluster

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// TestCloseLane checks that the final state of a closed lane includes records that
// each node leads its lane accepted before the lane was closed and stores later: they may still
// be acknowledged.
func TestCloseLane(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		c := startSingle(t)
		closeAndReopen(t, c.Server, 0, 0)
		closeAndReopen(t, c.Server, 0, 500) // each record is synced
	})
	t.Run("three", func(t *testing.T) {
		for lane, c := range startCluster(t)[:2] { // each node leads its lane
			closeAndReopen(t, c.Server, uint8(lane), uint64(lane)*20_000)
		}
	})
}

// closeAndReopen publishes records to a lane, closes the lane and opens it again.
func closeAndReopen(t *testing.T, c *Server, lane uint8, records uint64) {
	t.Helper()
	info, err := c.Reader.LaneInfo(t.Context(), lane)
	if err != nil {
		t.Fatal(err)
	}
	nc, subject, want := c.local.Boards.Conn, subjects.LaneSubject(lane, subjects.NodePublish, "mail"), info.Last+records
	for range records {
		if err := nc.Publish(subject, jobBody(1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil { // the leader has received all records
		t.Fatal(err)
	}
	if was, err := c.Admin.CloseLane(t.Context(), lane, "another"); err != nil || was.Last != 0 {
		t.Errorf("a lane of another identity: %+v, %v", was, err)
	}
	for range 2 { // a successor that continues a restore closes it again
		was, err := c.Admin.CloseLane(t.Context(), lane, info.Identity)
		if err != nil || was.Last != want {
			t.Fatalf("closed: %+v, %v, want all %d", was, err, want)
		}
	}
	if _, err := nc.Request(subject, jobBody(1), 5*time.Second); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("a closed lane: %v", err)
	}
	eventually(t, "all accepted records to be stored, and no others", func() error {
		if last, err := c.Reader.LastSeq(t.Context(), lane); err != nil || last != want {
			return fmt.Errorf("%d, %v", last, err)
		}
		return nil
	})
	layout := streams.Layout{Identities: make([]string, lane+1)}
	layout.Identities[lane] = info.Identity
	eventually(t, "the lane to be open", func() error {
		if _, err := c.Admin.EnsureStreams(t.Context(), layout); err != nil {
			return err
		}
		m, err := nc.Request(subject, jobBody(1), 5*time.Second)
		if err != nil {
			return err
		}
		if ack, err := embedded.ParsePubAck(m.Data); err != nil || ack.Seq != want+1 {
			t.Errorf("opened again: %+v, %v, want %d", ack, err, want+1)
		}
		return nil
	})
}

// TestDrill_CloseLeaderlessLane checks that a lane without a leader cannot be
// closed, and that a lane with another identity, left over from another restore,
// need not be.
func TestDrill_CloseLeaderlessLane(t *testing.T) {
	if os.Getenv("YARD_SOAK") == "" {
		t.Skip("long: set YARD_SOAK=1, or run make drill-tests")
	}
	nodes := startCluster(t)
	info, err := nodes[0].Reader.LaneInfo(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	nodes[1].kill()
	nodes[2].kill()
	eventually(t, "the replica to report that it has no leader", func() error {
		_, err := nodes[0].Admin.CloseLane(t.Context(), 0, info.Identity)
		if !errors.Is(err, streams.ErrNoLeader) || errors.Is(err, streams.ErrNoReplica) {
			return fmt.Errorf("it reports %w", err)
		}
		return nil
	})
	if was, err := nodes[0].Admin.CloseLane(t.Context(), 0, "of another restore"); err != nil || was.Last != 0 {
		t.Errorf("of another identity: %+v, %v", was, err)
	}
}
