package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// Clusters in one process: real servers on the loopback interface.

func discardLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// testNode is one node's Cluster with its running Run loop.
type testNode struct {
	*Server
	cfg    embedded.Config
	cancel context.CancelFunc
	runErr chan error
	once   sync.Once
}

// appendBatch stores a batch in a stream whose last sequence is last.
func appendBatch(c *testNode, stream string, b streams.Batch, last uint64) (seq uint64, err error) {
	stored := make(chan struct{})
	c.Writer.AppendAsync(stream, b, last, func(s uint64, e error) {
		seq, err = s, e
		close(stored)
	})
	<-stored
	return seq, err
}

// startNode starts a node and stops it when the test ends.
func startNode(t testing.TB, cfg embedded.Config) *testNode {
	return startNodeLogged(t, cfg, discardLog())
}

func startNodeLogged(t testing.TB, cfg embedded.Config, log *slog.Logger) *testNode {
	t.Helper()
	c, err := Start(t.Context(), cfg, log)
	if err != nil {
		t.Fatalf("start %s: %v", cfg.Node, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &testNode{Server: c, cfg: cfg, cancel: cancel, runErr: make(chan error, 1)}
	go func() { r.runErr <- c.Run(ctx) }()
	t.Cleanup(r.kill)
	return r
}

// kill stops the node without transferring its leaderships.
func (n *testNode) kill() {
	n.once.Do(func() {
		n.cancel()
		<-n.runErr
		n.Stop()
	})
}

// startSingle starts a node that runs alone, with its streams.
func startSingle(t testing.TB) *testNode {
	t.Helper()
	r := startNode(t, embedded.Config{Node: "solo", Dir: t.TempDir(), ClientListen: "127.0.0.1:0", MaxStore: 1 << 30})
	if _, err := r.Admin.EnsureStreams(t.Context(), smallLayout(1)); err != nil {
		t.Fatal(err)
	}
	return r
}

// logBuffer collects log output.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// contains returns an error unless the log contains text.
func (l *logBuffer) contains(text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !strings.Contains(l.text.String(), text) {
		return fmt.Errorf("log does not contain %q: %.2000s", text, l.text.String())
	}
	return nil
}

// smallLayout returns a layout that fits the tests' MaxStore.
func smallLayout(lanes int) streams.Layout {
	return streams.Layout{Identities: make([]string, lanes), Create: true, MaxLaneBytes: 64 << 20, MaxBlobBytes: 32 << 20, ResultBytes: 32 << 20, HistoryBytes: 32 << 20}
}

// startThree starts three members; they may still be electing when it returns.
func startThree(t testing.TB) []*testNode { return startThreeWith(t, 1<<30) }

// startThreeWith is startThree with this MaxStore.
func startThreeWith(t testing.TB, store int64) []*testNode {
	t.Helper()
	var peers []embedded.Peer
	for i := range 3 {
		peers = append(peers, embedded.Peer{Node: fmt.Sprintf("n%d", i+1), Route: testnet.Address(t)})
	}
	nodes := make([]*testNode, 3)
	for i, p := range peers {
		nodes[i] = startNode(t, embedded.Config{
			Node: p.Node, Identity: fmt.Sprintf("%s-0000000%d", p.Node, i), Yard: "test", Dir: t.TempDir(),
			ClientListen: "127.0.0.1:0", RouteListen: p.Route, Peers: peers, Secret: "between us", MaxStore: store,
		})
	}
	return nodes
}

// startCluster starts three members with their streams; member i leads lane i.
func startCluster(t testing.TB) []*testNode {
	t.Helper()
	nodes := startThree(t)
	eventually(t, "streams to be created", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := nodes[0].Admin.EnsureStreams(ctx, smallLayout(3))
		return err
	})
	eventually(t, "leaders to be spread", func() error {
		if _, err := nodes[0].Replication.SpreadLeaders(t.Context(), "n1", noMember, noMember); err != nil {
			return err
		}
		for i, n := range nodes {
			if led := n.Publisher.LedLanes(); len(led) != 1 || int(led[0]) != i {
				return fmt.Errorf("%s leads lanes %v", n.cfg.Node, led)
			}
		}
		return nil
	})
	return nodes
}

// patience is how long a test waits for what has to happen. It is long because tests run
// beside others; what has to be fast is compared with something else than a time.
const patience = time.Minute

// eventually repeats check until it returns nil, and fails the test with the last
// error when its patience ends.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s: %v", what, err)
		}
		_ = backoff.Sleep(t.Context(), 20*time.Millisecond)
	}
}

// connectClient connects without a user name, as any client can.
func connectClient(t *testing.T, c *Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(c.ClientURL(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func jobBody(i int) []byte { return fmt.Appendf(nil, `{"function":"echo","params":{"i":%d}}`, i) }

func withDeadline(t *testing.T, d time.Duration) context.Context {
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

// noMember is an unfit function that matches no member.
func noMember(string) bool { return false }

// publishWait is the blocking form of [lanes.Publisher.Publish]. If ctx ends first, the
// job may still be accepted, and the error is [streams.ErrUnknown].
func publishWait(ctx context.Context, p *lanes.Publisher, queue, key string, at time.Time, body []byte) (lanes.Ack, error) {
	type result struct {
		ack lanes.Ack
		err error
	}
	done := make(chan result, 1)
	p.Publish(queue, key, at, body, func(a lanes.Ack, err error) { done <- result{a, err} })
	select {
	case r := <-done:
		return r.ack, r.err
	case <-ctx.Done():
		return lanes.Ack{}, fmt.Errorf("%w: %w", streams.ErrUnknown, ctx.Err())
	}
}

// requestStepDown asks a leader to step down in favour of the server preferred.
func requestStepDown(t *testing.T, box *embedded.Inbox, verb, preferred string) error {
	body := fmt.Appendf(nil, `{"placement":{"preferred":%q}}`, preferred)
	m, err := box.Request(t.Context(), &nats.Msg{Subject: "$JS.API." + verb, Data: body}, 5*time.Second)
	if err == nil && strings.Contains(string(m.Data), `"error"`) {
		err = errors.New(string(m.Data))
	}
	return err
}
