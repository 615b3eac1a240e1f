package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"yardmaster/job"
)

// TestLoad_LeaderDamaged: what only the leader's disk has spoiled is not gone. The
// leader says so of both, and a job without its body would be a dead letter.
func TestLoad_LeaderDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	nodes := yard(t)
	const spoiled = 10
	stream := LaneStream(0)
	for i := range 2 * spoiled {
		if _, err := nodes[0].PublishWait(within(t, 5*time.Second), "mail", fmt.Sprint("k", i), time.Time{}, fmt.Appendf(nil, `{"n":"number %d."}`, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	current := func() error {
		info, err := nodes[1].streamInfo(t.Context(), stream)
		if err != nil {
			return err
		}
		if info.State.LastSeq < 2*spoiled {
			return fmt.Errorf("%s ends at %d", stream, info.State.LastSeq)
		}
		if all := copiesOf(info.Cluster); len(all) != 3 || slices.ContainsFunc(all, func(c Copy) bool { return !c.Current || c.Offline || c.Lag > 0 }) {
			return fmt.Errorf("copies are %+v", all)
		}
		return nil
	}
	eventually(t, "all copies to be alike", current)

	nodes[0].kill()
	file := filepath.Join(nodes[0].streamDir(stream), "msgs", "1.blk")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(text, fmt.Appendf(nil, "number %d.", spoiled))
	if at < 0 {
		t.Fatalf("%s does not hold the message", file)
	}
	text[at] ^= 1
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	nodes[0] = run(t, nodes[0].cfg)
	eventually(t, "the copy to be followed up", current)
	eventually(t, "the damaged copy to lead", func() error {
		if nodes[0].srv.JetStreamIsStreamLeader(account, stream) {
			return nil
		}
		return errors.Join(errors.New("another leads"), nodes[1].stepDown(t.Context(), stream, nodes[0].Cluster.cfg.Identity))
	})
	eventually(t, "the leader not to have the message", func() error {
		if _, err := nodes[1].leaderOne(t.Context(), stream, getRequest{Seq: spoiled}); !errors.Is(err, ErrNotStored) {
			return fmt.Errorf("it says %v", err)
		}
		return nil
	})
	for i := range 60 {
		if _, err := nodes[i%3].LoadRecord(within(t, 10*time.Second), job.Position{Lane: 0, Seq: spoiled}); err != nil {
			t.Fatalf("load %d: %v", i, err)
		}
	}
	for _, n := range nodes {
		if got, err := n.readAtGap(t.Context(), 0, spoiled); err != nil || len(got) != 1 {
			t.Errorf("at %s: the lane is read on with %d records, %v", n.cfg.Node, len(got), err)
		}
		if keeps, err := n.Keeps(t.Context(), stream, spoiled); !keeps || err != nil {
			t.Errorf("at %s: the message is kept: %v, %v", n.cfg.Node, keeps, err)
		}
		if keeps, err := n.Keeps(t.Context(), stream, 5*spoiled); keeps || err != nil {
			t.Errorf("at %s: one that never was is kept: %v, %v", n.cfg.Node, keeps, err)
		}
	}
}
