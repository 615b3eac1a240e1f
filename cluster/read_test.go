package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// TestLoad_LeaderDamaged checks that a message that is damaged on the leader's
// disk only is still read. The leader reports it as not found, like a message that
// is gone, and a job without its body would become a dead letter.
func TestLoad_LeaderDamaged(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	nodes := startCluster(t)
	const spoiled = 10
	stream := subjects.LaneStream(0)
	for i := range 2 * spoiled {
		if _, err := publishWait(withDeadline(t, patience), nodes[0].Publisher, "mail", fmt.Sprint("k", i), time.Time{}, fmt.Appendf(nil, `{"n":"number %d."}`, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	current := func() error {
		info, err := streams.Info(t.Context(), nodes[1].local.JS, stream)
		if err != nil {
			return err
		}
		if info.State.LastSeq < 2*spoiled {
			return fmt.Errorf("%s ends at %d", stream, info.State.LastSeq)
		}
		if all := info.Cluster.Replicas; len(all) != 2 || slices.ContainsFunc(all, func(p *jetstream.PeerInfo) bool { return !p.Current || p.Offline || p.Lag > 0 }) {
			return fmt.Errorf("replicas are %+v", all)
		}
		return nil
	}
	eventually(t, "all replicas to be equal", current)

	nodes[0].kill()
	file := filepath.Join(nodes[0].cfg.Dir, "jetstream", embedded.AccountYard, "streams", stream, "msgs", "1.blk")
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
	nodes[0] = startNode(t, nodes[0].cfg)
	eventually(t, "the replica to be current", current)
	eventually(t, "the damaged replica to lead", func() error {
		if nodes[0].local.NATS.JetStreamIsStreamLeader(embedded.AccountYard, stream) {
			return nil
		}
		return errors.Join(errors.New("another replica leads"), requestStepDown(t, nodes[1].local.API, "STREAM.LEADER.STEPDOWN."+stream, nodes[0].cfg.Identity))
	})
	eventually(t, "the leader not to have the message", func() error {
		m, err := nodes[1].local.API.Request(t.Context(), &nats.Msg{Subject: "$JS.API.STREAM.MSG.GET." + stream, Data: fmt.Appendf(nil, `{"seq":%d}`, spoiled)}, patience)
		if err == nil && !strings.Contains(string(m.Data), "no message found") {
			err = fmt.Errorf("it returned %s", m.Data)
		}
		return err
	})
	for i := range 60 {
		if _, err := nodes[i%3].Reader.LoadRecord(withDeadline(t, patience), job.Position{Lane: 0, Seq: spoiled}); err != nil {
			t.Fatalf("load %d: %v", i, err)
		}
	}
	for _, n := range nodes {
		for range 20 { // each is answered by a replica at random
			if got, err := n.Reader.Read(t.Context(), 0, spoiled, 1); err != nil || len(got) != 1 {
				t.Errorf("at %s: reading continues with %d records, %v", n.cfg.Node, len(got), err)
			}
		}
	}
}
