package clustertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// boardRow is the part of a board's row that tests use.
type boardRow struct {
	Owner     string         `json:"owner"`
	Epoch     uint64         `json:"epoch"`
	Index     uint64         `json:"index"`
	State     string         `json:"state"`
	Authority bool           `json:"authority"`
	Ready     bool           `json:"ready"`
	Limit     uint32         `json:"concurrency_limit"`
	Counts    map[string]int `json:"counts"`
	Oldest    string         `json:"oldest_waiting_since"`
	Cursor    string         `json:"cursor"`
	Schedule  string         `json:"schedule"`
	Next      string         `json:"next"`
}

// board opens a bucket like a plain NATS client, once it exists.
func board(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, bucket string) (kv jetstream.KeyValue) {
	t.Helper()
	_, js := connect(t, m)
	cl.Eventually(bucket+" is there", func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // a stream without a leader does not answer
		defer cancel()
		kv, err = js.KeyValue(ctx, bucket)
		return err
	})
	return kv
}

// waitRow waits until a row satisfies fits.
func waitRow(t *testing.T, cl *clustertest.Cluster, kv jetstream.KeyValue, key string, fits func(boardRow) bool) (row boardRow) {
	t.Helper()
	cl.Eventually(kv.Bucket()+" shows "+key, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // the request may go to a replica that is gone
		defer cancel()
		e, err := kv.Get(ctx, key)
		if err != nil {
			return err
		}
		row = boardRow{}
		if err := json.Unmarshal(e.Value(), &row); err != nil {
			return err
		}
		if !fits(row) {
			return fmt.Errorf("revision %d: %s", e.Revision(), e.Value())
		}
		return nil
	})
	return row
}

// boardRows checks that the boards show the state of the cluster and that foreign
// writes are refused.
func boardRows(t *testing.T, cl *clustertest.Cluster) {
	a, owner := cl.Members[0], cl.WaitAuthority()
	queues, nodes := board(t, cl, a, "YARD_QUEUES"), board(t, cl, a, "YARD_NODES")
	authority, crons := board(t, cl, a, "YARD_AUTHORITY"), board(t, cl, a, "YARD_CRON")

	a.AddQueue(t, "shown", 7)
	a.Enqueue(t, "shown", `{"params":{}}`)
	row := waitRow(t, cl, queues, "shown", func(r boardRow) bool { return r.Limit == 7 && r.Counts["waiting"] == 1 })
	if row.State != "running" || row.Oldest == "" || row.Epoch == 0 || row.Index == 0 {
		t.Errorf("%+v", row)
	}
	if err := a.API("queue.pause", map[string]any{"name": "shown"}, nil); err != nil {
		t.Fatal(err)
	}
	waitRow(t, cl, queues, "shown", func(r boardRow) bool { return r.State == "paused" })
	a.AddQueue(t, "shown-and-gone", 0)
	waitRow(t, cl, queues, "shown-and-gone", func(boardRow) bool { return true })
	if err := a.API("queue.remove", map[string]any{"name": "shown-and-gone"}, nil); err != nil {
		t.Fatal(err)
	}
	cl.Eventually("a removed queue's row is gone", func() error {
		if _, err := queues.Get(shortContext(t), "shown-and-gone"); !errors.Is(err, jetstream.ErrKeyNotFound) {
			return fmt.Errorf("the row still exists: %w", err)
		}
		return nil
	})

	// On a busy machine the authority may change by itself: compare epochs.
	for _, m := range cl.Members {
		waitRow(t, cl, nodes, m.Name, func(r boardRow) bool { return r.State == "up" })
	}
	lease := waitRow(t, cl, authority, "lease", func(r boardRow) bool { return r.Owner != "" && r.Epoch > 0 })
	waitRow(t, cl, authority, "readiness", func(r boardRow) bool { return r.Ready && r.Epoch >= lease.Epoch })
	waitRow(t, cl, authority, "replay", func(r boardRow) bool { return r.Cursor != "" })
	if keys, err := authority.Keys(shortContext(t)); err != nil || len(keys) != 3 {
		t.Errorf("keys %v, %v", keys, err)
	}
	handed := cl.Members[0]
	if handed == owner {
		handed = cl.Members[1]
	}
	if err := a.Request("yard.exec", fmt.Sprintf(`{"command":"AcquireAuthority","owner":%q,"lease_id":"x","leased_until":"x"}`, handed.Name), nil); err != nil {
		t.Fatal(err)
	}
	lease = waitRow(t, cl, authority, "lease", func(r boardRow) bool { return r.Epoch > lease.Epoch })
	waitRow(t, cl, nodes, lease.Owner, func(r boardRow) bool { return r.Authority || r.Epoch > lease.Epoch })
	entry := map[string]any{"name": "shown-cron", "schedule": "0 0 3 1 1 *", "queue": "shown", "job": json.RawMessage(`{"params":{}}`)}
	if err := a.API("cron.add", entry, nil); err != nil {
		t.Fatal(err)
	}
	waitRow(t, cl, crons, "shown-cron", func(r boardRow) bool { return r.Schedule == "0 0 3 1 1 *" && r.Next != "" })
	overwritesForeignRows(t, cl, authority, lease)
}

// overwritesForeignRows checks that a row is overwritten that a client has republished
// into a board from its own stream.
func overwritesForeignRows(t *testing.T, cl *clustertest.Cluster, authority jetstream.KeyValue, lease boardRow) {
	_, js := connect(t, cl.Members[1])
	_, err := js.CreateStream(shortContext(t), jetstream.StreamConfig{
		Name: "SNEAK", Subjects: []string{"sneak.*"},
		RePublish: &jetstream.RePublish{Source: "sneak.*", Destination: "$KV.YARD_AUTHORITY.{{wildcard(1)}}"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := js.DeleteStream(shortContext(t), "SNEAK"); err != nil {
			t.Error(err)
		}
	}()
	watch, err := authority.WatchAll(shortContext(t), jetstream.UpdatesOnly())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Stop() }()
	const foreign = `{"owner":"me"}`
	for _, key := range []string{"lease", "nonsense"} {
		if _, err := js.Publish(shortContext(t), "sneak."+key, []byte(foreign)); err != nil {
			t.Fatal(err)
		}
	}
	put, right := map[string]bool{}, map[string]bool{}
	for !right["lease"] || !right["nonsense"] {
		e, open := <-watch.Updates()
		switch {
		case !open:
			t.Fatalf("the watch ended; foreign row seen %v, overwritten %v", put, right)
		case string(e.Value()) == foreign:
			put[e.Key()] = true
		default:
			right[e.Key()] = put[e.Key()] && (e.Key() == "lease") == (e.Operation() == jetstream.KeyValuePut)
		}
	}
	waitRow(t, cl, authority, "lease", func(r boardRow) bool { return r.Epoch >= lease.Epoch })
}
