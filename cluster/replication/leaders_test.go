package replication

import (
	"testing"
)

func TestPreferredLeader(t *testing.T) {
	members := []string{"n1", "n2", "n3"}
	for lane, want := range []string{"n1", "n3", "n3"} {
		if got := preferredLeader(lane, members, []string{"n1", "n3"}); got != want {
			t.Errorf("lane %d goes to %s; want %s", lane, got, want)
		}
	}
}
