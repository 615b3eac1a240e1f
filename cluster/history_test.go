package cluster

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

func TestAppend_Fenced(t *testing.T) {
	c := startSingle(t)
	if seq, number, err := c.Reader.LastPublished(t.Context(), subjects.StreamEvents); seq != 0 || number != 0 || err != nil {
		t.Fatalf("nothing published yet: %d, %d, %v", seq, number, err)
	}
	// Twenty appends in flight, each expecting the sequence of the one before.
	var wg sync.WaitGroup
	next := uint64(1)
	for i := range 20 {
		wg.Add(1)
		batch := streams.Batch{Subject: subjects.History, First: next, Count: 5, Body: []byte("line\n"), Header: map[string]string{"Yard-Lanes": "0@7"}}
		c.Writer.AppendAsync(subjects.StreamEvents, batch, uint64(i), func(seq uint64, err error) {
			if err != nil || seq != uint64(i)+1 {
				t.Errorf("append %d: %d, %v", i, seq, err)
			}
			wg.Done()
		})
		next += 5
	}
	wg.Wait()
	_, err := appendBatch(c, subjects.StreamEvents, streams.Batch{Subject: subjects.History, First: 96, Count: 5}, 19)
	var wrong *streams.WrongLastError
	if !errors.As(err, &wrong) || wrong.Stream != subjects.StreamEvents {
		t.Fatalf("append after another writer's: %v", err)
	}
	if seq, number, err := c.Reader.LastPublished(t.Context(), subjects.StreamEvents); seq != 20 || number != 100 || err != nil {
		t.Fatalf("last published: %d, %d, %v", seq, number, err)
	}
	batches, err := c.Reader.ReadHistory(t.Context(), 19, 10)
	if err != nil || len(batches) != 2 || batches[0].Seq != 19 || batches[0].First != 91 || batches[0].Count != 5 ||
		batches[0].Header["Yard-Lanes"] != "0@7" || string(batches[0].Body) != "line\n" || batches[0].Stored.IsZero() {
		t.Fatalf("read back: %+v, %v", batches, err)
	}
	for _, number := range []uint64{1, 5, 6, 50, 100} {
		found, err := c.Reader.FindBatch(t.Context(), subjects.StreamEvents, number)
		if err != nil || found.First > number || found.Last() < number {
			t.Fatalf("batch with entry %d: %+v, %v", number, found, err)
		}
	}
	_, err = c.Reader.FindBatch(t.Context(), subjects.StreamEvents, 101)
	wantErr(t, err, streams.ErrNotStored)
	if more, err := c.Reader.ReadHistory(t.Context(), 21, 10); err != nil || len(more) != 0 {
		t.Fatalf("beyond the end: %v, %v", more, err)
	}
}

func TestResults(t *testing.T) {
	c := startSingle(t)
	seq, err := appendBatch(c, subjects.StreamResults, streams.Batch{Subject: subjects.Results, First: 7, Count: 1, Body: []byte("{}")}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Reader.ReadBatch(t.Context(), subjects.StreamResults, seq); err != nil || string(got.Body) != "{}" {
		t.Fatalf("result: %q, %v", got.Body, err)
	}
}

func TestPublishLive_HasSubscribers(t *testing.T) {
	c := startSingle(t)
	if c.Writer.HasSubscribers("dispatch-queued", "mail") {
		t.Fatal("an empty cluster has subscribers")
	}
	sub, err := connectClient(t, c.Server).SubscribeSync("yard.events.*.mail")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the subscription to be known", func() error {
		if !c.Writer.HasSubscribers("dispatch-queued", "mail") {
			return errors.New("not known")
		}
		return nil
	})
	if c.Writer.HasSubscribers("dispatch-queued", "other") {
		t.Fatal("a subscriber to one queue counts for another")
	}
	if err := c.Writer.PublishLive("dispatch-queued", "mail", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	m, err := sub.NextMsg(patience)
	if err != nil || m.Subject != "yard.events.dispatch-queued.mail" || string(m.Data) != "{}" {
		t.Fatalf("received %+v, %v", m, err)
	}
}

// TestPermissions_Operator checks that an operator can use the public subjects and
// none that are reserved for nodes.
func TestPermissions_Operator(t *testing.T) {
	c := startSingle(t)
	denied := make(chan string, 100)
	nc, err := nats.Connect(c.ClientURL(), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			denied <- err.Error()
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, subject := range []string{
		"yard.lane.0.n.mail", "yard.node.solo.assign", "yard.tail.0.mail", "yard.history", "yard.results", "yard.dlq.mail",
		"yard.blob.2026010100.x.0", "yard.events.dispatch-queued.mail", "$KV.YARD_AUTHORITY.now",
		"$JS.API.STREAM.DELETE.YARD_JOBS_0", "$JS.API.STREAM.PURGE.YARD_EVENTS", "$JS.API.STREAM.UPDATE.YARD_DLQ",
		"$JS.API.STREAM.CREATE.YARD_JOBS_1", "$JS.API.STREAM.MSG.DELETE.YARD_RESULTS",
	} {
		if err := nc.Publish(subject, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		wantDenied(t, denied, subject)
	}
	for _, subject := range []string{"yard.lane.>", "yard.node.>", "yard.local.solo.enqueue.*", "yard.tail.>"} {
		if _, err := nc.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		wantDenied(t, denied, subject)
	}
	if m, err := nc.Request("yard.jobs.mail", jobBody(1), patience); err != nil || !strings.Contains(string(m.Data), `"YARD_JOBS_0"`) {
		t.Fatalf("direct publish: %v", err)
	}
	if _, err := nc.Request("$JS.API.STREAM.INFO.YARD_JOBS_0", nil, patience); err != nil {
		t.Fatalf("reading a stream's info: %v", err)
	}
	if _, err := nats.Connect(c.ClientURL(), nats.UserInfo("internal", "")); err == nil {
		t.Fatal("a client could log in as the internal user")
	}
}

// wantDenied fails the test unless the server refuses subject.
func wantDenied(t *testing.T, denied chan string, subject string) {
	t.Helper()
	select {
	case said := <-denied:
		if !strings.Contains(said, subject) {
			t.Fatalf("%s: server reported %s", subject, said)
		}
	case <-time.After(patience):
		t.Fatalf("%s is not denied", subject)
	}
}

// TestPermissions_OwnStreams checks that clients can create streams and KV buckets of their
// own with the default settings of NATS' client libraries.
func TestPermissions_OwnStreams(t *testing.T) {
	nc, err := nats.Connect(startSingle(t).ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "settings"})
	if err != nil {
		t.Fatalf("create a bucket: %v", err)
	}
	if _, err := kv.PutString(t.Context(), "colour", "blue"); err != nil {
		t.Errorf("put into a bucket: %v", err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Duplicates: 2 * time.Minute}); err != nil {
		t.Errorf("create a stream with the duplicate window that the nats CLI asks for: %v", err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WIDE", Subjects: []string{"wide.>"}, Duplicates: time.Hour}); err == nil {
		t.Error("the duplicate window, which is kept in memory, has no bound")
	}
}
