package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/server/intake"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// startSingleNode starts a cluster of one and returns its node when it is ready.
func startSingleNode(t *testing.T, change func(*config.Config)) *Node {
	t.Helper()
	cfg := config.Config{Node: config.Node{DataDir: t.TempDir()}, NATS: config.NATS{Listen: "127.0.0.1:0", MaxStore: 256 << 20}, HTTP: config.HTTP{Listen: "127.0.0.1:0"}}
	cfg.Server.Port = -1
	if change != nil {
		change(&cfg)
	}
	n, err := New(cfg.WithDefaults(), "v1.2.3", testlog.Discard())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the node ended with: %v", err)
		}
	})
	select {
	case <-n.Serving():
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	waitReady(t, n)
	return n
}

func waitReady(t *testing.T, n *Node) {
	t.Helper()
	for n.snapshotReady(t) != nil {
		_, changed := n.raft.Applied()
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond): // readiness depends on more than the ledger
		}
	}
}

func (n *Node) snapshotReady(t *testing.T) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if view := n.reporter.Snapshot(ctx, func(*ledger.Ledger) {}); !view.Readiness.Ready {
		return fmt.Errorf("not ready: %v", view.Readiness.Reasons)
	}
	return t.Context().Err()
}

// enqueue passes a job to the intake and waits for the result.
func enqueue(n *Node, queue, spec, key string, mustExist bool) (intake.Ack, error) {
	s, err := job.ParseSpec([]byte(spec))
	if err != nil {
		return intake.Ack{}, err
	}
	return n.intake.Publish(context.Background(), intake.Job{Queue: queue, Spec: s, Key: key, MustExist: mustExist})
}

func TestIntake(t *testing.T) {
	n := startSingleNode(t, nil)
	first, err := enqueue(n, "mail", `{"params":{}}`, "order-1", false)
	if err != nil || first.Duplicate || first.Position.Seq == 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := enqueue(n, "mail", `{"params":{}}`, "order-1", false)
	if err != nil || !again.Duplicate || again.ID != first.ID {
		t.Errorf("the same key: %+v, %v", again, err)
	}
	other, err := enqueue(n, "post", `{"params":{}}`, "order-1", false)
	if err != nil || other.Duplicate || other.ID == first.ID {
		t.Errorf("the same key in another queue: %+v, %v", other, err)
	}
	for name, c := range map[string]struct {
		queue, spec, key string
		mustExist        bool
		want             error
	}{
		"no queue":       {"nowhere", `{"params":{}}`, "", true, job.ErrQueueNotFound},
		"bad queue name": {"no.dots", `{"params":{}}`, "", false, job.ErrBadQueueName},
		"long key":       {"mail", `{"params":{}}`, strings.Repeat("k", job.MaxKeyLen+1), false, job.ErrKeyTooLong},
		"too large":      {"mail", `{"params":{"x":"` + strings.Repeat("x", job.MaxBody) + `"}}`, "", false, job.ErrTooLarge},
	} {
		if _, err := enqueue(n, c.queue, c.spec, c.key, c.mustExist); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	const own = "0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f"
	if _, err := enqueue(n, "mail", `{"params":{}}`, own, false); err != nil {
		t.Fatal(err)
	}
	if id, err := n.viewer.Locate(t.Context(), own, ""); err != nil || id.String() != own { // waits until it is ingested
		t.Fatal(id, err)
	}
	var refused *api.Error
	if _, err := enqueue(n, "post", `{"params":{}}`, own, false); !errors.As(err, &refused) || refused.Code != api.CodeConflict {
		t.Errorf("an id of another queue: %v", err)
	}
}

// One id is a job of one queue only, even if two are enqueued concurrently: one is rejected.
func TestIntake_SameIDInTwoQueues(t *testing.T) {
	n := startSingleNode(t, nil)
	for round := range 20 {
		id := fmt.Sprintf("0190c3d2-5b1e-7cc0-98c4-%012d", round)
		var asking sync.WaitGroup
		var failed [2]error
		for i, queue := range []string{"mail", "post"} {
			asking.Go(func() { _, failed[i] = enqueue(n, queue, `{"params":{}}`, id, false) })
		}
		asking.Wait()
		var conflict *api.Error
		if (failed[0] == nil) == (failed[1] == nil) || !errors.As(cmp.Or(failed[0], failed[1]), &conflict) || conflict.Code != api.CodeConflict {
			t.Fatalf("round %d: %v and %v", round, failed[0], failed[1])
		}
	}
}

func TestIntake_UnknownQueueRefused(t *testing.T) {
	n := startSingleNode(t, func(c *config.Config) { no := false; c.Scheduler.CreateQueues = &no })
	if _, err := enqueue(n, "mail", `{"params":{}}`, "", false); !errors.Is(err, job.ErrQueueNotFound) {
		t.Errorf("%v", err)
	}
	if _, err := n.proposer.Propose(t.Context(), &ledger.AddQueue{ID: job.ID{1}, Name: "mail"}); err != nil {
		t.Fatal(err)
	}
	if _, err := enqueue(n, "mail", `{"params":{}}`, "", false); err != nil {
		t.Error(err)
	}
	// While it is uncertain whether the queue exists, the answer is not that it does not.
	uncertain := intake.New(intake.Config{
		Publish: n.cluster.Publisher.Publish, Waiters: n.waiters, OnReject: func(error) {},
		ReadBarrier: func(context.Context) error { return &job.UnavailableError{Reason: "test"} },
	})
	var unavailable *job.UnavailableError
	if _, err := uncertain.Publish(t.Context(), intake.Job{Queue: "post", Spec: job.Spec{Function: "f"}}); !errors.As(err, &unavailable) {
		t.Errorf("%v", err)
	}
}

func TestViewer_Find(t *testing.T) {
	n := startSingleNode(t, nil)
	byKey, err := enqueue(n, "mail", `{"params":{}}`, "a:b", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text, queue string
		want        job.ID
	}{
		{"a:b", "", byKey.ID}, {"a:b", "mail", byKey.ID}, {"mail:a:b", "", byKey.ID},
		{byKey.ID.String(), "", byKey.ID}, {"mail:" + byKey.ID.String(), "", byKey.ID},
		{strings.ToUpper(byKey.ID.String()), "", byKey.ID},
	} {
		if id, err := n.viewer.Locate(t.Context(), c.text, c.queue); err != nil || id != c.want {
			t.Errorf("%q of %q: %s, %v", c.text, c.queue, id, err)
		}
	}
	for _, c := range []struct{ text, queue string }{{"a:b", "post"}, {"post:a:b", ""}, {"a", ""}, {"", ""}, {job.ID{9}.String(), ""}} {
		if id, err := n.viewer.Locate(t.Context(), c.text, c.queue); !errors.Is(err, job.ErrJobNotFound) {
			t.Errorf("%q of %q: %s, %v", c.text, c.queue, id, err)
		}
	}
}

// A command that no authority takes fails as unavailable, in time; an error of the ledger
// keeps its identity.
func TestProposer(t *testing.T) {
	n := startSingleNode(t, nil)
	add := &ledger.AddQueue{ID: job.ID{1}, Name: "mail"}
	if d, err := n.proposer.Propose(t.Context(), add); err != nil || d.Index == 0 {
		t.Fatalf("%+v, %v", d, err)
	}
	if _, err := n.proposer.Propose(t.Context(), &ledger.AddQueue{ID: job.ID{2}, Name: "mail"}); !errors.Is(err, job.ErrQueueExists) {
		t.Errorf("a second time: %v", err)
	}
	lost := *n.proposer
	lost.Scheduler = scheduler.New(n.schedulerConfig(), nil, nil, nil, nil, testlog.Discard()) // has no tenure
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var unavailable *job.UnavailableError
	if _, err := lost.Propose(ctx, add); !errors.As(err, &unavailable) || unavailable.RetryAfter == 0 {
		t.Errorf("without an authority: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := lost.Queue(ctx, "nowhere"); !errors.As(err, &unavailable) {
		t.Errorf("an unknown queue without an authority: %v", err)
	}
	if _, err := lost.Queue(ctx, "mail"); err != nil {
		t.Errorf("a known queue without an authority: %v", err)
	}
	if _, err := n.proposer.Queue(t.Context(), "nowhere"); !errors.Is(err, job.ErrQueueNotFound) {
		t.Errorf("an unknown queue: %v", err)
	}
}

// A node that cannot start names the key to change, and leaves nothing open.
func TestRun_PortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for key, change := range map[string]func(*config.Config){
		"nats.listen": func(c *config.Config) { c.NATS.Listen = taken.Addr().String() },
		"http.listen": func(c *config.Config) { c.HTTP.Listen = taken.Addr().String() },
		"server.port": func(c *config.Config) { c.Server.Port = taken.Addr().(*net.TCPAddr).Port },
	} {
		cfg := config.Config{Node: config.Node{DataDir: t.TempDir()}, NATS: config.NATS{Listen: "127.0.0.1:0", MaxStore: 256 << 20}, HTTP: config.HTTP{Listen: "127.0.0.1:0"}}
		cfg.Server.Port = -1
		change(&cfg)
		n, err := New(cfg.WithDefaults(), "", testlog.Discard())
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Run(t.Context()); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s is taken: %v", key, err)
		}
		if entries, err := os.ReadDir(cfg.Node.DataDir); err != nil || len(entries) > 0 {
			t.Errorf("%s is taken, and the data directory has %v, %v", key, entries, err)
		}
		cfg.NATS.Listen, cfg.HTTP.Listen, cfg.Server.Port = "127.0.0.1:0", "127.0.0.1:0", -1
		if n, err = New(cfg.WithDefaults(), "", testlog.Discard()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.Run(ctx) }()
		select {
		case <-n.Serving():
		case err := <-ended:
			t.Fatalf("a second start, with another port: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := portInUse(fmt.Errorf("listen: %w", syscall.EADDRINUSE), "x.y"); !strings.Contains(err.Error(), "x.y") {
		t.Error(err)
	}
}

// TestViewer_NotFound checks that the error for a job that the ledger does not have any
// more, however the job is named, states how long records are kept.
func TestViewer_NotFound(t *testing.T) {
	n := startSingleNode(t, nil)
	own := job.Retention{{Key: job.RetentionKey{Kept: job.KeptFinished, Bound: job.BoundCount}, Value: 1}}
	for id, name := range map[byte]string{1: "mail", 2: "post"} {
		if _, err := n.proposer.Propose(t.Context(), &ledger.AddQueue{ID: job.ID{id}, Name: name, Config: job.QueueConfig{Retention: own}}); err != nil {
			t.Fatal(err)
		}
	}
	var forgotten job.ID
	var kept intake.Ack
	for _, key := range []string{"first", "second"} {
		ack, err := enqueue(n, "mail", `{"params":{}}`, key, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.viewer.Locate(t.Context(), key, ""); err != nil { // waits until it is ingested
			t.Fatal(err)
		}
		if _, err := n.proposer.Propose(t.Context(), &ledger.CancelJob{Job: ack.ID}); err != nil {
			t.Fatal(err)
		}
		forgotten, kept = cmp.Or(forgotten, ack.ID), ack
	}
	removed, err := enqueue(n, "post", `{"params":{}}`, "removed", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.viewer.Locate(t.Context(), "removed", ""); err != nil {
		t.Fatal(err)
	}
	for _, command := range []ledger.Command{&ledger.RemoveJob{Job: removed.ID}, &ledger.RemoveQueue{Name: "post"}} {
		if _, err := n.proposer.Propose(t.Context(), command); err != nil {
			t.Fatal(err)
		}
	}
	const (
		found = "a job is found for 7d after its end, unless there are too many (retention index.age, index.count, index.bytes)"
		byAct = "it was removed at a caller's request"
	)
	for _, c := range []struct{ text, queue, want string }{
		{"third", "", found}, {"third", "mail", found}, {"mail:third", "", found}, {"no:third", "", found}, {job.ID{9}.String(), "", found},
		{"removed", "post", byAct}, {"post:removed", "", byAct}, {removed.ID.String(), "", byAct},
		{"third", "nowhere", `"third": job does not exist, nor does queue "nowhere"`},
		{kept.ID.String(), "other", "job does not exist in queue other; it is a job of queue mail"},
		{"other:" + kept.ID.String(), "", found}, {"first", "other", "job does not exist"}, {forgotten.String(), "other", "job does not exist"},
	} {
		id, err := n.viewer.Locate(t.Context(), c.text, c.queue)
		if err == nil {
			_, err = n.viewer.Summary(t.Context(), id)
		}
		if !errors.Is(err, job.ErrJobNotFound) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q of %q: %v, want %s", c.text, c.queue, err, c.want)
		}
	}
}
