package health

import (
	"strings"
	"testing"
	"time"
)

// The text about a gap names the stream, the number of missing messages, and the commands to
// run.
func TestGapText(t *testing.T) {
	c := NewChecks(ChecksConfig{Node: "n2", DataDir: "/data"})
	const lacks = "its replica of YARD_JOBS_0 lacks messages that its disk has lost, 3 of them: "
	if got := c.gapText("YARD_JOBS_0", 3); got != lacks+"restore the yard from a backup" {
		t.Errorf("single node: %q", got)
	}
	c.cfg.Clustered = true
	if got := c.gapText("YARD_JOBS_0", 3); !strings.HasPrefix(got, lacks+"stop this node, keep /data aside") || !strings.HasSuffix(got, "'yardmaster cluster replace n2'") {
		t.Errorf("clustered: %q", got)
	}
}

func TestPartitionWatch(t *testing.T) {
	begun := time.Now()
	all, cut := []string{"n1", "n2", "n3"}, []string{"n2", "n3"}
	var c partitionWatch
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
		{13 * time.Second, "n1", cut, 0, false}, // starts again
		{23 * time.Second, "n1", cut, 0, true},
		{24 * time.Second, "n4", cut, 0, false},  // another authority
		{35 * time.Second, "n4", cut, -1, false}, // no contact with the Raft leader either
		{36 * time.Second, "", cut, 0, false},
	} {
		if got := c.persists(begun.Add(look.after), look.owner, look.reaches, look.contact); got != look.want {
			t.Errorf("after %s: %v", look.after, got)
		}
	}
}
