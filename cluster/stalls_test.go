package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/replication"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// TestStallDetector_GapsCounted checks that the server counts what is missing from
// a stream's middle and not what was purged from its beginning, also on a node
// that runs alone.
func TestStallDetector_GapsCounted(t *testing.T) {
	c := startSingle(t)
	name := subjects.LaneStream(5) // the existing lane does not permit deletion
	stream, err := c.local.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{"gaps"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := c.local.JS.Publish(t.Context(), "gaps", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSequence(2)); err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	watch := replication.NewStallDetector(c.local, 20*time.Millisecond, 0)
	go watch.Run(t.Context())
	eventually(t, "the gap to be counted, without what was purged", func() error {
		if got := watch.Gaps(); len(got) != 1 || got[name] != 1 {
			return fmt.Errorf("gaps %v", got)
		}
		return nil
	})
}

// TestStalledReplicas makes the disk of one member refuse all writes to one
// stream, and checks that this member, and no other, reports its replica as
// stalled.
func TestStalledReplicas(t *testing.T) {
	nodes := startCluster(t)
	const name = "STALLS"
	stream, err := nodes[0].local.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Replicas: 3, Subjects: []string{"stalls"}})
	if err != nil {
		t.Fatal(err)
	}
	info := stream.CachedInfo()
	at := slices.IndexFunc(nodes, func(n *testNode) bool { return n.Server.local.Config.Identity != info.Cluster.Leader })
	var watches []*replication.StallDetector
	for _, n := range nodes {
		w := replication.NewStallDetector(n.local, 100*time.Millisecond, time.Second)
		go w.Run(t.Context())
		watches = append(watches, w)
	}
	look := func() (named []string) {
		for i, w := range watches {
			if got := w.StalledReplicas(); i == at {
				named = got
			} else if len(got) > 0 {
				t.Fatalf("%s reports %q as stalled", nodes[i].cfg.Node, got)
			}
		}
		return named
	}
	if named := look(); len(named) > 0 {
		t.Fatalf("%q reported as stalled before any fault", named)
	}
	messages := filepath.Join(nodes[at].cfg.Dir, "jetstream", embedded.AccountYard, "streams", name, "msgs")
	if err := errors.Join(os.Rename(messages, messages+".gone"), os.WriteFile(messages, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	body := []byte(strings.Repeat("x", 900<<10))
	eventually(t, "the replica to be reported", func() error {
		if _, err := nodes[0].local.JS.Publish(t.Context(), "stalls", body); err != nil {
			return err
		}
		if got := look(); !slices.Equal(got, []string{name}) {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
}
