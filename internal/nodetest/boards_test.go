package nodetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"yardmaster/internal/nodetest"
)

// boardRow is what a test looks at in any board.
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

// board opens a bucket as a plain NATS program does, once it is made.
func board(t *testing.T, y *nodetest.Yard, m *nodetest.Member, bucket string) (kv jetstream.KeyValue) {
	t.Helper()
	_, js := connect(t, m)
	y.Eventually(bucket+" is there", func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // nobody answers for a stream that elects
		defer cancel()
		kv, err = js.KeyValue(ctx, bucket)
		return err
	})
	return kv
}

// rowShows waits until a row is as it should be.
func rowShows(t *testing.T, y *nodetest.Yard, kv jetstream.KeyValue, key string, fits func(boardRow) bool) (row boardRow) {
	t.Helper()
	y.Eventually(kv.Bucket()+" shows "+key, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // any replica may be asked, also one that is gone
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

// boards: what the yard does is seen in its buckets, and other hands are not.
func boards(t *testing.T, y *nodetest.Yard) {
	a, owner := y.Members[0], y.WaitAuthority()
	queues, nodes := board(t, y, a, "YARD_QUEUES"), board(t, y, a, "YARD_NODES")
	authority, crons := board(t, y, a, "YARD_AUTHORITY"), board(t, y, a, "YARD_CRON")

	a.AddQueue(t, "shown", 7)
	a.Enqueue(t, "shown", `{"params":{}}`)
	row := rowShows(t, y, queues, "shown", func(r boardRow) bool { return r.Limit == 7 && r.Counts["waiting"] == 1 })
	if row.State != "running" || row.Oldest == "" || row.Epoch == 0 || row.Index == 0 {
		t.Errorf("%+v", row)
	}
	if err := a.API("queue.pause", map[string]any{"name": "shown"}, nil); err != nil {
		t.Fatal(err)
	}
	rowShows(t, y, queues, "shown", func(r boardRow) bool { return r.State == "paused" })
	a.AddQueue(t, "shown-and-gone", 0)
	rowShows(t, y, queues, "shown-and-gone", func(boardRow) bool { return true })
	if err := a.API("queue.remove", map[string]any{"name": "shown-and-gone"}, nil); err != nil {
		t.Fatal(err)
	}
	y.Eventually("a removed queue's row is gone", func() error {
		if _, err := queues.Get(soon(t), "shown-and-gone"); !errors.Is(err, jetstream.ErrKeyNotFound) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})

	// A busy machine may change the authority unasked: epochs tell.
	for _, m := range y.Members {
		rowShows(t, y, nodes, m.Name, func(r boardRow) bool { return r.State == "up" })
	}
	lease := rowShows(t, y, authority, "lease", func(r boardRow) bool { return r.Owner != "" && r.Epoch > 0 })
	rowShows(t, y, authority, "readiness", func(r boardRow) bool { return r.Ready && r.Epoch >= lease.Epoch })
	rowShows(t, y, authority, "replay", func(r boardRow) bool { return r.Cursor != "" })
	if keys, err := authority.Keys(soon(t)); err != nil || len(keys) != 3 {
		t.Errorf("keys %v, %v", keys, err)
	}
	handed := y.Members[0]
	if handed == owner {
		handed = y.Members[1]
	}
	if err := a.Ask("yard.exec", fmt.Sprintf(`{"command":"AcquireAuthority","owner":%q,"lease_id":"x","leased_until":"x"}`, handed.Name), nil); err != nil {
		t.Fatal(err)
	}
	lease = rowShows(t, y, authority, "lease", func(r boardRow) bool { return r.Epoch > lease.Epoch })
	rowShows(t, y, nodes, lease.Owner, func(r boardRow) bool { return r.Authority || r.Epoch > lease.Epoch })
	entry := map[string]any{"name": "shown-cron", "schedule": "0 0 3 1 1 *", "queue": "shown", "job": json.RawMessage(`{"params":{}}`)}
	if err := a.API("cron.add", entry, nil); err != nil {
		t.Fatal(err)
	}
	rowShows(t, y, crons, "shown-cron", func(r boardRow) bool { return r.Schedule == "0 0 3 1 1 *" && r.Next != "" })
	foreignRows(t, y, authority, lease)
}

// foreignRows: who may not write a board can still have a stream of its own
// republish into it. It is overwritten.
func foreignRows(t *testing.T, y *nodetest.Yard, authority jetstream.KeyValue, lease boardRow) {
	_, js := connect(t, y.Members[1])
	_, err := js.CreateStream(soon(t), jetstream.StreamConfig{
		Name: "SNEAK", Subjects: []string{"sneak.*"},
		RePublish: &jetstream.RePublish{Source: "sneak.*", Destination: "$KV.YARD_AUTHORITY.{{wildcard(1)}}"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := js.DeleteStream(soon(t), "SNEAK"); err != nil {
			t.Error(err)
		}
	}()
	watch, err := authority.WatchAll(soon(t), jetstream.UpdatesOnly())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Stop() }()
	const foreign = `{"owner":"me"}`
	for _, key := range []string{"lease", "nonsense"} {
		if _, err := js.Publish(soon(t), "sneak."+key, []byte(foreign)); err != nil {
			t.Fatal(err)
		}
	}
	put, right := map[string]bool{}, map[string]bool{}
	for !right["lease"] || !right["nonsense"] {
		e, open := <-watch.Updates()
		switch {
		case !open:
			t.Fatalf("the watch ended; another hand's %v, put right %v", put, right)
		case string(e.Value()) == foreign:
			put[e.Key()] = true
		default:
			right[e.Key()] = put[e.Key()] && (e.Key() == "lease") == (e.Operation() == jetstream.KeyValuePut)
		}
	}
	rowShows(t, y, authority, "lease", func(r boardRow) bool { return r.Epoch >= lease.Epoch })
}
