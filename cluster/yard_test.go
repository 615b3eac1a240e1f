package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// A yard in one process: real servers on loopback.

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// running is one node's cluster part with its Run loop.
type running struct {
	*Cluster
	cfg    Config
	cancel context.CancelFunc
	ended  chan error
	once   sync.Once
}

func run(t testing.TB, cfg Config) *running { return runLogged(t, cfg, quiet()) }

func runLogged(t testing.TB, cfg Config, log *slog.Logger) *running {
	t.Helper()
	c, err := Start(t.Context(), cfg, log)
	if err != nil {
		t.Fatalf("start %s: %v", cfg.Node, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Cluster: c, cfg: cfg, cancel: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- c.Run(ctx) }()
	t.Cleanup(r.kill)
	return r
}

func (r *running) kill() {
	r.once.Do(func() {
		r.cancel()
		<-r.ended
		r.Stop()
	})
}

func alone(t testing.TB) *running {
	t.Helper()
	r := run(t, Config{Node: "solo", Dir: t.TempDir(), Client: "127.0.0.1:0", MaxStore: 1 << 30})
	if _, err := r.EnsureStreams(t.Context(), small(1)); err != nil {
		t.Fatal(err)
	}
	return r
}

// wordsOf is a log whose lines can be waited for.
type wordsOf struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *wordsOf) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *wordsOf) has(words string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !strings.Contains(w.text.String(), words) {
		return fmt.Errorf("log does not say %q: %.2000s", words, w.text.String())
	}
	return nil
}

// small is a layout that fits a test's quota.
func small(lanes int) Layout {
	return Layout{Identities: make([]string, lanes), Create: true, MaxLaneBytes: 64 << 20, MaxBlobBytes: 64 << 20, HistoryBytes: 32 << 20}
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// three starts three members; they may still be electing when it returns.
func three(t testing.TB) []*running {
	t.Helper()
	var peers []Peer
	for i := range 3 {
		peers = append(peers, Peer{Node: fmt.Sprintf("n%d", i+1), Route: freePort(t)})
	}
	nodes := make([]*running, 3)
	for i, p := range peers {
		nodes[i] = run(t, Config{
			Node: p.Node, Identity: fmt.Sprintf("%s-0000000%d", p.Node, i), Yard: "test", Dir: t.TempDir(),
			Client: "127.0.0.1:0", Route: p.Route, Peers: peers, Secret: "between us", MaxStore: 1 << 30,
		})
	}
	return nodes
}

// yard is three members with their streams, lane i led by member i.
func yard(t testing.TB) []*running {
	t.Helper()
	nodes := three(t)
	eventually(t, "streams to be made", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := nodes[0].EnsureStreams(ctx, small(3))
		return err
	})
	eventually(t, "leaders to be spread", func() error {
		if _, err := nodes[0].SpreadLeaders(t.Context(), "n1", nobody); err != nil {
			return err
		}
		for i, n := range nodes {
			if led := n.Led(); len(led) != 1 || int(led[0]) != i {
				return fmt.Errorf("%s leads lanes %v", n.Node(), led)
			}
		}
		return nil
	})
	return nodes
}

// eventually waits for a fact and fails with what stood in its way.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s: %v", what, err)
		}
		pause(t.Context(), 20*time.Millisecond)
	}
}

// visitor connects as anybody could.
func visitor(t *testing.T, c *Cluster) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(c.ClientURL(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func body(i int) []byte { return fmt.Appendf(nil, `{"function":"echo","params":{"i":%d}}`, i) }

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

// nobody is poor.
func nobody(string) bool { return false }
