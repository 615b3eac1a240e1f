package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/replication"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// TestRun_DamagedSnapshot flips a bit in a snapshot of a lane's Raft group on one
// member while it is down. The server does not start the group, and Run returns
// [embedded.ErrDamaged]; the other members accept jobs. The test guards the text of the
// server's log line, by which the member detects the damage.
func TestRun_DamagedSnapshot(t *testing.T) {
	nodes := startCluster(t)
	stream, at := subjects.LaneStream(0), nodes[2]
	publish(t, nodes[0], 0, 50)
	eventually(t, "a snapshot", func() error { return at.local.NATS.JetStreamSnapshotStream(embedded.AccountYard, stream) })
	group := groupOf(t, at, stream)
	at.kill()
	flipSnapshotBit(t, at.cfg.Dir, group)
	awaitAge(t, nodes[0])

	c, err := Start(t.Context(), at.cfg, discardLog())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := c.Run(ctx); !errors.Is(err, embedded.ErrDamaged) {
		t.Fatalf("Run returned %v, want ErrDamaged", err)
	}
	publish(t, nodes[0], 0, 50)
}

// TestRun_GroupSetAside opens a directory in which an earlier build has replaced a
// damaged group by a file. The member receives nothing of that stream and reports
// it as stalled.
func TestRun_GroupSetAside(t *testing.T) {
	nodes := startCluster(t)
	stream, at := subjects.LaneStream(0), nodes[2]
	publish(t, nodes[0], 0, 5)
	place := filepath.Join(at.cfg.Dir, "jetstream", "$SYS", "_js_", groupOf(t, at, stream))
	at.kill()
	if err := errors.Join(os.Rename(place, place+".damaged"), os.WriteFile(place, []byte("set aside"), 0o600)); err != nil {
		t.Fatal(err)
	}
	awaitAge(t, nodes[0])
	at = startNode(t, at.cfg)
	publish(t, nodes[0], 0, 5)
	watch := replication.NewStallDetector(at.local, 50*time.Millisecond, 0)
	go watch.Run(t.Context())
	eventually(t, "only that stream to be reported as stalled", func() error {
		if got := watch.StalledReplicas(); !slices.Equal(got, []string{stream}) {
			return fmt.Errorf("stalled: %q", got)
		}
		return at.Health()
	})
}

// awaitAge blocks until lane 0 is older than the time within which JetStream would
// remove it because a member could not create its replica.
func awaitAge(t *testing.T, c *testNode) {
	t.Helper()
	eventually(t, "the lane to be older than six seconds", func() error {
		info, err := streams.Info(t.Context(), c.local.JS, subjects.LaneStream(0))
		if err == nil && time.Since(info.Created) < 6*time.Second {
			err = errors.New("it is younger")
		}
		return err
	})
}

// groupOf returns the Raft group of a stream of which c has a replica.
func groupOf(t *testing.T, c *testNode, stream string) string {
	t.Helper()
	info, err := c.local.NATS.Jsz(&server.JSzOptions{Account: embedded.AccountYard, Streams: true, RaftGroups: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range info.AccountDetails {
		for i := range a.Streams {
			if a.Streams[i].Name == stream {
				return a.Streams[i].RaftGroup
			}
		}
	}
	t.Fatalf("%s has no replica of %s", c.cfg.Node, stream)
	return ""
}

// publish stores this many messages in a lane.
func publish(t *testing.T, c *testNode, lane uint8, messages int) {
	t.Helper()
	for i := range messages {
		eventually(t, "a message to be stored", func() error {
			_, err := c.local.Ingest.Request(t.Context(), &nats.Msg{Subject: subjects.LaneSubject(lane, subjects.NodePublish, "q"), Data: jobBody(i)}, time.Second)
			return err
		})
	}
}

// flipSnapshotBit flips a bit in the newest snapshot of a group.
func flipSnapshotBit(t *testing.T, dir, group string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "jetstream", "$SYS", "_js_", group, "snapshots", "snap.*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("snapshots %q: %v", found, err)
	}
	content, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(found[0], content, 0o600); err != nil {
		t.Fatal(err)
	}
}
