package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/testnet"

	"github.com/nats-io/nats.go"
)

func TestStart_BadConfig(t *testing.T) {
	dir := t.TempDir()
	peers := []embedded.Peer{{Node: "n1", Route: "127.0.0.1:1"}, {Node: "n2", Route: "127.0.0.1:2"}, {Node: "n3", Route: "127.0.0.1:3"}}
	for _, tt := range []struct {
		name string
		cfg  embedded.Config
		want string
	}{
		{"name", embedded.Config{Node: "Big Name", Dir: dir}, "member name"},
		{"dir", embedded.Config{Node: "n1"}, "data directory"},
		{"no peers", embedded.Config{Node: "n1", Dir: dir, RouteListen: "127.0.0.1:0", Yard: "y"}, "members"},
		{"stranger", embedded.Config{Node: "n9", Dir: dir, RouteListen: "127.0.0.1:0", Yard: "y", Peers: peers}, "not among the members"},
		{"no yard", embedded.Config{Node: "n1", Dir: dir, RouteListen: "127.0.0.1:0", Peers: peers}, "yard id"},
	} {
		tt.cfg.MaxStore = 1 << 30
		_, err := Start(t.Context(), tt.cfg, discardLog())
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one about %q", tt.name, err, tt.want)
		}
	}
}

func TestStart_PortInUse(t *testing.T) {
	c := startSingle(t)
	addr := strings.TrimPrefix(c.ClientURL(), "nats://")
	_, err := Start(t.Context(), embedded.Config{Node: "other", Dir: t.TempDir(), ClientListen: addr, MaxStore: 1 << 30}, discardLog())
	if err == nil || !strings.Contains(err.Error(), addr) {
		t.Fatalf("error %v, want one that names %s", err, addr)
	}
}

func TestEnsureStreams_Identity(t *testing.T) {
	c := startNode(t, embedded.Config{Node: "solo", Dir: t.TempDir(), ClientListen: "127.0.0.1:0", MaxStore: 1 << 30})
	layout := smallLayout(1)
	layout.Create = false
	_, err := c.Admin.EnsureStreams(t.Context(), layout)
	wantErr(t, err, streams.ErrStreamMissing)
	_, err = c.Reader.LaneInfo(t.Context(), 0)
	wantErr(t, err, streams.ErrStreamMissing)

	layout.Create, layout.Identities = true, []string{"one"}
	if got, err := c.Admin.EnsureStreams(t.Context(), layout); err != nil || !slices.Equal(got, layout.Identities) {
		t.Fatalf("created %v, %v", got, err)
	}
	layout.Identities = []string{"two"}
	var other *streams.IdentityError
	if _, err := c.Admin.EnsureStreams(t.Context(), layout); !errors.As(err, &other) || other.Got != "one" {
		t.Fatalf("another identity: %v", err)
	}
	layout.Identities = []string{""}
	if got, err := c.Admin.EnsureStreams(t.Context(), layout); err != nil || got[0] != "one" {
		t.Fatalf("any identity: %v, %v", got, err)
	}
	if li, err := c.Reader.LaneInfo(t.Context(), 0); err != nil || li.Identity != "one" || li.Leader != "solo" {
		t.Fatalf("lane: %+v, %v", li, err)
	}
	if err := c.Health(); err != nil {
		t.Fatal(err)
	}
}

// TestEnsureStreams_SmallDisk checks that the default limits fit into a small
// MaxStore.
func TestEnsureStreams_SmallDisk(t *testing.T) {
	c := startNode(t, embedded.Config{Node: "solo", Dir: t.TempDir(), ClientListen: "127.0.0.1:0", MaxStore: 256 << 20})
	if _, err := c.Admin.EnsureStreams(t.Context(), streams.Layout{Identities: make([]string, 5), Create: true}); err != nil {
		t.Fatal(err)
	}
	if li, err := c.Reader.LaneInfo(t.Context(), 4); err != nil || li.MaxBytes < 12<<20 {
		t.Fatalf("lane: %+v, %v", li, err)
	}
}

// TestApplyRetention_NoSpace checks that the error for bytes that the store does not have
// names the setting to lower, that the other settings are applied, of the same stream too,
// and that the defaults come back with the settings removed.
func TestApplyRetention_NoSpace(t *testing.T) {
	c := startSingle(t)
	usage := func() (events, logs streams.Usage) {
		for _, u := range c.Reader.Usage(t.Context(), 1) {
			switch u.Stream {
			case subjects.StreamEvents:
				events = u
			case subjects.StreamLogs:
				logs = u
			}
		}
		return events, logs
	}
	eventsBefore, logsBefore := usage()
	for range 2 {
		err := c.Admin.ApplyRetention(t.Context(), job.Retention{
			{Key: job.RetentionKey{Kept: job.KeptEvents, Bound: job.BoundBytes}, Value: 100 << 30},
			{Key: job.RetentionKey{Kept: job.KeptEvents, Bound: job.BoundAge}, Value: int64(time.Hour)},
			{Key: job.RetentionKey{Kept: job.KeptLogs, Bound: job.BoundCount}, Value: 1234},
		})
		const want = "YARD_EVENTS: the members have no space for 100 GiB: set events.bytes lower"
		const also = "\nYARD_STATE: the members have no space for 6.2 GiB, 1/16 of events.bytes: set events.bytes lower"
		if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), also) || strings.Count(err.Error(), "\n") > 1 {
			t.Errorf("%v; want only %s%s", err, want, also)
		}
		if events, logs := usage(); logs.LimitMessages != 1234 || events.MaxAge != time.Hour || events.LimitBytes != eventsBefore.LimitBytes {
			t.Errorf("history has the bounds %+v, logs %+v", events, logs)
		}
	}
	if err := c.Admin.ApplyRetention(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if events, logs := usage(); logs.LimitMessages != logsBefore.LimitMessages || events.MaxAge != eventsBefore.MaxAge {
		t.Errorf("history has the bounds %+v after the reset, logs %+v", events, logs)
	}
}

// TestRaiseBounds checks that the streams that refuse jobs get larger once
// MaxStore is raised, and never smaller.
func TestRaiseBounds(t *testing.T) {
	cfg := embedded.Config{Node: "solo", Dir: t.TempDir(), ClientListen: "127.0.0.1:0"}
	limits := make(map[string]uint64)
	for _, step := range []struct {
		store, factor uint64
	}{{256 << 20, 1}, {512 << 20, 2}, {256 << 20, 2}} {
		cfg.MaxStore = int64(step.store)
		c := startNode(t, cfg)
		if _, err := c.Admin.EnsureStreams(t.Context(), streams.Layout{Identities: make([]string, 1), Create: true}); err != nil {
			t.Fatal(err)
		}
		if err := c.Admin.ApplyRetention(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		for _, u := range c.Reader.Usage(t.Context(), 1) {
			if limits[u.Stream] == 0 {
				limits[u.Stream] = u.LimitBytes
			}
			want := limits[u.Stream]
			if u.Refuses {
				want *= step.factor
			}
			if u.LimitBytes < want-8 || u.LimitBytes > want+8 { // shares are rounded
				t.Errorf("with a store of %d bytes %s has at most %d, want %d", step.store, u.Stream, u.LimitBytes, want)
			}
		}
		c.kill()
	}
	if len(limits) == 0 {
		t.Error("no stream is reported")
	}
}

// TestRestart_SingleNode checks that records survive a restart and that streams
// are not created again.
func TestRestart_SingleNode(t *testing.T) {
	c := startSingle(t)
	for i := range 3 {
		if _, err := publishWait(withDeadline(t, patience), c.Publisher, "mail", fmt.Sprintf("k%d", i), time.Time{}, jobBody(i)); err != nil {
			t.Fatal(err)
		}
	}
	c.kill()
	again := startNode(t, c.cfg)
	layout := smallLayout(1)
	layout.Create = false
	if _, err := again.Admin.EnsureStreams(t.Context(), layout); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, again.Server, 0, 3); got[2].Key != "k2" {
		t.Fatalf("read back %+v", got)
	}
}

// TestHealth_StreamNotRecovered checks that a stream that is being created, and is
// on disk before it is loaded, does not affect health, and that a stream that
// could not be recovered at start does.
func TestHealth_StreamNotRecovered(t *testing.T) {
	c := startSingle(t)
	dirs, err := filepath.Glob(filepath.Join(c.cfg.Dir, "jetstream", "*", "streams", subjects.LaneStream(0)))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("directories of the lane: %v, %v", dirs, err)
	}
	made := filepath.Join(filepath.Dir(dirs[0]), "KV_MADE")
	if err := os.Mkdir(made, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := c.Health(); err != nil {
		t.Errorf("while a stream is created: %v", err)
	}
	c.kill()
	if err := os.WriteFile(filepath.Join(made, "meta.inf"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := startNode(t, c.cfg)
	if err := again.Health(); err == nil || !strings.Contains(err.Error(), "KV_MADE") {
		t.Errorf("with a damaged stream: %v", err)
	}
}

// TestCluster runs these tests in this order on one cluster, because starting one
// takes seconds.
func TestCluster(t *testing.T) {
	nodes := startCluster(t)
	t.Run("publish", func(t *testing.T) { testClusterPublish(t, nodes) })
	t.Run("tail and reads", func(t *testing.T) { testClusterTail(t, nodes) })
	t.Run("fleet", func(t *testing.T) { testClusterFleet(t, nodes) })
	t.Run("local endpoints", func(t *testing.T) { testClusterLocal(t, nodes) })
	t.Run("boards", func(t *testing.T) { testClusterBoards(t, nodes) })
	t.Run("leave", func(t *testing.T) { testClusterLeave(t, nodes) })
	t.Run("kill", func(t *testing.T) { testClusterKill(t, nodes) })
}

func testClusterPublish(t *testing.T, nodes []*testNode) {
	for i, n := range nodes {
		if err := n.Health(); err != nil {
			t.Fatal(err)
		}
		// A direct publish goes to the lane of the client's server once the server knows that
		// the lane's leadership has moved.
		nc, direct := connectClient(t, n.Server), uint64(0)
		eventually(t, "a direct publish at "+n.cfg.Node+" to reach its lane", func() error {
			m, err := nc.Request("yard.jobs.mail", jobBody(i), patience)
			if err != nil || !strings.Contains(string(m.Data), subjects.LaneStream(uint8(i))) {
				return fmt.Errorf("%v, %w", m, err)
			}
			ack, err := embedded.ParsePubAck(m.Data)
			direct = ack.Seq
			return err
		})
		a, err := publishWait(withDeadline(t, patience), n.Publisher, "mail", "same", time.Now(), jobBody(i))
		if err != nil || int(a.Lane) != i || a.Duplicate {
			t.Fatalf("published through %s: %+v, %v; want its own lane", n.cfg.Node, a, err)
		}
		li, err := n.Reader.LaneInfo(t.Context(), uint8(i))
		if err != nil || li.Leader != n.cfg.Node || !li.Quorum || a.Seq <= direct || li.Last < a.Seq {
			t.Fatalf("lane %d: %+v, %v, after publishes with sequences %d and %d", i, li, err, direct, a.Seq)
		}
		if got := n.ReachableMembers(); !slices.Equal(got, []string{"n1", "n2", "n3"}) {
			t.Fatalf("%s reaches %v", n.cfg.Node, got)
		}
	}
}

func testClusterTail(t *testing.T, nodes []*testNode) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	received := make(chan job.Record, 100)
	ended := make(chan error, 1)
	go func() { ended <- nodes[2].Reader.Tail(ctx, func(r job.Record) { received <- r }) }()
	nc := connectClient(t, nodes[0].Server)
	var r job.Record
	eventually(t, "a record of another node's lane", func() error {
		m := nats.NewMsg("yard.jobs.tail")
		m.Header.Set("Shard", "1") // unknown, so that it has a message of its own
		m.Data = jobBody(1)
		if _, err := nc.RequestMsg(m, time.Second); err != nil {
			return err
		}
		select {
		case r = <-received:
			return nil
		case <-time.After(50 * time.Millisecond):
			return errors.New("nothing received")
		}
	})
	for _, n := range nodes {
		got, err := n.Reader.LoadRecord(t.Context(), r.Position)
		if err != nil || got.Queue != "tail" || !got.Stored.Equal(r.Stored) || r.Lane != 0 {
			t.Fatalf("%s reads %+v, %v; received %+v", n.cfg.Node, got, err, r)
		}
		readAll(t, n.Server, 0, int(r.Seq))
	}
	data := []byte(strings.Repeat("x", 700<<10))
	blob, err := nodes[1].Writer.StoreBody(t.Context(), "b", data)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := nodes[2].Reader.LoadBlob(t.Context(), streams.BodyBlobs, blob); err != nil || string(got) != string(data) {
		t.Fatalf("blob from another node: %d bytes, %v", len(got), err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func testClusterFleet(t *testing.T, nodes []*testNode) {
	to := nodes[1]
	startServing(t, "fleet of n2", func(ctx context.Context) error {
		return to.Fleet.Serve(ctx, Handlers{Heartbeat: func(b job.Heartbeat, reply func(job.HeartbeatAck)) {
			reply(job.HeartbeatAck{Epoch: b.Incarnation, Lease: 6 * time.Second})
		}})
	}, func() error {
		ack, err := nodes[0].Fleet.Heartbeat(withDeadline(t, time.Second), "n2", job.Heartbeat{Node: "n1", Incarnation: 5})
		if err == nil && ack.Epoch != 5 {
			return fmt.Errorf("answer %+v", ack)
		}
		return err
	})
	_, err := nodes[0].Fleet.Heartbeat(withDeadline(t, patience), "n3", job.Heartbeat{})
	wantErr(t, err, ErrNodeUnreachable)
}

// testClusterLocal checks that a client's request is answered by the node that it
// is connected to.
func testClusterLocal(t *testing.T, nodes []*testNode) {
	for _, n := range nodes {
		nc := connectClient(t, n.Server)
		startServing(t, "service of "+n.cfg.Node, func(ctx context.Context) error {
			return n.Serve(ctx, Service{Name: "yard-api", Version: "1.0.0", Endpoints: []Endpoint{{
				Endpoint: api.Endpoint{Name: "status", Subject: api.SubjectStatus},
				Handle:   func(context.Context, *Request) ([]byte, error) { return []byte(n.cfg.Node), nil },
			}}})
		}, func() error {
			_, err := nc.Request("yard.status", nil, time.Second)
			return err
		})
	}
	for _, n := range nodes {
		nc := connectClient(t, n.Server)
		for range 20 {
			if m, err := nc.Request("yard.status", nil, patience); err != nil || string(m.Data) != n.cfg.Node {
				t.Fatalf("client of %s is answered by %s, %v", n.cfg.Node, m.Data, err)
			}
		}
	}
}

// testClusterLeave checks that a node transfers its leaderships before it stops,
// while its clients continue to publish.
func testClusterLeave(t *testing.T, nodes []*testNode) {
	if err := nodes[2].Replication.TransferLeaders(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "n3 to lead nothing", func() error {
		if led := nodes[2].Publisher.LedLanes(); len(led) > 0 {
			return fmt.Errorf("it leads %v", led)
		}
		return nil
	})
	if _, err := publishWait(withDeadline(t, patience), nodes[2].Publisher, "mail", "", time.Now(), jobBody(0)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "leaders to be spread again", func() error {
		if _, err := nodes[0].Replication.SpreadLeaders(t.Context(), "n1", noMember, noMember); err != nil {
			return err
		}
		if led := nodes[2].Publisher.LedLanes(); !slices.Equal(led, []uint8{2}) {
			return fmt.Errorf("n3 leads %v", led)
		}
		return nil
	})
}

// testClusterKill kills a node while jobs are published through the others: no job
// is refused or lost, and after its restart the node leads its lane again.
func testClusterKill(t *testing.T, nodes []*testNode) {
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var longest atomic.Int64
	accepted := make([][]lanes.Ack, len(nodes))
	for i, n := range []*testNode{nodes[0], nodes[2]} {
		wg.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				began := time.Now()
				a, err := publishWait(t.Context(), n.Publisher, "kill", fmt.Sprintf("%s-%d", n.cfg.Node, k), time.Now(), jobBody(k))
				if err != nil {
					t.Errorf("published through %s: %v", n.cfg.Node, err)
				}
				longest.Store(max(longest.Load(), int64(time.Since(began))))
				accepted[i] = append(accepted[i], a)
			}
		})
	}
	nodes[1].kill()
	plain := connectClient(t, nodes[0].Server)
	eventually(t, "a new leader of the dead node's lane", func() error {
		if _, err := plain.Request("yard.jobs.kill", jobBody(0), 5*time.Second); err != nil {
			t.Errorf("direct publish at a survivor: %v", err)
		}
		_, err := nodes[0].Reader.LaneInfo(withDeadline(t, time.Second), 1)
		return err
	})
	stop()
	wg.Wait()
	t.Logf("%d and %d jobs accepted, slowest publish %s", len(accepted[0]), len(accepted[1]), time.Duration(longest.Load()))
	for i, n := range []*testNode{nodes[0], nodes[2]} {
		for k, a := range accepted[i] {
			r, err := n.Reader.LoadRecord(t.Context(), a.Position)
			if err != nil || r.Key != fmt.Sprintf("%s-%d", n.cfg.Node, k) {
				t.Fatalf("job %d through %s at %+v: %+v, %v", k, n.cfg.Node, a, r, err)
			}
		}
	}
	nodes[1] = startNode(t, nodes[1].cfg)
	behind := func(node string) bool { return node == "n2" && nodes[1].Behind() }
	eventually(t, "the restarted node to lead its lane", func() error {
		if _, err := nodes[0].Replication.SpreadLeaders(t.Context(), "n1", noMember, behind); err != nil {
			return err
		}
		if led := nodes[1].Publisher.LedLanes(); !slices.Equal(led, []uint8{1}) {
			return fmt.Errorf("it leads %v", led)
		}
		return nil
	})
	if groups := nodes[1].groups(); len(groups) < len(nodes) {
		t.Errorf("the restarted node is in %d Raft groups, want at least %d", len(groups), len(nodes))
	}
	a, err := publishWait(withDeadline(t, patience), nodes[1].Publisher, "mail", "", time.Now(), jobBody(0))
	if err != nil || a.Lane != 1 {
		t.Fatalf("published through the restarted node: %+v, %v", a, err)
	}
	for _, stream := range []string{subjects.StreamEvents, subjects.StreamResults} {
		eventually(t, "another member than the authority's to lead "+stream, func() error {
			info, err := streams.Info(t.Context(), nodes[0].local.JS, stream) // an error while its leader changes
			if err == nil && subjects.NodeOf(info.Cluster.Leader) == "n1" {
				err = errors.New("n1 leads it")
			}
			return err
		})
	}
}

// TestRoutes_RequireSecret checks that a server without the members' secret gets
// no route.
func TestRoutes_RequireSecret(t *testing.T) {
	nodes := startThree(t)
	eventually(t, "members to have routes", func() error {
		if got := nodes[0].ReachableMembers(); len(got) != 3 {
			return fmt.Errorf("reaches %v", got)
		}
		return nil
	})
	stranger := nodes[0].cfg
	stranger.Node, stranger.Identity, stranger.Secret = "n4", "n4-00000009", "guess"
	stranger.Dir, stranger.RouteListen = t.TempDir(), testnet.Address(t)
	stranger.Peers = append(slices.Clone(stranger.Peers), embedded.Peer{Node: "n4", Route: stranger.RouteListen})
	words := &logBuffer{}
	s := startNodeLogged(t, stranger, slog.New(slog.NewTextHandler(words, nil)))
	eventually(t, "the stranger to be refused", func() error { return words.contains("Authorization Violation") })
	if got := s.ReachableMembers(); len(got) != 1 {
		t.Fatalf("a stranger reaches %v", got)
	}
}

func TestInternalUser_InProcessOnly(t *testing.T) {
	c := startNode(t, embedded.Config{Node: "solo", Dir: t.TempDir(), ClientListen: "127.0.0.1:0", MaxStore: 1 << 30, InternalPassword: "known"})
	if nc, err := nats.Connect(c.ClientURL(), nats.UserInfo("internal", "known")); err == nil {
		nc.Close()
		t.Fatal("the internal user connected over TCP")
	}
}
