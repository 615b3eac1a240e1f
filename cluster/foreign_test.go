package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"yardmaster/job"
)

// TestForeign: somebody removes a lane's stream and makes one of its name. No job is
// accepted into that one from the nodes, plain publishers are led elsewhere, and
// nothing that lies in it is taken for what lay there before.
func TestForeign(t *testing.T) {
	nodes := yard(t)
	n1 := nodes[0]
	var identities []string
	for lane := range uint8(3) {
		info, err := n1.LaneInfo(t.Context(), lane)
		if err != nil {
			t.Fatal(err)
		}
		identities = append(identities, info.Identity)
	}
	for _, n := range nodes {
		n.KnowLanes(identities)
	}
	put := func(key string) Ack {
		a, err := n1.PublishWait(within(t, 5*time.Second), "mail", key, time.Time{}, body(1))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	own := put("own")
	for i := 0; own.Lane != 0 || own.Seq < 10; i++ { // places that n1 knows to be taken
		own = put(fmt.Sprintf("own %d", i))
	}
	record, err := n1.LoadRecord(t.Context(), own.Position)
	if err != nil {
		t.Fatal(err)
	}
	id := job.RecordID(identities[0], record.Seq, record.Stored)
	if _, err := n1.LoadOwn(t.Context(), own.Position, id, identities[0]); err != nil {
		t.Fatalf("its own record: %v", err)
	}

	if err := nodes[1].js.DeleteStream(t.Context(), LaneStream(0)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its record to be gone with it", func() error { // copies go one by one
		if _, err := n1.LoadOwn(t.Context(), own.Position, id, identities[0]); !errors.Is(err, ErrStreamMissing) {
			return fmt.Errorf("a record of no stream: %w", err)
		}
		return nil
	})
	cfg := laneConfig(0, "somebody's", small(3).withDefaults(&n1.Cluster.cfg))
	if _, err := nodes[1].js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other stream to take messages", func() error {
		_, err := nodes[1].js.Publish(t.Context(), laneSubject(0, nodePublish, "mail"), body(2))
		return err
	})
	for i := range 50 {
		if a := put(fmt.Sprintf("later %d", i)); a.Lane == 0 {
			t.Fatalf("a job is accepted into the other stream, at %d", a.Seq)
		}
	}
	for range own.Seq {
		if _, err := nodes[1].js.Publish(t.Context(), laneSubject(0, nodePublish, "mail"), body(2)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n1.LoadOwn(t.Context(), own.Position, id, identities[0]); !errors.Is(err, ErrForeign) {
		t.Errorf("another record: %v", err)
	}
	for _, n := range nodes {
		nc := visitor(t, n.Cluster)
		eventually(t, "plain publishers to be led elsewhere", func() error {
			var ack jetstream.PubAck
			m, err := nc.Request(SubjectJobs+".mail", body(3), time.Second)
			if err == nil {
				err = json.Unmarshal(m.Data, &ack)
			}
			if err == nil && ack.Stream == LaneStream(0) {
				err = errors.New("it is stored in the other stream")
			}
			return err
		})
	}
}

// A lane that went back takes jobs again when it is as far as it was.
func TestForeign_WentBack(t *testing.T) {
	c := alone(t).Cluster
	c.SetLanes(2)
	s := newLaneStates(c)
	s.raise(1, 100)
	s.raise(1, 90)
	s.disown(1)
	for _, step := range []struct {
		own  bool
		last uint64
		want bool
	}{{true, 99, true}, {false, 200, true}, {true, 100, false}, {true, 50, false}, {false, 300, true}} {
		s.look(1, step.own, step.last)
		if got := s.lane[1].foreign; got != step.want {
			t.Errorf("after %+v: foreign %t", step, got)
		}
	}
	if at := s.stored[1].Load(); at != 100 {
		t.Errorf("stored up to %d", at)
	}
	s.restart(1)
	if lane, ok := s.pick(time.Now(), 0); !ok || s.lane[1].foreign || s.stored[1].Load() != 0 {
		t.Errorf("a lane that is made anew: %d, %t", lane, ok)
	}
}

// Where no lane is the yard's, plain publishes go nowhere.
func TestForeign_All(t *testing.T) {
	c := alone(t).Cluster
	c.SetLanes(2)
	s := newLaneStates(c)
	s.disown(0)
	if got := s.route(time.Now()); got != 1 {
		t.Errorf("to %d", got)
	}
	s.silent(1, time.Now().Add(time.Hour))
	if got := s.route(time.Now()); got != 1 {
		t.Errorf("to %d, while the yard's own does not answer", got)
	}
	s.disown(1)
	if lane, ok := s.pick(time.Now().Add(2*time.Hour), 0); ok || s.route(time.Now()) != shutOff {
		t.Errorf("to lane %d, and by %d", lane, s.route(time.Now()))
	}
}
