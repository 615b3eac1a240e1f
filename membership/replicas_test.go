package membership

import (
	"testing"
	"time"
)

// TestReconciler_ReplicasCatchingUp checks that a replica that is behind at one
// check and was current at another counts as current, and that one that never was,
// or was long ago, does not.
func TestReconciler_ReplicasCatchingUp(t *testing.T) {
	_, r := newFakeCluster(t)
	at := time.Unix(1000, 0)
	for i, step := range []struct {
		after      time.Duration
		busy, lost bool // whether each replica is current
		want       [2]bool
	}{
		{0, true, false, [2]bool{true, false}},
		{time.Second, false, false, [2]bool{true, false}},
		{currentGrace - 2*time.Second, false, false, [2]bool{true, false}},
		{time.Second, false, false, [2]bool{false, false}},
		{time.Second, true, true, [2]bool{true, true}},
	} {
		at = at.Add(step.after)
		streams := []StreamReplicas{{Stream: "YARD_JOBS_0", Want: 2, Replicas: []Replica{
			{ID: "n2-0000000a", Current: step.busy, Lag: 1}, {ID: "n3-0000000a", Current: step.lost, Lag: 700},
		}}}
		all := r.markCurrent(streams, at)
		got := [2]bool{streams[0].Replicas[0].Current, streams[0].Replicas[1].Current}
		if got != step.want || all != (got == [2]bool{true, true}) {
			t.Errorf("check %d: %v, all %v, want %v", i, got, all, step.want)
		}
	}
}
