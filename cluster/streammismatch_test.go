package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// TestStreamMismatch removes a lane's stream and creates another one with its
// name. Nodes accept no job into it, direct publishes are routed to other lanes,
// and its records are not taken for those that were there before.
func TestStreamMismatch(t *testing.T) {
	nodes := startCluster(t)
	n1 := nodes[0]
	var identities []string
	for lane := range uint8(3) {
		info, err := n1.Reader.LaneInfo(t.Context(), lane)
		if err != nil {
			t.Fatal(err)
		}
		identities = append(identities, info.Identity)
	}
	for _, n := range nodes {
		n.Publisher.SetLaneIdentities(identities)
	}
	put := func(key string) lanes.Ack {
		a, err := publishWait(withDeadline(t, patience), n1.Publisher, "mail", key, time.Time{}, jobBody(1))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	own := put("own")
	for i := 0; own.Lane != 0 || own.Seq < 10; i++ { // so that n1 knows these sequences to be used
		own = put(fmt.Sprintf("own %d", i))
	}
	record, err := n1.Reader.LoadRecord(t.Context(), own.Position)
	if err != nil {
		t.Fatal(err)
	}
	id := job.RecordID(identities[0], record.Position, record.Stored)
	if _, err := n1.Reader.LoadVerified(t.Context(), own.Position, id, identities[0]); err != nil {
		t.Fatalf("own record: %v", err)
	}

	info, err := streams.Info(t.Context(), n1.Server.local.JS, subjects.LaneStream(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := nodes[1].local.JS.DeleteStream(t.Context(), subjects.LaneStream(0)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the record to be gone with the stream", func() error { // replicas are removed one by one
		if _, err := n1.Reader.LoadVerified(t.Context(), own.Position, id, identities[0]); !errors.Is(err, streams.ErrStreamMissing) {
			return fmt.Errorf("record of the removed stream: %w", err)
		}
		return nil
	})
	cfg := info.Config
	cfg.Metadata[subjects.MetaIdentity] = "another"
	if _, err := nodes[1].local.JS.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other stream to accept messages", func() error {
		_, err := nodes[1].local.JS.Publish(t.Context(), subjects.LaneSubject(0, subjects.NodePublish, "mail"), jobBody(2))
		return err
	})
	for i := range 50 {
		if a := put(fmt.Sprintf("later %d", i)); a.Lane == 0 {
			t.Fatalf("job accepted into the other stream, at %d", a.Seq)
		}
	}
	for range own.Seq {
		if _, err := nodes[1].local.JS.Publish(t.Context(), subjects.LaneSubject(0, subjects.NodePublish, "mail"), jobBody(2)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n1.Reader.LoadVerified(t.Context(), own.Position, id, identities[0]); !errors.Is(err, streams.ErrStreamMismatch) {
		t.Errorf("record of the other stream: %v", err)
	}
	for _, n := range nodes {
		nc := connectClient(t, n.Server)
		eventually(t, "direct publishes to be routed to another lane", func() error {
			var ack jetstream.PubAck
			m, err := nc.Request(subjects.Jobs+".mail", jobBody(3), time.Second)
			if err == nil {
				err = json.Unmarshal(m.Data, &ack)
			}
			if err == nil && ack.Stream == subjects.LaneStream(0) {
				err = errors.New("it was stored in the other stream")
			}
			return err
		})
	}
}
