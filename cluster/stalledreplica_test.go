package cluster

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// TestStallDetector_Stalled checks that a replica that makes progress is not
// reported, whatever it lacks, nor one that could not be compared with its leader
// for a while.
func TestStallDetector_Stalled(t *testing.T) {
	s := &stallDetector{timeout: 20 * time.Second}
	at := time.Unix(1000, 0)
	for _, step := range []struct {
		led, mine map[string]uint64
		want      []string
	}{
		{map[string]uint64{"a": 100, "b": 100, "c": 10}, map[string]uint64{"a": 1, "b": 1, "c": 10}, nil},
		{map[string]uint64{"a": 200, "b": 200, "c": 20}, map[string]uint64{"a": 2, "b": 1, "c": 20}, nil},
		{map[string]uint64{"a": 300, "b": 300, "c": 30}, map[string]uint64{"a": 3, "b": 1, "c": 30}, []string{"b"}},
		{nil, nil, nil},
		{map[string]uint64{"a": 400, "b": 400, "d": 1}, map[string]uint64{"a": 4, "b": 1}, nil},
		{map[string]uint64{"a": 400, "b": 400, "d": 1}, map[string]uint64{"a": 4, "b": 400}, nil},
		{map[string]uint64{"a": 400, "b": 400, "d": 1}, map[string]uint64{"a": 4, "b": 400}, []string{"a", "d"}},
	} {
		mine := map[string]replicaState{}
		for stream, last := range step.mine {
			mine[stream] = replicaState{last: last}
		}
		s.record(step.led, mine, at)
		if got := s.stalled(at); !slices.Equal(got, step.want) {
			t.Errorf("%v of %v: stalled %q, want %q", step.mine, step.led, got, step.want)
		}
		at = at.Add(10 * time.Second)
	}
}

// TestStallDetector_Gaps checks that a gap in a dense stream is reported once it
// has lasted, until it is closed.
func TestStallDetector_Gaps(t *testing.T) {
	s := &stallDetector{timeout: 20 * time.Second}
	lane := LaneStream(0)
	at := time.Unix(1000, 0)
	for _, step := range []struct {
		missing map[string]uint64
		want    map[string]uint64
	}{
		{map[string]uint64{lane: 3, StreamEvents: 1, StreamDLQ: 7}, map[string]uint64{}},
		{map[string]uint64{lane: 2, StreamEvents: 0, StreamDLQ: 7}, map[string]uint64{}},
		{map[string]uint64{lane: 4, StreamEvents: 1, StreamDLQ: 7}, map[string]uint64{lane: 4}},
		{nil, map[string]uint64{}},
		{map[string]uint64{lane: 4}, map[string]uint64{}},
	} {
		mine := map[string]replicaState{}
		for stream, missing := range step.missing {
			mine[stream] = replicaState{last: 100, missing: missing}
		}
		s.recordGaps(mine, at)
		if got := s.lastingGaps(at); !maps.Equal(got, step.want) {
			t.Errorf("after %v: gaps %v, want %v", step.missing, got, step.want)
		}
		at = at.Add(10 * time.Second)
	}
}

// TestStallDetector_GapsCounted checks that the server counts what is missing from
// a stream's middle and not what was purged from its beginning, also on a node
// that runs alone.
func TestStallDetector_GapsCounted(t *testing.T) {
	c := startSingle(t)
	name := LaneStream(5) // the existing lane does not permit deletion
	stream, err := c.local.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{"gaps"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := c.local.js.Publish(t.Context(), "gaps", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSequence(2)); err != nil {
		t.Fatal(err)
	}
	watch := &stallDetector{local: c.local}
	for _, want := range []map[string]uint64{{}, {name: 1}} {
		watch.check(t.Context())
		if got := watch.lastingGaps(time.Now()); !maps.Equal(got, want) {
			t.Errorf("gaps %v, want %v", got, want)
		}
		if err := stream.DeleteMsg(t.Context(), 4); err != nil && len(want) == 0 {
			t.Fatal(err)
		}
	}
}

// TestStalledReplicas makes the disk of one member refuse all writes to one
// stream, and checks that this member, and no other, reports its replica as
// stalled.
func TestStalledReplicas(t *testing.T) {
	nodes := startCluster(t)
	const name = "STALLS"
	stream, err := nodes[0].local.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Replicas: 3, Subjects: []string{"stalls"}})
	if err != nil {
		t.Fatal(err)
	}
	info := stream.CachedInfo()
	at := slices.IndexFunc(nodes, func(n *testNode) bool { return n.Server.local.cfg.Identity != info.Cluster.Leader })
	var watches []*stallDetector
	for _, n := range nodes {
		watches = append(watches, &stallDetector{local: n.local, timeout: time.Second})
	}
	look := func() (named []string) {
		for i, w := range watches {
			w.check(t.Context())
			if got := w.stalled(time.Now()); i == at {
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
	messages := filepath.Join(nodes[at].cfg.Dir, "jetstream", accountYard, "streams", name, "msgs")
	if err := errors.Join(os.Rename(messages, messages+".gone"), os.WriteFile(messages, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	body := []byte(strings.Repeat("x", 900<<10))
	eventually(t, "the replica to be reported", func() error {
		if _, err := nodes[0].local.js.Publish(t.Context(), "stalls", body); err != nil {
			return err
		}
		if got := look(); !slices.Equal(got, []string{name}) {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
}
