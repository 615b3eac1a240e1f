package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

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
	put := func(key string) Ack {
		a, err := n1.Publisher.PublishWait(withDeadline(t, 5*time.Second), "mail", key, time.Time{}, jobBody(1))
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
	id := job.RecordID(identities[0], record.Seq, record.Stored)
	if _, err := n1.Reader.LoadVerified(t.Context(), own.Position, id, identities[0]); err != nil {
		t.Fatalf("own record: %v", err)
	}

	if err := nodes[1].local.js.DeleteStream(t.Context(), LaneStream(0)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the record to be gone with the stream", func() error { // replicas are removed one by one
		if _, err := n1.Reader.LoadVerified(t.Context(), own.Position, id, identities[0]); !errors.Is(err, ErrStreamMissing) {
			return fmt.Errorf("record of the removed stream: %w", err)
		}
		return nil
	})
	cfg := laneConfig(0, "another", smallLayout(3).withDefaults(&n1.Server.local.cfg))
	if _, err := nodes[1].local.js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other stream to accept messages", func() error {
		_, err := nodes[1].local.js.Publish(t.Context(), laneSubject(0, nodePublish, "mail"), jobBody(2))
		return err
	})
	for i := range 50 {
		if a := put(fmt.Sprintf("later %d", i)); a.Lane == 0 {
			t.Fatalf("job accepted into the other stream, at %d", a.Seq)
		}
	}
	for range own.Seq {
		if _, err := nodes[1].local.js.Publish(t.Context(), laneSubject(0, nodePublish, "mail"), jobBody(2)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n1.Reader.LoadVerified(t.Context(), own.Position, id, identities[0]); !errors.Is(err, ErrStreamMismatch) {
		t.Errorf("record of the other stream: %v", err)
	}
	for _, n := range nodes {
		nc := connectClient(t, n.Server)
		eventually(t, "direct publishes to be routed to another lane", func() error {
			var ack jetstream.PubAck
			m, err := nc.Request(SubjectJobs+".mail", jobBody(3), time.Second)
			if err == nil {
				err = json.Unmarshal(m.Data, &ack)
			}
			if err == nil && ack.Stream == LaneStream(0) {
				err = errors.New("it was stored in the other stream")
			}
			return err
		})
	}
}

// TestStreamMismatch_RolledBack checks that a lane that was rolled back accepts
// jobs again when it has reached its highest known sequence.
func TestStreamMismatch_RolledBack(t *testing.T) {
	c := startSingle(t).Server
	c.local.setLanes(2)
	s := &laneStates{local: c.local}
	s.raiseLast(1, 100)
	s.raiseLast(1, 90)
	s.markMismatched(1)
	for _, step := range []struct {
		own  bool
		last uint64
		want bool
	}{{true, 99, true}, {false, 200, true}, {true, 100, false}, {true, 50, false}, {false, 300, true}} {
		s.setIdentityMatch(1, step.own, step.last)
		if got := s.lane[1].mismatched; got != step.want {
			t.Errorf("after %+v: mismatched %t", step, got)
		}
	}
	if at := s.lastSeq[1].Load(); at != 100 {
		t.Errorf("highest known sequence %d", at)
	}
	s.reset(1)
	if lane, ok := s.pick(time.Now()); !ok || s.lane[1].mismatched || s.lastSeq[1].Load() != 0 {
		t.Errorf("a replaced lane: picked %d, %t", lane, ok)
	}
}

// TestStreamMismatch_AllLanes checks that direct publishes have no route if no
// lane is the ledger's.
func TestStreamMismatch_AllLanes(t *testing.T) {
	c := startSingle(t).Server
	c.local.setLanes(2)
	s := &laneStates{local: c.local}
	s.markMismatched(0)
	if got := s.directRoute(time.Now()); got != 1 {
		t.Errorf("routed to %d", got)
	}
	s.markNoAnswer(1, time.Now().Add(time.Hour))
	if got := s.directRoute(time.Now()); got != 1 {
		t.Errorf("routed to %d, while the only valid lane does not answer", got)
	}
	s.markMismatched(1)
	if lane, ok := s.pick(time.Now().Add(2 * time.Hour)); ok || s.directRoute(time.Now()) != routeNone {
		t.Errorf("picked lane %d, direct route %d", lane, s.directRoute(time.Now()))
	}
}
