package clustertest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// beat renews the lease of a job over a connection.
func beat(c *overhop.Client, q *overhop.Quest) error {
	lease := overhop.Fields{"jid": q.JID, "tok": q.Token[:]}
	ok, err := c.Call(context.Background(), overhop.TBeat, overhop.Fields{"jobs": []any{lease}}.Raw())
	for item := range ok.Get("jobs").Items() {
		if extended, _ := item.Get("ok").Bool(); !extended {
			code, _ := item.Get("code").Str()
			return errors.New(code)
		}
	}
	return err
}

// resume checks that a worker that lost its connection and reconnected elsewhere keeps its
// job, even long after the first node has given it up, and that the job can be cancelled
// there.
func resume(t *testing.T, cl *clustertest.Cluster) {
	a, b, c := cl.Members[0], cl.Members[1], cl.Members[2]
	a.AddQueue(t, "resumed", 1)
	quests := make(chan overhop.Quest, 4)
	first := a.Overhop(t, overhop.Options{OnQuest: func(q overhop.Quest) { quests <- q }})
	if _, err := first.Subscribe(shortContext(t), "resumed", 1); err != nil {
		t.Fatal(err)
	}
	id := a.Enqueue(t, "resumed", `{"params":{}}`).String()
	quest := <-quests
	if err := beatAfterAck(first, &quest); err != nil {
		t.Fatal(err)
	}
	first.Close()

	recalls := make(chan string, 4)
	second := b.Overhop(t, overhop.Options{
		OnQuest: func(q overhop.Quest) { quests <- q },
		OnPush: func(kind int64, p overhop.Raw) {
			if kind == overhop.TRecall {
				reason, _ := p.Get("reason").Str()
				recalls <- reason
			}
		},
	})
	cl.Eventually("it is resumed", func() error { return beat(second, &quest) })
	if _, err := second.Subscribe(shortContext(t), "resumed", 4); err != nil {
		t.Fatal(err)
	}
	next := a.Enqueue(t, "resumed", `{"params":{}}`).String()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for range 9 { // longer than any lease of the first node
		<-tick.C
		if err := beat(second, &quest); err != nil {
			t.Fatalf("the worker's beat: %v", err)
		}
	}
	if j := c.Job(t, id); j.State != "active" || j.Attempts != 1 {
		t.Errorf("after nine seconds: %+v", j)
	}
	if j := c.Job(t, next); j.State != "waiting" || len(quests) > 0 {
		t.Errorf("beyond the queue's limit: %+v, %d jobs arrived", j, len(quests))
	}
	if err := c.API("job.cancel", map[string]any{"id": id}, nil); err != nil {
		t.Fatal(err)
	}
	select {
	case reason := <-recalls:
		if reason != "CANCELLED" {
			t.Errorf("recalled: %s", reason)
		}
	case <-shortContext(t).Done():
		t.Fatal("the worker did not get a RECALL")
	}
	if j := a.WaitOutcome(t, id); j.State != "cancelled" || !strings.Contains(strings.ToLower(j.Reason), "cancel") {
		t.Errorf("%+v", j)
	}
	last := <-quests // the limit has a free slot again
	second.Done(&last, nil, 0, func(overhop.Raw, error) {})
	if j := a.WaitOutcome(t, next); j.State != "completed" {
		t.Errorf("the next one: %+v", j)
	}
}

// beatAfterAck acknowledges a job and renews its lease once.
func beatAfterAck(c *overhop.Client, q *overhop.Quest) error {
	acked := make(chan error, 1)
	c.Ack(q, func(_ overhop.Raw, err error) { acked <- err })
	if err := <-acked; err != nil {
		return err
	}
	return beat(c, q)
}
