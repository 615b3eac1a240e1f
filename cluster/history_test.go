package cluster

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

func TestAppend_Fenced(t *testing.T) {
	c := alone(t)
	if seq, number, err := c.LastTold(t.Context(), StreamEvents); seq != 0 || number != 0 || err != nil {
		t.Fatalf("nothing told yet: %d, %d, %v", seq, number, err)
	}
	// Twenty on their way at once, each expecting the one before.
	var wg sync.WaitGroup
	next := uint64(1)
	for i := range 20 {
		wg.Add(1)
		told := Tale{Subject: SubjectHistory, First: next, Count: 5, Body: []byte("line\n"), Header: map[string]string{HeaderLanes: "0@7"}}
		c.AppendAsync(StreamEvents, told, uint64(i), func(seq uint64, err error) {
			if err != nil || seq != uint64(i)+1 {
				t.Errorf("append %d: %d, %v", i, seq, err)
			}
			wg.Done()
		})
		next += 5
	}
	wg.Wait()
	_, err := c.Append(t.Context(), StreamEvents, Tale{Subject: SubjectHistory, First: 96, Count: 5}, 19)
	var wrong *WrongLastError
	if !errors.As(err, &wrong) || wrong.Stream != StreamEvents {
		t.Fatalf("append after somebody else's: %v", err)
	}
	if seq, number, err := c.LastTold(t.Context(), StreamEvents); seq != 20 || number != 100 || err != nil {
		t.Fatalf("last told: %d, %d, %v", seq, number, err)
	}
	tales, err := c.ReadHistory(t.Context(), 19, 10)
	if err != nil || len(tales) != 2 || tales[0].Seq != 19 || tales[0].First != 91 || tales[0].Count != 5 ||
		tales[0].Header[HeaderLanes] != "0@7" || string(tales[0].Body) != "line\n" || tales[0].Stored.IsZero() {
		t.Fatalf("read back: %+v, %v", tales, err)
	}
	for _, number := range []uint64{1, 5, 6, 50, 100} {
		found, err := c.FindTale(t.Context(), StreamEvents, number)
		if err != nil || found.First > number || found.Last() < number {
			t.Fatalf("tale of %d: %+v, %v", number, found, err)
		}
	}
	_, err = c.FindTale(t.Context(), StreamEvents, 101)
	wantErr(t, err, ErrNotStored)
	if more, err := c.ReadHistory(t.Context(), 21, 10); err != nil || len(more) != 0 {
		t.Fatalf("beyond the end: %v, %v", more, err)
	}
}

func TestResults(t *testing.T) {
	c := alone(t)
	seq, err := c.Append(t.Context(), StreamResults, Tale{Subject: SubjectResults, First: 7, Count: 1, Body: []byte("{}")}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.ReadTale(t.Context(), StreamResults, seq); err != nil || string(got.Body) != "{}" {
		t.Fatalf("result: %q, %v", got.Body, err)
	}
}

func TestLive_Watched(t *testing.T) {
	c := alone(t)
	if c.Watched("dispatch-queued", "mail") {
		t.Fatal("somebody watches an empty yard")
	}
	sub, err := visitor(t, c.Cluster).SubscribeSync("yard.events.*.mail")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the watcher to be known", func() error {
		if !c.Watched("dispatch-queued", "mail") {
			return errors.New("not known")
		}
		return nil
	})
	if c.Watched("dispatch-queued", "other") {
		t.Fatal("a watcher of one queue is taken for another's")
	}
	if err := c.Live("dispatch-queued", "mail", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	m, err := sub.NextMsg(5 * time.Second)
	if err != nil || m.Subject != "yard.events.dispatch-queued.mail" || string(m.Data) != "{}" {
		t.Fatalf("heard %+v, %v", m, err)
	}
}

// What an operator may not say reaches nobody; what is public works.
func TestPermissions_Operator(t *testing.T) {
	c := alone(t)
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
	if m, err := nc.Request("yard.jobs.mail", body(1), time.Second); err != nil || !strings.Contains(string(m.Data), `"YARD_JOBS_0"`) {
		t.Fatalf("plain publish: %v", err)
	}
	if _, err := nc.Request("$JS.API.STREAM.INFO.YARD_JOBS_0", nil, time.Second); err != nil {
		t.Fatalf("looking at a stream: %v", err)
	}
	if _, err := nats.Connect(c.ClientURL(), nats.UserInfo("internal", "")); err == nil {
		t.Fatal("a visitor could call itself internal")
	}
}

func wantDenied(t *testing.T, denied chan string, subject string) {
	t.Helper()
	select {
	case said := <-denied:
		if !strings.Contains(said, subject) {
			t.Fatalf("%s: server says %s", subject, said)
		}
	case <-time.After(5 * time.Second):
		t.Fatalf("%s is not denied", subject)
	}
}
