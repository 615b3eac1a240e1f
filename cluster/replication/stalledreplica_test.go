package replication

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// TestStallDetector_Stalled checks that a replica that makes progress is not
// reported, whatever it lacks, nor one that could not be compared with its leader
// for a while.
func TestStallDetector_Stalled(t *testing.T) {
	synctest.Test(t, testStalled)
}

func testStalled(t *testing.T) {
	s := &StallDetector{timeout: 20 * time.Second}
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
		s.recordProgress(step.led, mine)
		if got := s.StalledReplicas(); !slices.Equal(got, step.want) {
			t.Errorf("%v of %v: stalled %q, want %q", step.mine, step.led, got, step.want)
		}
		time.Sleep(10 * time.Second)
	}
}

// TestStallDetector_Gaps checks that a gap in a dense stream is reported once it
// has lasted, until it is closed.
func TestStallDetector_Gaps(t *testing.T) {
	synctest.Test(t, testGaps)
}

func testGaps(t *testing.T) {
	s := &StallDetector{timeout: 20 * time.Second}
	lane := subjects.LaneStream(0)
	for _, step := range []struct {
		missing map[string]uint64
		want    map[string]uint64
	}{
		{map[string]uint64{lane: 3, subjects.StreamEvents: 1, subjects.StreamDLQ: 7}, map[string]uint64{}},
		{map[string]uint64{lane: 2, subjects.StreamEvents: 0, subjects.StreamDLQ: 7}, map[string]uint64{}},
		{map[string]uint64{lane: 4, subjects.StreamEvents: 1, subjects.StreamDLQ: 7}, map[string]uint64{lane: 4}},
		{nil, map[string]uint64{}},
		{map[string]uint64{lane: 4}, map[string]uint64{}},
	} {
		mine := map[string]replicaState{}
		for stream, missing := range step.missing {
			mine[stream] = replicaState{last: 100, missing: missing}
		}
		s.recordGaps(mine)
		if got := s.Gaps(); !maps.Equal(got, step.want) {
			t.Errorf("after %v: gaps %v, want %v", step.missing, got, step.want)
		}
		time.Sleep(10 * time.Second)
	}
}
