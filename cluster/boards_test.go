package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// watchBoard returns a channel with the entries of a watch.
func watchBoard(t *testing.T, c *Server, bucket string) <-chan streams.BoardEntry {
	t.Helper()
	received := make(chan streams.BoardEntry, 64)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Boards.WatchBoard(ctx, bucket, func(e streams.BoardEntry) { received <- e }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("watch %s: %v", bucket, err)
		}
	})
	return received
}

func putRow(t *testing.T, c *Server, bucket, key, value string, last uint64) (rev uint64, err error) {
	t.Helper()
	type end struct {
		rev uint64
		err error
	}
	ended := make(chan end, 1)
	done := func(rev uint64, err error) { ended <- end{rev, err} }
	if value == "" {
		c.Boards.DeleteRow(bucket, key, last, done)
	} else {
		c.Boards.PutRow(bucket, key, []byte(value), last, done)
	}
	e := <-ended
	return e.rev, e.err
}

func TestBoards_SingleNode(t *testing.T) { checkBoards(t, startSingle(t).Server, 1) }

// testClusterBoards checks boards as on a single node, and that the node that
// writes them leads none.
func testClusterBoards(t *testing.T, nodes []*testNode) {
	checkBoards(t, nodes[0].Server, 3)
	eventually(t, "the boards' leaders to move", func() error {
		if made, err := nodes[0].Boards.EnsureBoards(t.Context()); made || err != nil {
			return fmt.Errorf("created again: %t, %w", made, err)
		}
		for _, bucket := range subjects.Boards {
			if info, err := streams.Info(t.Context(), nodes[0].local.JS, subjects.BoardStream(bucket)); err != nil || subjects.NodeOf(info.Cluster.Leader) == "n1" {
				return fmt.Errorf("%s is led by its writer: %v", bucket, err)
			}
		}
		return nil
	})
}

// queueHistory is the number of revisions of a queue's row in a store of 1 GiB.
const queueHistory = 3

// checkBoards checks the boards as a client of key-value buckets sees them.
func checkBoards(t *testing.T, c *Server, replicas int) {
	ctx := t.Context()
	some := false
	eventually(t, "the boards to be made", func() error {
		made, err := c.Boards.EnsureBoards(ctx)
		some = some || made
		return err
	})
	if made, err := c.Boards.EnsureBoards(ctx); !some || made || err != nil {
		t.Errorf("boards created by the first call: %t, by the second: %t, %v", some, made, err)
	}
	js, err := jetstream.New(connectClient(t, c))
	if err != nil {
		t.Fatal(err)
	}
	for _, bucket := range subjects.Boards {
		kv, err := js.KeyValue(ctx, bucket)
		if err != nil {
			t.Fatal(err)
		}
		history := int64(10)
		switch bucket {
		case subjects.BucketQueues:
			history = queueHistory
		case subjects.BucketCron:
			history = 1
		}
		status, err := kv.Status(ctx)
		if err != nil || status.History() != history || status.Config().Description == "" || status.Config().Replicas != replicas {
			t.Errorf("%s: %+v, %v", bucket, status, err)
		}
	}
	kv, err := js.KeyValue(ctx, subjects.BucketQueues)
	if err != nil {
		t.Fatal(err)
	}
	received := watchBoard(t, c, subjects.BucketQueues)
	if e := <-received; e.Key != "" {
		t.Fatalf("an empty board has the entry %+v", e)
	}
	var rev uint64
	for i := range 10 + 3 {
		if rev, err = putRow(t, c, subjects.BucketQueues, "mail", fmt.Sprintf(`{"i":%d}`, i), rev); err != nil {
			t.Fatal(err)
		}
		if e := <-received; e.Key != "mail" || e.Revision != rev || e.Deleted {
			t.Errorf("received %+v, want revision %d", e, rev)
		}
	}
	var changed *streams.WrongLastError
	if _, err := putRow(t, c, subjects.BucketQueues, "mail", `{}`, rev-1); !errors.As(err, &changed) {
		t.Errorf("a write that expects an old revision: %v", err)
	}
	eventually(t, "the replica that answers to have the last revision", func() error {
		e, err := kv.Get(ctx, "mail")
		history, also := kv.History(ctx, "mail")
		if err := errors.Join(err, also); err != nil || string(e.Value()) != `{"i":12}` || len(history) != queueHistory {
			return fmt.Errorf("%v, %d revisions, %w", e, len(history), err)
		}
		return nil
	})
	if _, err := putRow(t, c, subjects.BucketQueues, "mail", "", rev); err != nil {
		t.Fatal(err)
	}
	if e := <-received; e.Key != "mail" || !e.Deleted {
		t.Errorf("received %+v for a removal", e)
	}
	eventually(t, "the replica that answers to know of the removal", func() error {
		if e, err := kv.Get(ctx, "mail"); !errors.Is(err, jetstream.ErrKeyNotFound) {
			return fmt.Errorf("found: %v, %w", e, err)
		}
		return nil
	})
	if _, err := putRow(t, c, subjects.BucketQueues, "mail", `{"again":true}`, 0); err != nil {
		t.Fatal(err)
	}
	// Keys reads through a consumer, which may run on a replica that has not applied the write yet.
	eventually(t, "the replica that lists the keys to have the new row", func() error {
		if keys, err := kv.Keys(ctx); err != nil || !slices.Equal(keys, []string{"mail"}) {
			return fmt.Errorf("keys %v, %w", keys, err)
		}
		return nil
	})
}

// A row's write that the leader refuses because it has not applied the write before
// it is sent again: JetStream acknowledges a write shortly before it allows the next
// one that expects its sequence.
func TestPutRow_BeforeTheLastIsApplied(t *testing.T) {
	c := startSingle(t).Server // without boards: the test answers as the leader
	var calls atomic.Int32
	sub, err := c.local.Boards.Conn.Subscribe(subjects.BoardSubject(subjects.BucketQueues, "mail"), func(m *nats.Msg) {
		answer := `{"stream":"KV_YARD_QUEUES","seq":7}`
		if calls.Add(1) <= 2 {
			answer = `{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"}}`
		}
		if err := m.Respond([]byte(answer)); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if rev, err := putRow(t, c, subjects.BucketQueues, "mail", `{}`, 6); rev != 7 || err != nil {
		t.Errorf("revision %d, %v", rev, err)
	}
	if err := sub.Unsubscribe(); err != nil || calls.Load() != 3 {
		t.Errorf("%d writes were sent, want 3; %v", calls.Load(), err)
	}
}

// TestBoards_SpaceForAllQueues checks that the bucket of queues accepts repeated writes of
// 10,000 rows in the smallest store, also if an earlier release has created it with less
// space and ten revisions of each row. In a cluster, which the test does not start, a full
// bucket refuses all writes, so it must not be nearly full either.
func TestBoards_SpaceForAllQueues(t *testing.T) {
	const queues, writers, store = 10_000, 64, 256 << 20
	n := startNode(t, embedded.Config{Node: "solo", Dir: t.TempDir(), ClientListen: "127.0.0.1:0", MaxStore: store, FixedStore: true})
	if _, err := n.Admin.EnsureStreams(t.Context(), streams.Layout{Identities: make([]string, 3), Create: true}); err != nil {
		t.Fatal(err)
	}
	stream := subjects.BoardStream(subjects.BucketQueues)
	for _, bucket := range subjects.Boards {
		if _, err := n.local.JS.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: subjects.BoardStream(bucket), Subjects: []string{subjects.BoardSubject(bucket, ">")}, MaxMsgsPerSubject: 10, MaxBytes: store / 100, Discard: jetstream.DiscardNew,
			DenyDelete: true, AllowRollup: true, AllowDirect: true, AllowMsgTTL: true, PersistMode: jetstream.AsyncPersistMode,
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.Boards.EnsureBoards(t.Context()); err != nil {
		t.Fatal(err)
	}
	for bucket, want := range map[string]int64{subjects.BucketQueues: 1, subjects.BucketCron: 1, subjects.BucketNodes: 10} {
		if info, err := streams.Info(t.Context(), n.local.JS, subjects.BoardStream(bucket)); err != nil || info.Config.MaxMsgsPerSubject != want {
			t.Errorf("%s keeps %d revisions, %v", bucket, info.Config.MaxMsgsPerSubject, err)
		}
	}
	revisions := make([]uint64, queues)
	for round := range 3 {
		group := errgroup.Group{}
		group.SetLimit(writers)
		for q := range queues {
			name := fmt.Sprintf("%s-%05d", strings.Repeat("n", 100), q)
			row := fmt.Appendf(nil, `{"name":%q,"limit":4,"state":"active","counts":{"pending":%d,"notified":1,"delivered":123456,"failed":12,"cancelled":1},"concurrency_limit":4,"allow_job_overrides":true,"oldest_waiting_since":"2026-11-25T21:45:46.746123456Z","epoch":12867,"index":1234567,"at":"2026-11-25T21:45:46.746123456Z"}`, name, round)
			group.Go(func() error {
				done := make(chan error, 1)
				n.Boards.PutRow(subjects.BucketQueues, name, row, revisions[q], func(rev uint64, err error) {
					revisions[q] = rev
					done <- err
				})
				return <-done
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	info, err := streams.Info(t.Context(), n.local.JS, stream)
	if err != nil || info.State.Msgs != queues || info.State.Bytes > uint64(info.Config.MaxBytes)/100*95 {
		t.Errorf("%d rows have %d of %d bytes, %v", info.State.Msgs, info.State.Bytes, info.Config.MaxBytes, err)
	}
}
