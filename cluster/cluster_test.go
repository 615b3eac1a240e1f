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

	"yardmaster/job"

	"github.com/nats-io/nats.go"
)

func TestStart_BadConfig(t *testing.T) {
	dir := t.TempDir()
	peers := []Peer{{Node: "n1", Route: "127.0.0.1:1"}, {Node: "n2", Route: "127.0.0.1:2"}, {Node: "n3", Route: "127.0.0.1:3"}}
	for _, tt := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"name", Config{Node: "Big Name", Dir: dir}, "member name"},
		{"dir", Config{Node: "n1"}, "data directory"},
		{"no peers", Config{Node: "n1", Dir: dir, Route: "127.0.0.1:0", Yard: "y"}, "members"},
		{"stranger", Config{Node: "n9", Dir: dir, Route: "127.0.0.1:0", Yard: "y", Peers: peers}, "not among the members"},
		{"no yard", Config{Node: "n1", Dir: dir, Route: "127.0.0.1:0", Peers: peers}, "yard id"},
	} {
		tt.cfg.MaxStore = 1 << 30
		_, err := Start(t.Context(), tt.cfg, quiet())
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one about %q", tt.name, err, tt.want)
		}
	}
}

func TestStart_PortInUse(t *testing.T) {
	c := alone(t)
	addr := strings.TrimPrefix(c.ClientURL(), "nats://")
	_, err := Start(t.Context(), Config{Node: "other", Dir: t.TempDir(), Client: addr, MaxStore: 1 << 30}, quiet())
	if err == nil || !strings.Contains(err.Error(), addr) {
		t.Fatalf("error %v, want one that names %s", err, addr)
	}
}

func TestEnsureStreams_Identity(t *testing.T) {
	c := run(t, Config{Node: "solo", Dir: t.TempDir(), Client: "127.0.0.1:0", MaxStore: 1 << 30})
	layout := small(1)
	layout.Create = false
	_, err := c.EnsureStreams(t.Context(), layout)
	wantErr(t, err, ErrStreamMissing)
	_, err = c.LaneInfo(t.Context(), 0)
	wantErr(t, err, ErrStreamMissing)

	layout.Create, layout.Identities = true, []string{"one"}
	if got, err := c.EnsureStreams(t.Context(), layout); err != nil || !slices.Equal(got, layout.Identities) {
		t.Fatalf("made %v, %v", got, err)
	}
	layout.Identities = []string{"two"}
	var other *IdentityError
	if _, err := c.EnsureStreams(t.Context(), layout); !errors.As(err, &other) || other.Got != "one" {
		t.Fatalf("another identity: %v", err)
	}
	layout.Identities = []string{""}
	if got, err := c.EnsureStreams(t.Context(), layout); err != nil || got[0] != "one" {
		t.Fatalf("any identity: %v, %v", got, err)
	}
	if li, err := c.LaneInfo(t.Context(), 0); err != nil || li.Identity != "one" || li.Leader != "solo" || li.Created.IsZero() {
		t.Fatalf("lane: %+v, %v", li, err)
	}
	if err := c.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The default limits fit whatever a node may store.
func TestEnsureStreams_SmallDisk(t *testing.T) {
	c := run(t, Config{Node: "solo", Dir: t.TempDir(), Client: "127.0.0.1:0", MaxStore: 256 << 20})
	if _, err := c.EnsureStreams(t.Context(), Layout{Identities: make([]string, 5), Create: true}); err != nil {
		t.Fatal(err)
	}
	if li, err := c.LaneInfo(t.Context(), 4); err != nil || li.MaxBytes < 16<<20 {
		t.Fatalf("lane: %+v, %v", li, err)
	}
}

// What is on disk is there again, and no stream is made twice.
func TestRestart_Alone(t *testing.T) {
	c := alone(t)
	for i := range 3 {
		if _, err := c.PublishWait(within(t, 5*time.Second), "mail", fmt.Sprintf("k%d", i), time.Time{}, body(i)); err != nil {
			t.Fatal(err)
		}
	}
	c.kill()
	again := run(t, c.cfg)
	layout := small(1)
	layout.Create = false
	if _, err := again.EnsureStreams(t.Context(), layout); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, again.Cluster, 0, 3); got[2].Key != "k2" {
		t.Fatalf("read back %+v", got)
	}
}

// A stream that is being made lies on disk before it is known: that is health.
// One that cannot be recovered at start is not.
func TestHealth_StreamNotRecovered(t *testing.T) {
	c := alone(t)
	dirs, err := filepath.Glob(filepath.Join(c.cfg.Dir, "jetstream", "*", "streams", LaneStream(0)))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("the lane lies in %v, %v", dirs, err)
	}
	made := filepath.Join(filepath.Dir(dirs[0]), "KV_MADE")
	if err := os.Mkdir(made, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := c.Health(t.Context()); err != nil {
		t.Errorf("while a stream is made: %v", err)
	}
	c.kill()
	if err := os.WriteFile(filepath.Join(made, "meta.inf"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := run(t, c.cfg)
	if err := again.Health(t.Context()); err == nil || !strings.Contains(err.Error(), "KV_MADE") {
		t.Errorf("with a damaged stream: %v", err)
	}
}

// One yard serves all these, in this order: it takes seconds to form.
func TestYard(t *testing.T) {
	nodes := yard(t)
	t.Run("publish", func(t *testing.T) { testYardPublish(t, nodes) })
	t.Run("tail and reads", func(t *testing.T) { testYardTail(t, nodes) })
	t.Run("fleet", func(t *testing.T) { testYardFleet(t, nodes) })
	t.Run("local endpoints", func(t *testing.T) { testYardLocal(t, nodes) })
	t.Run("boards", func(t *testing.T) { testYardBoards(t, nodes) })
	t.Run("leave", func(t *testing.T) { testYardLeave(t, nodes) })
	t.Run("kill", func(t *testing.T) { testYardKill(t, nodes) })
}

func testYardPublish(t *testing.T, nodes []*running) {
	for i, n := range nodes {
		if err := n.Health(t.Context()); err != nil {
			t.Fatal(err)
		}
		a, err := n.PublishWait(within(t, 5*time.Second), "mail", "same", time.Now(), body(i))
		if err != nil || int(a.Lane) != i || a.Duplicate {
			t.Fatalf("through %s: %+v, %v; want its own lane", n.Node(), a, err)
		}
		// A plain publisher is steered to the lane of its own server.
		m, err := visitor(t, n.Cluster).Request("yard.jobs.mail", body(i), 5*time.Second)
		if err != nil || !strings.Contains(string(m.Data), LaneStream(uint8(i))) {
			t.Fatalf("plain publish at %s: %s, %v", n.Node(), m.Data, err)
		}
		li, err := n.LaneInfo(t.Context(), uint8(i))
		if err != nil || li.Leader != n.Node() || len(li.Replicas) != 2 || li.Last != 2 {
			t.Fatalf("lane %d: %+v, %v", i, li, err)
		}
		if got := n.Reachable(); !slices.Equal(got, []string{"n1", "n2", "n3"}) {
			t.Fatalf("%s reaches %v", n.Node(), got)
		}
	}
}

func testYardTail(t *testing.T, nodes []*running) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	heard := make(chan job.Record, 100)
	ended := make(chan error, 1)
	go func() { ended <- nodes[2].Tail(ctx, func(r job.Record) { heard <- r }) }()
	nc := visitor(t, nodes[0].Cluster)
	var r job.Record
	eventually(t, "a record of another node's lane", func() error {
		if _, err := nc.Request("yard.jobs.tail", body(1), time.Second); err != nil {
			return err
		}
		select {
		case r = <-heard:
			return nil
		case <-time.After(50 * time.Millisecond):
			return errors.New("nothing heard")
		}
	})
	for _, n := range nodes {
		got, err := n.LoadRecord(t.Context(), r.Position)
		if err != nil || got.Queue != "tail" || !got.Stored.Equal(r.Stored) || r.Lane != 0 {
			t.Fatalf("%s reads %+v, %v; heard %+v", n.Node(), got, err, r)
		}
		readAll(t, n.Cluster, 0, int(r.Seq))
	}
	data := []byte(strings.Repeat("x", 700<<10))
	blob, err := nodes[1].StoreBlob(t.Context(), "b", data)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := nodes[2].LoadBlob(t.Context(), blob); err != nil || string(got) != string(data) {
		t.Fatalf("blob from another node: %d bytes, %v", len(got), err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func testYardFleet(t *testing.T, nodes []*running) {
	to := nodes[1]
	serve(t, "fleet of n2", func(ctx context.Context) error {
		return to.Fleet().Serve(ctx, Handlers{Beat: func(b job.Beat, reply func(job.BeatAck)) {
			reply(job.BeatAck{Epoch: b.Incarnation, Lease: 6 * time.Second})
		}})
	}, func() error {
		ack, err := nodes[0].Fleet().Beat(within(t, time.Second), "n2", job.Beat{Node: "n1", Incarnation: 5})
		if err == nil && ack.Epoch != 5 {
			return fmt.Errorf("answer %+v", ack)
		}
		return err
	})
	_, err := nodes[0].Fleet().Beat(within(t, time.Second), "n3", job.Beat{})
	wantErr(t, err, ErrNoNode)
}

// A client's request is answered by the node it is connected to.
func testYardLocal(t *testing.T, nodes []*running) {
	for _, n := range nodes {
		nc := visitor(t, n.Cluster)
		serve(t, "service of "+n.Node(), func(ctx context.Context) error {
			return n.Serve(ctx, Service{Name: "yard-api", Version: "1.0.0", Endpoints: []Endpoint{{
				Name: "status", Subject: SubjectStatus,
				Do: func(context.Context, *Request) ([]byte, error) { return []byte(n.Node()), nil },
			}}})
		}, func() error {
			_, err := nc.Request("yard.status", nil, time.Second)
			return err
		})
	}
	for _, n := range nodes {
		nc := visitor(t, n.Cluster)
		for range 20 {
			if m, err := nc.Request("yard.status", nil, time.Second); err != nil || string(m.Data) != n.Node() {
				t.Fatalf("client of %s is answered by %s, %v", n.Node(), m.Data, err)
			}
		}
	}
}

// Before a node goes it hands its leaderships over, and its publishers go on.
func testYardLeave(t *testing.T, nodes []*running) {
	if err := nodes[2].Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "n3 to lead nothing", func() error {
		if led := nodes[2].Led(); len(led) > 0 {
			return fmt.Errorf("it leads %v", led)
		}
		return nil
	})
	if _, err := nodes[2].PublishWait(within(t, 10*time.Second), "mail", "", time.Now(), body(0)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "leaders to be spread again", func() error {
		if _, err := nodes[0].SpreadLeaders(t.Context(), "n1", nobody); err != nil {
			return err
		}
		if led := nodes[2].Led(); !slices.Equal(led, []uint8{2}) {
			return fmt.Errorf("n3 leads %v", led)
		}
		return nil
	})
}

// One node dies while jobs come in through the others: none is refused, none
// is lost, and when it returns it leads its lane again.
func testYardKill(t *testing.T, nodes []*running) {
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var longest atomic.Int64
	accepted := make([][]Ack, len(nodes))
	for i, n := range []*running{nodes[0], nodes[2]} {
		wg.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				began := time.Now()
				a, err := n.PublishWait(t.Context(), "kill", fmt.Sprintf("%s-%d", n.Node(), k), time.Now(), body(k))
				if err != nil {
					t.Errorf("through %s: %v", n.Node(), err)
				}
				longest.Store(max(longest.Load(), int64(time.Since(began))))
				accepted[i] = append(accepted[i], a)
			}
		})
	}
	nodes[1].kill()
	plain := visitor(t, nodes[0].Cluster)
	eventually(t, "a new leader of the dead node's lane", func() error {
		if _, err := plain.Request("yard.jobs.kill", body(0), 5*time.Second); err != nil {
			t.Errorf("plain publish at a survivor: %v", err)
		}
		_, err := nodes[0].LaneInfo(within(t, time.Second), 1)
		return err
	})
	stop()
	wg.Wait()
	t.Logf("%d and %d jobs accepted, slowest publish %s", len(accepted[0]), len(accepted[1]), time.Duration(longest.Load()))
	for i, n := range []*running{nodes[0], nodes[2]} {
		for k, a := range accepted[i] {
			r, err := n.LoadRecord(t.Context(), a.Position)
			if err != nil || r.Key != fmt.Sprintf("%s-%d", n.Node(), k) {
				t.Fatalf("job %d through %s at %+v: %+v, %v", k, n.Node(), a, r, err)
			}
		}
	}
	nodes[1] = run(t, nodes[1].cfg)
	eventually(t, "the returned node to lead its lane", func() error {
		if _, err := nodes[0].SpreadLeaders(t.Context(), "n1", nobody); err != nil {
			return err
		}
		if led := nodes[1].Led(); !slices.Equal(led, []uint8{1}) {
			return fmt.Errorf("it leads %v", led)
		}
		return nil
	})
	a, err := nodes[1].PublishWait(within(t, 10*time.Second), "mail", "", time.Now(), body(0))
	if err != nil || a.Lane != 1 {
		t.Fatalf("through the returned node: %+v, %v", a, err)
	}
	for _, stream := range []string{StreamEvents, StreamResults} {
		info, err := nodes[0].streamInfo(t.Context(), stream)
		if err != nil || NodeOf(info.Cluster.Leader) == "n1" {
			t.Fatalf("%s is led beside the authority: %v", stream, err)
		}
	}
}

// A client without the members' secret is no member.
func TestRoutes_NeedTheSecret(t *testing.T) {
	nodes := three(t)
	eventually(t, "members to meet", func() error {
		if got := nodes[0].Reachable(); len(got) != 3 {
			return fmt.Errorf("reaches %v", got)
		}
		return nil
	})
	stranger := nodes[0].cfg
	stranger.Node, stranger.Identity, stranger.Secret = "n4", "n4-00000009", "guess"
	stranger.Dir, stranger.Route = t.TempDir(), freePort(t)
	stranger.Peers = append(slices.Clone(stranger.Peers), Peer{Node: "n4", Route: stranger.Route})
	words := &wordsOf{}
	s := runLogged(t, stranger, slog.New(slog.NewTextHandler(words, nil)))
	eventually(t, "the stranger to be turned away", func() error { return words.has("Authorization Violation") })
	if got := s.Reachable(); len(got) != 1 {
		t.Fatalf("a stranger reaches %v", got)
	}
}

func TestConnectionIsInProcessOnly(t *testing.T) {
	c := run(t, Config{Node: "solo", Dir: t.TempDir(), Client: "127.0.0.1:0", MaxStore: 1 << 30, Internal: "known"})
	if nc, err := nats.Connect(c.ClientURL(), nats.UserInfo(userInternal, "known")); err == nil {
		nc.Close()
		t.Fatal("the internal user came in over TCP")
	}
}
