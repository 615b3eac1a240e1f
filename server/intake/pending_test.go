package intake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
	"github.com/yardmaster-dev/yardmaster/test/fakeledger"
)

// Every caller gets an answer: if the record is not ingested in time, if the decision is no
// longer known, and if the node stops.
func TestPending_Timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakeledger.New()
		w := ledgerwait.New(f, 5*time.Second)
		in := New(Config{Waiters: w, OnReject: func(error) {}})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		ask := func(seq uint64) <-chan error {
			answered := make(chan error, 1)
			p := &pending{in: in, id: job.ID{2}, guarded: true, done: func(a Ack, err error) {
				if err == nil && (a != Ack{ID: job.ID{2}, Position: job.Position{Seq: seq}, Duplicate: false}) {
					err = fmt.Errorf("acknowledgement %+v", a)
				}
				answered <- err
			}}
			p.receive(lanes.Ack{Position: job.Position{Seq: seq}, Duplicate: true}, nil)
			return answered
		}
		undecided := func(name string, err error) {
			t.Helper()
			var away *job.UnavailableError
			if !errors.As(err, &away) || away.RetryAfter <= 0 || !strings.Contains(err.Error(), "ask again under the same keys") {
				t.Errorf("%s: %v", name, err)
			}
		}
		began := time.Now()
		undecided("not ingested", <-ask(1))
		if waited := time.Since(began); waited != 5*time.Second {
			t.Errorf("waited %s", waited)
		}
		guards := &job.Guards{Unique: job.Guard{Key: job.GuardKey{1}, TTL: time.Hour}}
		decided, later := ask(2), ask(3)
		synctest.Wait()
		f.Apply(&ledger.Ingest{Identity: "L0", From: 0, To: 2, CreateQueues: true, Jobs: []job.Job{
			{ID: job.ID{1}, Queue: "mail", Position: job.Position{Seq: 1}},
			{ID: job.ID{2}, Queue: "mail", Position: job.Position{Seq: 2}, Guards: guards},
		}})
		if err := <-decided; err != nil {
			t.Errorf("the decision: %v", err)
		}
		if err := <-ask(2); err != nil {
			t.Errorf("asked again: %v", err)
		}
		began = time.Now()
		undecided("decision forgotten", <-ask(1))
		if time.Since(began) != 0 {
			t.Errorf("it took %s to report that no decision is known", time.Since(began))
		}
		stop()
		undecided("the node stops", <-later)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		undecided("after the stop", <-ask(2))
	})
}

// A job that would create a queue too many is refused, and not published to become a dead
// letter under another id. One for a queue that exists is accepted.
func TestPublish_TooManyQueues(t *testing.T) {
	f := fakeledger.New()
	for n := 0; n < ledger.MaxQueues; n++ { // one is there already
		f.Apply(&ledger.AddQueue{ID: job.ID{1, byte(n >> 8), byte(n)}, Name: fmt.Sprint("q", n)})
	}
	full := func() (is bool) { f.View(func(l *ledger.Ledger) { is = l.QueuesFull() }); return is }
	published := []string{}
	in := New(Config{
		Waiters: ledgerwait.New(f, time.Second), QueuesFull: full, CreateQueues: true,
		OnReject: func(error) {}, OnAccept: func(job.Record) {}, CheckLoad: func() error { return nil },
		ReadBarrier: func(context.Context) error { return nil },
		DelayAck:    func(_ bool, answer func()) { answer() },
		Publish: func(queue, _ string, _ time.Time, _ []byte, done func(lanes.Ack, error)) {
			published = append(published, queue)
			done(lanes.Ack{Position: job.Position{Seq: 1}}, nil)
		},
	})
	defer in.Close()
	enqueue := func(queue string) error {
		_, err := in.Publish(t.Context(), Job{Queue: queue, Spec: job.Spec{Function: "f"}, Body: []byte(`{"function":"f"}`)})
		return err
	}
	if err := enqueue("another"); !errors.Is(err, job.ErrTooManyQueues) {
		t.Errorf("a queue too many: %v", err)
	}
	f.Apply(&ledger.RemoveQueue{Name: "q1"})
	if err := errors.Join(enqueue("q7"), enqueue("another")); err != nil || !slices.Equal(published, []string{"q7", "another"}) {
		t.Errorf("with space for a queue: %v, published %v", err, published)
	}
}

// A job that its lane drops as a repetition of a rejected one is not answered with the
// earlier rejection, whose reason may have passed.
func TestPending_RetryAfterRejection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakeledger.New()
		w := ledgerwait.New(f, time.Hour)
		in := New(Config{Waiters: w, OnReject: func(error) {}})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		guards := &job.Guards{Unique: job.Guard{Key: job.GuardKey{1}, TTL: time.Hour}}
		f.Apply(&ledger.Ingest{Identity: "L0", From: 0, To: 2, CreateQueues: true, Jobs: []job.Job{
			{ID: job.ID{1}, Queue: "mail", Position: job.Position{Seq: 1}, Guards: guards},
			{ID: job.ID{2}, Queue: "mail", Position: job.Position{Seq: 2}, Guards: guards},
		}})
		ask := func(duplicate bool) error {
			answered := make(chan error, 1)
			p := &pending{in: in, id: job.ID{2}, named: true, guarded: true, done: func(_ Ack, err error) { answered <- err }}
			p.receive(lanes.Ack{Position: job.Position{Seq: 2}, Duplicate: duplicate}, nil)
			return <-answered
		}
		in.cfg.OnAccept = func(job.Record) {}
		var other *job.DuplicateError
		if err := ask(false); !errors.As(err, &other) || other.ID != (job.ID{1}) {
			t.Errorf("with a held unique key: %v", err)
		}
		var away *job.UnavailableError
		if err := ask(true); !errors.As(err, &away) || away.RetryAfter != StaleDecisionDelay {
			t.Errorf("repeated at once: %v", err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
