package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// hearing collects what a watch of a board tells.
func hearing(t *testing.T, c *Cluster, bucket string) <-chan BoardEntry {
	t.Helper()
	heard := make(chan BoardEntry, 64)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.WatchBoard(ctx, bucket, func(e BoardEntry) { heard <- e }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("watch %s: %v", bucket, err)
		}
	})
	return heard
}

func putRow(t *testing.T, c *Cluster, bucket, key, value string, last uint64) (rev uint64, err error) {
	t.Helper()
	type end struct {
		rev uint64
		err error
	}
	ended := make(chan end, 1)
	done := func(rev uint64, err error) { ended <- end{rev, err} }
	if value == "" {
		c.RemoveRow(bucket, key, last, done)
	} else {
		c.PutRow(bucket, key, []byte(value), last, done)
	}
	e := <-ended
	return e.rev, e.err
}

func TestBoards_Alone(t *testing.T) { checkBoards(t, alone(t).Cluster, 1) }

// testYardBoards: beside the same as alone, no board is led by the node that
// writes it.
func testYardBoards(t *testing.T, nodes []*running) {
	checkBoards(t, nodes[0].Cluster, 3)
	eventually(t, "the boards' leaders to move", func() error {
		if made, err := nodes[0].EnsureBoards(t.Context()); made || err != nil {
			return fmt.Errorf("made anew: %t, %w", made, err)
		}
		for _, bucket := range Boards {
			if info, err := nodes[0].streamInfo(t.Context(), boardStream(bucket)); err != nil || NodeOf(info.Cluster.Leader) == "n1" {
				return fmt.Errorf("%s is led beside its writer: %v", bucket, err)
			}
		}
		return nil
	})
}

// checkBoards checks a yard's boards as a client of key-value buckets sees them.
func checkBoards(t *testing.T, c *Cluster, replicas int) {
	ctx := t.Context()
	some := false
	eventually(t, "the boards to be made", func() error {
		made, err := c.EnsureBoards(ctx)
		some = some || made
		return err
	})
	if made, err := c.EnsureBoards(ctx); !some || made || err != nil {
		t.Errorf("boards were made at first: %t, and again: %t, %v", some, made, err)
	}
	js, err := jetstream.New(visitor(t, c))
	if err != nil {
		t.Fatal(err)
	}
	for _, bucket := range Boards {
		kv, err := js.KeyValue(ctx, bucket)
		if err != nil {
			t.Fatal(err)
		}
		status, err := kv.Status(ctx)
		if err != nil || status.History() != boardHistory || status.Config().Description == "" || status.Config().Replicas != replicas {
			t.Errorf("%s: %+v, %v", bucket, status, err)
		}
	}
	kv, err := js.KeyValue(ctx, BucketQueues)
	if err != nil {
		t.Fatal(err)
	}
	heard := hearing(t, c, BucketQueues)
	if e := <-heard; e.Key != "" {
		t.Fatalf("an empty board tells %+v", e)
	}
	var rev uint64
	for i := range boardHistory + 3 {
		if rev, err = putRow(t, c, BucketQueues, "mail", fmt.Sprintf(`{"i":%d}`, i), rev); err != nil {
			t.Fatal(err)
		}
		if e := <-heard; e.Key != "mail" || e.Rev != rev || e.Gone {
			t.Errorf("heard %+v of revision %d", e, rev)
		}
	}
	var changed *WrongLastError
	if _, err := putRow(t, c, BucketQueues, "mail", `{}`, rev-1); !errors.As(err, &changed) {
		t.Errorf("a write that expects what is no more: %v", err)
	}
	eventually(t, "the replica that is asked to have the last revision", func() error {
		e, err := kv.Get(ctx, "mail")
		history, also := kv.History(ctx, "mail")
		if err := errors.Join(err, also); err != nil || string(e.Value()) != `{"i":12}` || len(history) != boardHistory {
			return fmt.Errorf("%v, %d revisions, %w", e, len(history), err)
		}
		return nil
	})
	if _, err := putRow(t, c, BucketQueues, "mail", "", rev); err != nil {
		t.Fatal(err)
	}
	if e := <-heard; e.Key != "mail" || !e.Gone {
		t.Errorf("heard %+v of a removal", e)
	}
	eventually(t, "the replica that is asked to know of the removal", func() error {
		if e, err := kv.Get(ctx, "mail"); !errors.Is(err, jetstream.ErrKeyNotFound) {
			return fmt.Errorf("found: %v, %w", e, err)
		}
		return nil
	})
	if _, err := putRow(t, c, BucketQueues, "mail", `{"again":true}`, 0); err != nil {
		t.Fatal(err)
	}
	keys, err := kv.Keys(ctx)
	if err != nil || !slices.Equal(keys, []string{"mail"}) {
		t.Errorf("keys %v, %v", keys, err)
	}
}
