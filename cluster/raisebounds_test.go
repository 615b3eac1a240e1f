package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// TestRaiseBounds_Cluster checks that lanes take more once MaxStore is raised on all
// members, and that their replicas stay equal.
func TestRaiseBounds_Cluster(t *testing.T) {
	nodes := startThreeWith(t, 256<<20)
	layout := streams.Layout{Identities: make([]string, 3), Create: true}
	ensure := func(n *testNode) {
		eventually(t, "streams to be ensured", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			ids, err := n.Admin.EnsureStreams(ctx, layout)
			if err == nil {
				layout = streams.Layout{Identities: ids}
			}
			return err
		})
	}
	limit := func(n *testNode) (most int64) {
		eventually(t, "the lane's bound", func() error {
			info, err := n.Reader.LaneInfo(t.Context(), 0)
			most = info.MaxBytes
			return err
		})
		return most
	}
	restart := func(i int, store int64) {
		nodes[i].kill()
		cfg := nodes[i].cfg
		cfg.MaxStore = store
		nodes[i] = startNode(t, cfg)
	}
	ensure(nodes[0])
	before := limit(nodes[0])
	restart(0, 1<<30)
	restart(1, 1<<30)
	restart(2, 1<<30)
	eventually(t, "the bounds to be raised", func() error {
		if err := nodes[0].Admin.ApplyRetention(withDeadline(t, 5*time.Second), nil); err != nil {
			return err
		}
		if now := limit(nodes[0]); now < 3*before {
			return fmt.Errorf("the bound of lane 0 is %d, before it was %d", now, before)
		}
		return nil
	})
	body := fmt.Appendf(nil, `{"params":{"text":%q}}`, strings.Repeat("x", 60<<10))
	for i := int64(0); i*(60<<10) < before*3/2; i++ {
		eventually(t, "a record", func() error {
			_, err := publishWait(withDeadline(t, 5*time.Second), nodes[0].Publisher, "mail", fmt.Sprintf("k%d", i), time.Time{}, body)
			return err
		})
	}
	for _, n := range nodes {
		eventually(t, n.cfg.Node+" to be healthy", func() error { return n.Health() })
	}
	state := func(n *testNode) (last uint64, most int64) {
		info, err := n.local.NATS.Jsz(&server.JSzOptions{Account: embedded.AccountYard, Streams: true, Config: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, account := range info.AccountDetails {
			for i := range account.Streams {
				if s := &account.Streams[i]; s.Name == subjects.LaneStream(0) {
					last, most = s.State.LastSeq, s.Config.MaxBytes
				}
			}
		}
		return last, most
	}
	eventually(t, "replicas to be equal", func() error {
		want, _ := state(nodes[0])
		for _, n := range nodes {
			if last, most := state(n); last != want || want == 0 || most < 3*before {
				return fmt.Errorf("%s has lane 0 up to %d with the bound %d, want %d", n.cfg.Node, last, most, want)
			}
		}
		return nil
	})
}
