package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestPublish_SingleNode(t *testing.T) {
	c := startSingle(t)
	setDuplicateWindow(t, c.Server, 30*time.Second)
	at := time.Unix(1700000000, 42)
	a, err := publishWait(withDeadline(t, patience), c.Publisher, "mail", "key-1", at, jobBody(1))
	if err != nil || a != (lanes.Ack{Position: job.Position{Seq: 1}}) {
		t.Fatalf("first publish: %+v, %v", a, err)
	}
	if a, err = publishWait(withDeadline(t, patience), c.Publisher, "mail", "key-1", at, jobBody(1)); err != nil || !a.Duplicate || a.Seq != 1 {
		t.Fatalf("same key again: %+v, %v", a, err)
	}
	got, err := c.Reader.Read(t.Context(), 0, 1, 10)
	if err != nil || len(got) != 1 {
		t.Fatalf("read: %v, %v", got, err)
	}
	if r := got[0]; r.Queue != "mail" || r.Key != "key-1" || !r.Stored.Equal(at) || !bytes.Equal(r.Body, jobBody(1)) {
		t.Fatalf("read back %+v", r)
	}
}

// TestPublish_Packs checks that jobs published while a message is in flight are stored
// together, and that each job is acknowledged with the position of its own record, also a job
// that has a message of its own and one whose key was published before.
func TestPublish_Packs(t *testing.T) {
	c := startSingle(t)
	const n, keys = 5000, 4000
	body := func(i int) []byte {
		if i%100 == 99 {
			return fmt.Appendf(nil, "{\n\"params\": {\"n\": %d}}", i)
		}
		return jobBody(i)
	}
	type end struct {
		lanes.Ack
		err error
	}
	ends := make([]end, n)
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		c.Publisher.Publish("mail", fmt.Sprintf("k%d", i%keys), time.Unix(0, int64(i)), body(i), func(a lanes.Ack, err error) {
			ends[i] = end{a, err}
			wg.Done()
		})
	}
	wg.Wait()
	stored := map[job.Position]job.Record{}
	last, messages := job.Position{}, 0
	for _, r := range readAll(t, c.Server, 0, keys) {
		if r.Seq != last.Seq {
			messages++
		}
		last = r.Position
		stored[r.Position] = r
	}
	for i, e := range ends {
		r, key := stored[e.Position], fmt.Sprintf("k%d", i%keys)
		if e.err != nil || r.Key != key || r.Queue != "mail" {
			t.Fatalf("publish %d is acknowledged at %s, which holds %+v: %v", i, e.Position, r, e.err)
		}
		if !e.Duplicate && (!bytes.Equal(r.Body, body(i)) || r.Stored.UnixNano() != int64(i)) {
			t.Fatalf("publish %d is stored as %+v", i, r)
		}
		if loaded, err := c.Reader.LoadRecord(t.Context(), e.Position); i%50 == 0 && (err != nil || loaded.Key != key) {
			t.Fatalf("publish %d at %s: loaded %+v, %v", i, e.Position, loaded, err)
		}
	}
	if messages > n/5 {
		t.Errorf("%d records are in %d messages", len(stored), messages)
	}
	_, err := c.Reader.LoadRecord(t.Context(), job.Position{Seq: last.Seq, Index: last.Index + 1})
	wantErr(t, err, streams.ErrNotStored)
}

// TestPublish_RepeatedKey checks that a job which is published again under its key, within a
// moment, is a duplicate at the position of the first, also if that is in a message with
// others.
func TestPublish_RepeatedKey(t *testing.T) {
	c := startSingle(t)
	acks := make(chan lanes.Ack, 3)
	publish := func(key string) {
		c.Publisher.Publish("mail", key, time.Unix(1, 0), jobBody(1), func(a lanes.Ack, err error) {
			if err != nil {
				t.Error(err)
			}
			acks <- a
		})
	}
	publish("a") // alone; the others go together
	publish("b")
	publish("c")
	first := []lanes.Ack{<-acks, <-acks, <-acks}
	publish("c")
	if again := <-acks; !again.Duplicate || again.Position != first[2].Position || again.Index == 0 && again.Seq == first[0].Seq {
		t.Errorf("published again: %+v, first %+v", again, first)
	}
	publish("d")
	if next := <-acks; next.Duplicate {
		t.Errorf("another key: %+v", next)
	}
}

// setDuplicateWindow sets the duplicate window of lane 0.
func setDuplicateWindow(t *testing.T, c *Server, window time.Duration) {
	t.Helper()
	s, err := c.local.JS.Stream(t.Context(), subjects.LaneStream(0))
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	cfg.Duplicates = window
	if _, err := c.local.JS.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}

func TestPublish_Refusals(t *testing.T) {
	c := startNode(t, embedded.Config{Node: "solo", Dir: t.TempDir(), ClientListen: "127.0.0.1:0", MaxStore: 1 << 30})
	var unavailable *job.UnavailableError
	if _, err := publishWait(withDeadline(t, patience), c.Publisher, "mail", "k", time.Time{}, jobBody(1)); !errors.As(err, &unavailable) || errors.Is(err, streams.ErrUnknown) {
		t.Fatalf("without a lane: %v, want an UnavailableError", err)
	}
	layout := smallLayout(1)
	layout.MaxLaneBytes = 300 << 10
	if _, err := c.Admin.EnsureStreams(t.Context(), layout); err != nil {
		t.Fatal(err)
	}
	if _, err := publishWait(t.Context(), c.Publisher, "bad name", "k", time.Time{}, jobBody(1)); !errors.Is(err, job.ErrBadQueueName) {
		t.Fatalf("bad queue: %v", err)
	}
	if _, err := publishWait(t.Context(), c.Publisher, "mail", strings.Repeat("k", 129), time.Time{}, jobBody(1)); !errors.Is(err, job.ErrKeyTooLong) {
		t.Fatalf("long key: %v", err)
	}
	if _, err := publishWait(withDeadline(t, patience), c.Publisher, "mail", "k", time.Time{}, make([]byte, 400<<10)); !errors.Is(err, job.ErrTooLarge) {
		t.Fatalf("large body: %v", err)
	}
	var err error
	for i := 0; err == nil && i < 100; i++ {
		_, err = publishWait(withDeadline(t, patience), c.Publisher, "mail", "", time.Time{}, make([]byte, 60<<10))
	}
	if !errors.As(err, &unavailable) || unavailable.RetryAfter < time.Second {
		t.Fatalf("full lane: %v, want an UnavailableError", err)
	}
}

// TestPublish_FailsOnStop checks that stopping the node ends every publish exactly
// once.
func TestPublish_FailsOnStop(t *testing.T) {
	for name, start := range map[string]func() *testNode{
		"with lanes": func() *testNode { return startSingle(t) },
		"without": func() *testNode {
			return startNode(t, embedded.Config{Node: "solo", Dir: t.TempDir(), ClientListen: "127.0.0.1:0", MaxStore: 1 << 30})
		},
	} {
		c := start()
		const n = 3000
		var ends atomic.Int64
		for i := range n {
			c.Publisher.Publish("mail", fmt.Sprintf("k%d", i), time.Time{}, jobBody(i), func(lanes.Ack, error) { ends.Add(1) })
		}
		c.kill()
		if got := ends.Load(); got != n {
			t.Errorf("%s: %d of %d publishes ended", name, got, n)
		}
	}
}

// readAll reads the n first records of a lane, or a few more.
func readAll(t *testing.T, c *Server, lane uint8, n int) []job.Record {
	t.Helper()
	var all []job.Record
	eventually(t, "all records", func() error {
		from := uint64(1)
		if len(all) > 0 {
			from = all[len(all)-1].Seq + 1
		}
		got, err := c.Reader.Read(t.Context(), lane, from, 4096)
		if err != nil {
			return err
		}
		all = append(all, got...)
		if len(all) < n {
			return fmt.Errorf("%d of %d records", len(all), n)
		}
		return nil
	})
	return all
}

func TestTail_DirectPublishesOnly(t *testing.T) {
	c := startSingle(t)
	received := make(chan job.Record, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Reader.Tail(ctx, func(r job.Record) { received <- r }) }()
	nc := connectClient(t, c.Server)
	if _, err := publishWait(withDeadline(t, patience), c.Publisher, "mail", "node", time.Time{}, jobBody(0)); err != nil {
		t.Fatal(err)
	}
	var first job.Record
	eventually(t, "a directly published record on the tail", func() error {
		m := nats.NewMsg("yard.jobs.mail")
		m.Header.Set("Nats-Msg-Id", nats.NewInbox())
		m.Header.Set("Yard-At", "1") // ignored in direct publishes
		m.Data = jobBody(7)
		if _, err := nc.RequestMsg(m, time.Second); err != nil {
			return err
		}
		select {
		case first = <-received:
			return nil
		case <-time.After(50 * time.Millisecond):
			return errors.New("nothing received")
		}
	})
	if first.Queue != "mail" || first.Key == "" || first.Key == "node" || first.Seq < 2 || !bytes.Equal(first.Body, jobBody(7)) || time.Since(first.Stored) > time.Minute {
		t.Fatalf("received %+v", first)
	}
	loaded, err := c.Reader.LoadRecord(t.Context(), first.Position)
	if err != nil || loaded.Key != first.Key || !loaded.Stored.Equal(first.Stored) {
		t.Fatalf("the same record read: %+v, %v; received %+v", loaded, err, first)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestPurge_KeepsTheLast(t *testing.T) {
	c := startSingle(t)
	for i := range 10 {
		if _, err := publishWait(withDeadline(t, patience), c.Publisher, "mail", "", time.Time{}, jobBody(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Admin.Purge(t.Context(), 0, 4); err != nil {
		t.Fatal(err)
	}
	var gap *streams.GapError
	if _, err := c.Reader.Read(t.Context(), 0, 2, 10); !errors.As(err, &gap) || gap.First != 4 || gap.Last != 10 {
		t.Fatalf("read below the purge: %v", err)
	}
	if err := c.Admin.Purge(t.Context(), 0, 1<<40); err != nil {
		t.Fatal(err)
	}
	li, err := c.Reader.LaneInfo(t.Context(), 0)
	if err != nil || li.First != 10 || li.Last != 10 {
		t.Fatalf("after a purge beyond the end: %+v, %v", li, err)
	}
	_, err = c.Reader.LoadRecord(t.Context(), job.Position{Seq: 3})
	wantErr(t, err, streams.ErrNotStored)
}

// TestRead_Hole checks that a hole in the middle of a lane is reported as damage
// and not as reclaimed, and that the records after it can be read.
func TestRead_Hole(t *testing.T) {
	c := startSingle(t)
	for _, queue := range []string{"mail", "mail", "lost", "lost", "mail"} {
		if _, err := publishWait(withDeadline(t, patience), c.Publisher, queue, "", time.Time{}, jobBody(0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := purgeSubject(t, c.Server, subjects.LaneStream(0), subjects.LaneSubject(0, subjects.NodePublish, "lost")); err != nil {
		t.Fatal(err)
	}
	if records, err := c.Reader.Read(t.Context(), 0, 1, 10); err != nil || len(records) != 2 {
		t.Errorf("%d records before the hole, %v", len(records), err)
	}
	var gap *streams.GapError
	if _, err := c.Reader.Read(t.Context(), 0, 3, 10); !errors.As(err, &gap) || gap.First != 1 || gap.Last != 5 {
		t.Errorf("read in the hole: %v", err)
	}
	_, err := c.Reader.LoadRecord(t.Context(), job.Position{Seq: 4})
	wantErr(t, err, streams.ErrNotStored)
	if records, err := c.Reader.Read(t.Context(), 0, 5, 10); err != nil || len(records) != 1 {
		t.Errorf("%d records after the hole, %v", len(records), err)
	}
}

// purgeSubject removes the messages of one subject.
func purgeSubject(t *testing.T, c *Server, stream, subject string) error {
	t.Helper()
	s, err := c.local.JS.Stream(t.Context(), stream)
	if err != nil {
		return err
	}
	return s.Purge(t.Context(), jetstream.WithPurgeSubject(subject))
}
