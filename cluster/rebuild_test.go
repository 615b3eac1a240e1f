package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A removal that is cut off leaves no copy that its group would elect without its
// messages: the log goes first.
func TestRemoveCopy_CutOff(t *testing.T) {
	c := alone(t)
	if _, err := c.PublishWait(within(t, 5*time.Second), "mail", "k", time.Time{}, body(1)); err != nil {
		t.Fatal(err)
	}
	stream := LaneStream(0)
	if err := c.RemoveCopy(stream, "a group"); err == nil {
		t.Fatal("it was removed under a running JetStream")
	}
	if err := c.CloseStreams(); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveCopy(stream, "\x00"); err == nil {
		t.Fatal("the log of a group that no file can have was removed")
	}
	messages := filepath.Join(c.streamDir(stream), "msgs")
	if blocks, err := blocksOf(messages); err != nil || len(blocks) == 0 {
		t.Errorf("the messages went before the log: %d blocks, %v", len(blocks), err)
	}
	if err := c.RemoveCopy(stream, "a group"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(messages); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the messages stay: %v", err)
	}
}

// A node that is to have no copy hears so, and does not wait for one.
func TestFollows(t *testing.T) {
	nodes := yard(t)
	stream, err := nodes[0].js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ONE", Subjects: []string{"one"}, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	leader := stream.CachedInfo().Cluster.Leader
	at := slices.IndexFunc(nodes, func(n *running) bool { return n.Cluster.cfg.Identity == leader })
	for i, n := range nodes {
		if why, err := n.Follows(t.Context(), "ONE"); i == at && (why != "" || err != nil) || i != at && !errors.Is(err, ErrNoCopy) {
			t.Errorf("%s of a copy at %s: %q, %v", n.cfg.Node, leader, why, err)
		}
		eventually(t, "the copy to be current", func() error {
			why, err := n.Follows(t.Context(), LaneStream(0))
			if err != nil || why != "" {
				return fmt.Errorf("%s: %q, %w", n.cfg.Node, why, err)
			}
			return nil
		})
	}
}
