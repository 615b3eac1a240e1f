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

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// TestAside: a bit of the snapshot of a lane's group is turned on one member while it
// is down. It says that it has no part in that lane, keeps nothing of what it hears of
// it, and has it again when its copy was removed.
func TestAside(t *testing.T) {
	nodes := yard(t)
	stream, at := LaneStream(0), nodes[2]
	publish(t, nodes[0], 0, 50)
	eventually(t, "a snapshot", func() error { return at.srv.JetStreamSnapshotStream(account, stream) })
	group, err := at.CopyGroup(stream)
	if err != nil || group == "" {
		t.Fatalf("group %q of %s: %v", group, stream, err)
	}
	at.kill()
	turnSnapshot(t, at.cfg.Dir, group)
	eventually(t, "the stream to be older than what JetStream takes for one that cannot be made", func() error {
		info, err := nodes[0].LaneInfo(t.Context(), 0)
		if err == nil && time.Since(info.Created) < 6*time.Second {
			err = errors.New("it is not")
		}
		return err
	})

	at = run(t, at.cfg)
	eventually(t, "the damage to be told", func() error { return unopened(at, stream) })
	publish(t, nodes[0], 0, 500)
	if n := untaken(at, group); n > 0 {
		t.Errorf("%d messages of the group are kept in memory", n)
	}
	eventually(t, "the others to do without it", func() error {
		why, _, err := nodes[0].Spares(t.Context(), stream, at.Node())
		if err == nil && why != "" {
			err = fmt.Errorf("%s", why)
		}
		return err
	})
	at.kill()

	at = run(t, at.cfg) // it knows still
	eventually(t, "the damage to be told again", func() error { return unopened(at, stream) })
	if again, err := at.CopyGroup(stream); err != nil || again != group {
		t.Fatalf("group %q of %s, want %q: %v", again, stream, group, err)
	}
	if err := at.CloseStreams(); err != nil {
		t.Fatal(err)
	}
	if err := at.RemoveCopy(stream, group); err != nil {
		t.Fatal(err)
	}
	at.kill()

	at = run(t, at.cfg)
	eventually(t, "the copy to be filled", func() error {
		if why, err := at.Follows(t.Context(), stream); err != nil || why != "" {
			return fmt.Errorf("%s %w", why, err)
		}
		if last, err := at.lastOfCopies(); err != nil || last[stream] != 550 {
			return fmt.Errorf("the copy ends at %d: %w", last[stream], err)
		}
		return unopened(at)
	})
	if _, err := os.Stat(filepath.Join(groupsDir(at.storeDir()), group+asideSuffix)); err == nil {
		t.Error("the group's directory is still aside")
	}
}

func unopened(c *running, want ...string) error {
	streams, err := c.Unopened()
	if err == nil && !slices.Equal(streams, want) {
		err = fmt.Errorf("%q are not open, want %q", streams, want)
	}
	return err
}

// publish stores so many messages in a lane.
func publish(t *testing.T, c *running, lane uint8, messages int) {
	t.Helper()
	for i := range messages {
		eventually(t, "a message to be stored", func() error {
			_, err := c.ingest.ask(t.Context(), &nats.Msg{Subject: laneSubject(lane, nodePublish, "q"), Data: body(i)}, time.Second)
			return err
		})
	}
}

// turnSnapshot turns a bit in the newest snapshot of a group.
func turnSnapshot(t *testing.T, dir, group string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(groupsDir(filepath.Join(dir, "jetstream")), group, "snapshots", "snap.*"))
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

// untaken is how much a server keeps of what it has heard of a group.
func untaken(c *running, group string) (pending int) {
	for name, q := range *c.srv.Ipqueuesz(&server.IpqueueszOptions{All: true}) {
		if strings.Contains(name, group) {
			pending += q.Pending
		}
	}
	return pending
}
