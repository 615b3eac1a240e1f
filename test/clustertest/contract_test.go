package clustertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// service checks that every node is an instance of the same micro service.
func service(t *testing.T, cl *clustertest.Cluster) {
	nc, _ := connect(t, cl.Members[0])
	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishRequest("$SRV.INFO.yard-api", inbox, nil); err != nil {
		t.Fatal(err)
	}
	nodes := map[string]bool{}
	for len(nodes) < 3 {
		m, err := sub.NextMsg(time.Minute)
		if err != nil {
			t.Fatalf("got answers of %v: %v", nodes, err)
		}
		var info micro.Info
		if err := json.Unmarshal(m.Data, &info); err != nil {
			t.Fatal(err)
		}
		nodes[info.Metadata["node"]] = true
		named := map[string]bool{}
		for _, e := range info.Endpoints {
			named[e.Name] = true
			if e.Metadata["description"] == "" {
				t.Errorf("endpoint %s has no metadata", e.Name)
			}
		}
		for _, want := range []string{"enqueue", "exec", "snapshot", "status", "job-show", "queue-list"} {
			if !named[want] {
				t.Errorf("%s has no endpoint %s", info.Metadata["node"], want)
			}
		}
	}
	for _, verb := range []string{"PING", "STATS"} {
		if m, err := nc.Request("$SRV."+verb+".yard-api", nil, 5*time.Second); err != nil || !json.Valid(m.Data) {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// permissions checks that a client may read streams but not change or bypass the
// cluster's data.
func permissions(t *testing.T, cl *clustertest.Cluster) {
	nc, js := connect(t, cl.Members[1])
	for _, stream := range []string{"YARD_JOBS_0", "YARD_EVENTS", "YARD_RESULTS", "YARD_DLQ", "YARD_BLOBS", "YARD_LOGS"} {
		s, err := js.Stream(shortContext(t), stream)
		if err != nil {
			t.Errorf("read stream %s: %v", stream, err)
			continue
		}
		if c := s.CachedInfo().Config; c.Description == "" || c.Replicas != 3 || c.Storage != jetstream.FileStorage {
			t.Errorf("%s: %+v", stream, c)
		}
		denied, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		if err := s.Purge(denied); err == nil {
			t.Errorf("%s could be purged", stream)
		}
		if err := js.DeleteStream(denied, stream); err == nil {
			t.Errorf("%s could be deleted", stream)
		}
		cancel()
	}
	for _, subject := range []string{"yard.lane.0.n.mail", "yard.history", "yard.results", "yard.dlq.mail", "yard.logs.x", "yard.node.n1.propose", "$KV.YARD_QUEUES.x"} {
		if m, err := nc.Request(subject, []byte(`{}`), 200*time.Millisecond); err == nil {
			t.Errorf("a client may publish %s: %s", subject, m.Data)
		}
	}
	sub, err := nc.SubscribeSync("yard.lane.>")
	if err == nil {
		_, err = sub.NextMsg(200 * time.Millisecond)
	}
	if err == nil || errors.Is(err, nats.ErrTimeout) && nc.LastError() == nil {
		t.Errorf("a client may subscribe to the lanes: %v, last error %v", err, nc.LastError())
	}
	// A client may create its own streams.
	own, err := js.CreateStream(shortContext(t), jetstream.StreamConfig{Name: "MINE", Subjects: []string{"mine.>"}, Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(shortContext(t), own.CachedInfo().Config.Name); err != nil {
		t.Error(err)
	}
}

// line is one event of history.
type line struct {
	Event   string
	Request string `json:"request_id"`
	Owner   string
	Seq     uint64
}

// history checks that the events are complete and in order, and that they lead to the
// state of the ledger.
func history(t *testing.T, cl *clustertest.Cluster) {
	l := cl.WaitAuthority().Node().Ledger()
	last := l.LastEvent()
	for _, m := range cl.Members {
		lines := readHistory(t, cl, m, last)
		var counts ledger.SnapshotBacklog
		owner, states := "", map[string]string{}
		for i, e := range lines {
			if e.Seq != uint64(i)+1 {
				t.Fatalf("%s: event %d has number %d", m.Name, i+1, e.Seq)
			}
			from, to := states[e.Request], ""
			switch e.Event {
			case "AuthorityAcquired":
				owner = e.Owner
				continue
			case "DispatchQueued":
				to = "pending"
				counts.Pending++
			case "DispatchNotified":
				to = "notified"
				counts.Pending--
				counts.Notified++
			case "DispatchDelivered":
				to = "delivered"
				counts.Notified--
				counts.Delivered++
			case "DispatchFailed":
				to = "failed"
				counts.Notified--
				counts.Failed++
			default:
				continue
			}
			if want := map[string]string{"pending": "", "notified": "pending", "delivered": "notified", "failed": "notified"}[to]; from != want {
				t.Errorf("%s: %s went from %q to %q", m.Name, e.Request, from, to)
			}
			states[e.Request] = to
		}
		if have := l.Snapshot(ledger.SnapshotContext{}).Backlog; counts != have || owner != l.Authority().Owner {
			t.Errorf("%s: history leads to %+v under %s, the ledger has %+v under %s", m.Name, counts, owner, have, l.Authority().Owner)
		}
	}
}

// readHistory reads history up to event number last.
func readHistory(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, last uint64) (lines []line) {
	t.Helper()
	cl.Eventually(fmt.Sprintf("history has event %d", last), func() error {
		lines = nil
		err := m.Client().History(shortContext(t), time.Time{}, false, func(tale streams.Batch) error {
			for _, text := range bytes.Split(bytes.TrimSpace(tale.Body), []byte("\n")) {
				var e line
				if err := json.Unmarshal(text, &e); err != nil {
					return fmt.Errorf("%q: %w", text, err)
				}
				lines = append(lines, e)
			}
			return nil
		})
		if err == nil && uint64(len(lines)) < last {
			err = fmt.Errorf("history has %d events", len(lines))
		}
		if err == nil {
			lines = lines[:last]
		}
		return err
	})
	return lines
}
