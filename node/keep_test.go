package node

import (
	"testing"
	"time"
)

func TestCutWatch(t *testing.T) {
	begun := time.Now()
	all, cut := []string{"n1", "n2", "n3"}, []string{"n2", "n3"}
	var c cutWatch
	for _, look := range []struct {
		after   time.Duration
		owner   string
		reaches []string
		contact time.Duration
		want    bool
	}{
		{0, "n1", all, 0, false},
		{1 * time.Second, "n1", cut, 0, false},
		{10 * time.Second, "n1", cut, 0, false},
		{11 * time.Second, "n1", cut, 0, true}, // partial partition
		{12 * time.Second, "n1", all, 0, false},
		{13 * time.Second, "n1", cut, 0, false}, // counts anew
		{23 * time.Second, "n1", cut, 0, true},
		{24 * time.Second, "n4", cut, 0, false},  // another authority
		{35 * time.Second, "n4", cut, -1, false}, // agreement is gone, too
		{36 * time.Second, "", cut, 0, false},
	} {
		if got := c.lasts(begun.Add(look.after), look.owner, look.reaches, look.contact); got != look.want {
			t.Errorf("after %s: %v", look.after, got)
		}
	}
}
